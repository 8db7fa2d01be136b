//! Numbers that refer to something, each a type of its own: one cannot be taken for another.

use std::fmt;
use std::ops::{Index, IndexMut};

use serde::{Serialize, Serializer};

use crate::codec::Decoder;
use crate::error::ReadError;
use crate::profile::Function;

/// A function: an index into [`Profile::functions`](crate::Profile::functions).
///
/// The numbers in a target's shared memory are those of its catalog, which is a profile too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FuncId(pub u32);

impl FuncId {
    pub fn from_index(index: usize) -> FuncId {
        FuncId(index as u32)
    }

    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn decode(input: &mut Decoder) -> Result<FuncId, ReadError> {
        Ok(FuncId(input.number32()?))
    }
}

impl From<FuncId> for u64 {
    fn from(id: FuncId) -> u64 {
        id.0.into()
    }
}

impl fmt::Display for FuncId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A plain number in JSON.
impl Serialize for FuncId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

impl Index<FuncId> for Vec<Function> {
    type Output = Function;

    fn index(&self, id: FuncId) -> &Function {
        &self[id.0 as usize]
    }
}

impl IndexMut<FuncId> for Vec<Function> {
    fn index_mut(&mut self, id: FuncId) -> &mut Function {
        &mut self[id.0 as usize]
    }
}
