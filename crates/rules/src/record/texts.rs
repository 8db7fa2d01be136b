//! Lists whose elements are texts: the first of them are read one by one, since what lies in the
//! list are addresses.

use std::rc::Rc;

use thalweg_bytecode::op;

use super::{Recording, TooMany};
use crate::abi::Place;
use crate::ir::{Emit, Ir};
use crate::operand::Operand;
use crate::types::{Type, TypeKind};
use crate::value::{Shape, When};

/// How many elements are read.
const FIRST: u64 = 8;

/// A list of `count` elements.
pub(super) struct List<'a> {
    pub name: &'a str,
    pub type_name: &'a str,
    pub at: Ir,
    pub count: Ir,
    pub of: &'a Rc<Type>,
    pub when: When,
    pub inner: bool,
}

impl Recording<'_> {
    /// `None`: the elements are no texts.
    pub(super) fn texts(&mut self, list: &List<'_>) -> Result<Option<u16>, TooMany> {
        let element = |i: u64| {
            let at = list.at.clone().plus(i * list.of.size);
            Operand::new(list.of.clone(), Place::Memory(at))
        };
        let array = matches!(list.of.kind, TypeKind::Array { .. });
        if array || element(0).text(self.types).is_none() {
            return Ok(None);
        }
        let mut ids = Vec::new();
        let mut emits = Vec::new();
        for i in 0..FIRST {
            let Some((at, len)) = element(i).text(self.types) else {
                break;
            };
            let name = format!("{}[{i}]", list.name);
            let shape = Shape::Text { padded: false };
            let id = self.id(&name, &list.of.name, shape, list.when, true)?;
            let limit = self.limit;
            let there = Ir::binary(op::LT_UNSIGNED, Ir::Const(i), list.count.clone());
            emits.push(Emit::If(there, vec![Emit::Text { id, at, len, limit }]));
            ids.push(id);
        }
        let id = self.id(
            list.name,
            list.type_name,
            Shape::Each(ids),
            list.when,
            list.inner,
        )?;
        self.emits.push(Emit::Word {
            id,
            value: list.count.clone(),
            size: 8,
        });
        self.emits.extend(emits);
        Ok(Some(id))
    }
}
