//! Texts in the target, looked at piece by piece: comparing with a constant, and running an
//! automaton over them.
//!
//! An automaton's table is: states u16, classes u16, start u16, 0 u16, 256 bytes that give each
//! byte its class, one byte of kind per state (1: found, 2: dead), then `states x (classes + 1)`
//! u16 of successors; the last column is the end of the text.

use crate::Memory;
use crate::header::u16_at;

/// The length of a text that a NUL ends.
pub const NUL_TERMINATED: u64 = u64::MAX;

/// How much is read at once.
pub const CHUNK: usize = 64;

/// Where the bytes of a text come from.
pub(crate) enum Source<'a, M: Memory> {
    Target {
        memory: &'a mut M,
        at: u64,
        len: u64,
    },
    Here(&'a [u8]),
}

/// Where the walk over a text ended.
enum End {
    /// At its end.
    Whole,
    /// The limit was reached first.
    Limit,
    Unreadable,
}

impl<M: Memory> Source<'_, M> {
    /// Gives the text to `each`, in pieces, until it says stop (`None`), at most `limit` bytes of
    /// it.
    fn walk(self, limit: usize, mut each: impl FnMut(&[u8]) -> bool) -> Option<End> {
        match self {
            Source::Here(bytes) => {
                let part = bytes.get(..limit.min(bytes.len())).unwrap_or_default();
                if !each(part) {
                    return None;
                }
                Some(if bytes.len() > limit {
                    End::Limit
                } else {
                    End::Whole
                })
            }
            Source::Target { memory, at, len } => {
                let mut chunk = [0; CHUNK];
                let mut done = 0usize;
                loop {
                    let left = len.saturating_sub(done as u64);
                    if len != NUL_TERMINATED && left == 0 {
                        return Some(End::Whole);
                    }
                    if done >= limit {
                        return Some(End::Limit);
                    }
                    let wanted = CHUNK.min(limit - done).min(left.min(CHUNK as u64) as usize);
                    let read = memory
                        .read(at.wrapping_add(done as u64), chunk.get_mut(..wanted)?)
                        .min(wanted);
                    let part = chunk.get(..read)?;
                    if len == NUL_TERMINATED
                        && let Some(end) = part.iter().position(|byte| *byte == 0)
                    {
                        return each(part.get(..end)?).then_some(End::Whole);
                    }
                    if !each(part) {
                        return None;
                    }
                    if read < wanted {
                        return Some(End::Unreadable);
                    }
                    done += read;
                }
            }
        }
    }

    /// `None`: could not be told.
    pub(crate) fn equals(self, constant: &[u8]) -> Option<bool> {
        if let Source::Target { len, .. } = &self
            && *len != NUL_TERMINATED
            && *len != constant.len() as u64
        {
            return Some(false);
        }
        let mut rest = constant;
        // One byte more, so that a longer text is seen to be longer.
        let end = self.walk(constant.len() + 1, |part| {
            match rest.get(..part.len()).filter(|same| is_same(same, part)) {
                Some(same) => {
                    rest = rest.get(same.len()..).unwrap_or_default();
                    true
                }
                None => false,
            }
        });
        match end {
            None | Some(End::Limit) => Some(false),
            Some(End::Whole) => Some(rest.is_empty()),
            Some(End::Unreadable) => None,
        }
    }

    /// Does the automaton find what it looks for within the first `limit` bytes? `None`: could not
    /// be told.
    pub(crate) fn matches(self, table: &[u8], limit: usize) -> Option<bool> {
        let automaton = Automaton::read(table)?;
        let mut state = usize::from(automaton.start);
        let mut broken = false;
        let mut decided = automaton.decided(state);
        if decided.is_some() {
            return decided;
        }
        let end = self.walk(limit, |part| {
            for byte in part {
                let class = usize::from(automaton.class_of(*byte));
                match automaton.next(state, class) {
                    Some(next) => state = next,
                    None => {
                        broken = true;
                        return false;
                    }
                }
                decided = automaton.decided(state);
                if decided.is_some() {
                    return false;
                }
            }
            true
        });
        if broken {
            return None;
        }
        match end {
            None => decided,
            Some(End::Whole) => {
                let last = automaton.next(state, automaton.classes)?;
                Some(automaton.decided(last) == Some(true))
            }
            Some(End::Limit | End::Unreadable) => None,
        }
    }
}

/// Byte by byte: a comparison of slices would call a function that the agent does not have.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b)
}

struct Automaton<'t> {
    classes: usize,
    start: u16,
    map: &'t [u8],
    kinds: &'t [u8],
    next: &'t [u8],
}

impl<'t> Automaton<'t> {
    fn read(table: &'t [u8]) -> Option<Automaton<'t>> {
        const MAP: usize = 8;
        let states = usize::from(u16_at(table, 0)?);
        let kinds = MAP + 256;
        Some(Automaton {
            classes: usize::from(u16_at(table, 2)?),
            start: u16_at(table, 4)?,
            map: table.get(MAP..kinds)?,
            kinds: table.get(kinds..kinds + states)?,
            next: table.get(kinds + states..)?,
        })
    }

    fn class_of(&self, byte: u8) -> u8 {
        self.map.get(usize::from(byte)).copied().unwrap_or(0)
    }

    fn next(&self, state: usize, class: usize) -> Option<usize> {
        let cell = state
            .checked_mul(self.classes.checked_add(1)?)?
            .checked_add(class)?;
        u16_at(self.next, cell.checked_mul(2)?).map(usize::from)
    }

    fn decided(&self, state: usize) -> Option<bool> {
        match self.kinds.get(state) {
            Some(1) => Some(true),
            Some(2) => Some(false),
            _ => None,
        }
    }
}
