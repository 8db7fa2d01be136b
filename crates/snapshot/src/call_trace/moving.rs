//! Calls of goroutines, which the records of several threads speak of: whoever runs the goroutine marks them and in the end closes them.
//!
//! The same function at the same counter value, by the same goroutine as far as that is said, is the same call. Rings are read one after the other, so a call's end may be read before its
//! mark; but what was written before is read before all rings were read once more. Until then what has ended is remembered here.

use std::collections::HashMap;

/// A call, in whatever ring it is spoken of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub pid: u32,
    pub function: u32,
    /// Counter value.
    pub entry: u64,
    /// Some bits of which it is.
    pub goroutine: u16,
}

/// How often all rings are read before what has ended is forgotten: once would do if no record were ever met half written.
const PASSES: u64 = 4;

/// How many are remembered at a time; more goroutines' calls than this are open in no honest target. What is beyond is told
/// as the calls of several threads.
const MAX_MOVING: usize = 4 << 20;

/// An exit record whose mark was not read yet.
#[derive(Clone, Debug)]
pub struct Early {
    pub record: Vec<u64>,
    pub how: u8,
}

#[derive(Clone, Debug, Default)]
pub struct Moving {
    calls: HashMap<Name, Known>,
    early: HashMap<Name, (Early, u64)>,
    pass: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// Index among the calls; `None`: it was not added.
    call: Option<u32>,
    /// The pass in which its end was read.
    ended: Option<u64>,
}

impl Moving {
    /// Where the call is among all, if its mark was read: `Some(None)` if it was not added.
    pub fn get(&self, name: Name) -> Option<Option<u32>> {
        self.calls.get(&name).map(|known| known.call)
    }

    pub fn add(&mut self, name: Name, call: Option<u32>) {
        if self.calls.len() < MAX_MOVING {
            self.calls.insert(name, Known { call, ended: None });
        }
    }

    pub fn end(&mut self, name: Name) {
        let pass = self.pass;
        if let Some(known) = self.calls.get_mut(&name) {
            known.ended = Some(pass);
        }
    }

    /// Its end is known, but not yet the call.
    pub fn add_early(&mut self, name: Name, early: Early) {
        self.early.insert(name, (early, self.pass));
    }

    pub fn take_early(&mut self, name: Name) -> Option<Early> {
        self.early.remove(&name).map(|(early, _)| early)
    }

    /// All rings were read.
    pub fn passed(&mut self) {
        self.pass += 1;
        let now = self.pass;
        let is_recent = |pass: u64| now - pass < PASSES;
        self.calls
            .retain(|_, known| known.ended.is_none_or(is_recent));
        self.early.retain(|_, (_, pass)| is_recent(*pass));
    }

    /// Calls have got other places; those that are no longer there are forgotten.
    pub fn renumber(&mut self, places: &[Option<u32>]) {
        self.calls.retain(|_, known| {
            let Some(call) = known.call else {
                return true;
            };
            known.call = places.get(call as usize).copied().flatten();
            known.call.is_some()
        });
    }
}
