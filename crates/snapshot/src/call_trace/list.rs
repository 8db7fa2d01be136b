//! Recorded calls while the target runs, of which there may be millions: in large parts, each with what was read of its calls in one string of
//! bytes, so that a part can be given back as soon as the profile has its calls.

use super::moving::Moving;
use super::walk::Call;

/// Large enough for the allocator to take each part from the system, and to give it back.
const PART: usize = 400_000;

/// How much may have been read of all calls together. A target that says more and more of itself fills no memory but its own.
const MAX_READ_BYTES: usize = 2 << 30;

/// Calls in the order in which they were opened.
#[derive(Clone, Debug, Default)]
pub struct CallList {
    parts: Vec<Part>,
    /// What the parts have of it, and how much that may be; `None`: [`MAX_READ_BYTES`].
    read_bytes: usize,
    most_read_bytes: Option<usize>,
    /// Those that several threads have to do with.
    pub(super) moving: Moving,
}

#[derive(Clone, Debug, Default)]
pub struct Part {
    calls: Vec<Call>,
    read: Vec<u8>,
}

/// What was read of a call: where it is in its part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAt {
    start: u64,
    values: u16,
    thrown: u16,
}

impl Part {
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// What rules have read of it, and what has left it.
    pub fn read(&self, call: &Call) -> (&[u8], &[u8]) {
        let ReadAt {
            start,
            values,
            thrown,
        } = call.read;
        let start = start as usize;
        let middle = start + usize::from(values);
        let part = |from: usize, to: usize| self.read.get(from..to).unwrap_or_default();
        (
            part(start, middle),
            part(middle, middle + usize::from(thrown)),
        )
    }

    fn add_read(&mut self, place: usize, values: &[u8], thrown: &[u8]) {
        let Some(call) = self.calls.get_mut(place) else {
            return;
        };
        // A record says with as many bits how much it is.
        let most = usize::from(u16::MAX);
        let (values, thrown) = (
            &values[..values.len().min(most)],
            &thrown[..thrown.len().min(most)],
        );
        call.read = ReadAt {
            start: self.read.len() as u64,
            values: values.len() as u16,
            thrown: thrown.len() as u16,
        };
        self.read.extend_from_slice(values);
        self.read.extend_from_slice(thrown);
    }
}

impl CallList {
    /// With a bound of its own on what was read of all calls together.
    pub fn of_at_most(most_read_bytes: usize) -> CallList {
        CallList {
            most_read_bytes: Some(most_read_bytes),
            ..CallList::default()
        }
    }

    pub fn len(&self) -> usize {
        let last = self.parts.last().map_or(0, |part| part.calls.len());
        self.parts.len().saturating_sub(1) * PART + last
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn get(&self, index: usize) -> Option<&Call> {
        self.parts.get(index / PART)?.calls.get(index % PART)
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut Call> {
        self.parts
            .get_mut(index / PART)?
            .calls
            .get_mut(index % PART)
    }

    pub fn push(&mut self, call: Call) {
        if self
            .parts
            .last()
            .is_none_or(|part| part.calls.len() == PART)
        {
            self.parts.push(Part::default());
        }
        if let Some(part) = self.parts.last_mut() {
            part.calls.push(call);
        }
    }

    /// There is no room for what rules read of more calls.
    pub fn is_full(&self) -> bool {
        self.read_bytes >= self.most_read_bytes.unwrap_or(MAX_READ_BYTES)
    }

    /// What was read of the call at `index`.
    pub fn set_read(&mut self, index: usize, values: &[u8], thrown: &[u8]) {
        if self.is_full() {
            return;
        }
        if let Some(part) = self.parts.get_mut(index / PART) {
            self.read_bytes += values.len() + thrown.len();
            part.add_read(index % PART, values, thrown);
        }
    }

    /// What was read of it besides.
    pub fn add_read(&mut self, index: usize, values: &[u8]) {
        let known = self.parts.get(index / PART).and_then(|part| {
            let call = part.calls.get(index % PART)?;
            let (known, thrown) = part.read(call);
            Some(([known, values].concat(), thrown.to_vec()))
        });
        if let Some((values, thrown)) = known.filter(|_| !values.is_empty()) {
            self.set_read(index, &values, &thrown);
        }
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Call> {
        self.parts.iter().flat_map(|part| &part.calls)
    }

    /// Callees before their callers, with where they are.
    pub fn last_first(&self) -> impl Iterator<Item = (usize, &Call)> {
        (0..self.len()).rev().zip(self.iter().rev())
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// One part after the other; each can be dropped before the next is looked at.
    pub fn into_parts(self) -> impl Iterator<Item = Part> {
        self.parts.into_iter()
    }

    /// Only those that have a place stay, which is also where their callers are found.
    pub fn keep(&mut self, places: &[Option<u32>]) {
        let mut kept = CallList {
            most_read_bytes: self.most_read_bytes,
            ..CallList::default()
        };
        let mut index = 0;
        for part in std::mem::take(&mut self.parts) {
            for call in &part.calls {
                let place = places.get(index).copied().flatten();
                index += 1;
                if place.is_none() {
                    continue;
                }
                let (values, thrown) = part.read(call);
                let parent = call.parent.and_then(|parent| *places.get(parent as usize)?);
                let at = kept.len();
                kept.push(Call {
                    parent,
                    read: ReadAt::default(),
                    ..call.clone()
                });
                kept.set_read(at, values, thrown);
            }
        }
        self.parts = kept.parts;
        self.read_bytes = kept.read_bytes;
        self.moving.renumber(places);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than a part of calls, each the caller of the next, with values of all lengths.
    fn list() -> CallList {
        let mut list = CallList::default();
        for index in 0..PART as u32 + 10 {
            list.push(Call {
                function: index,
                parent: index.checked_sub(1),
                ..Call::default()
            });
            let read = index.to_le_bytes();
            list.set_read(
                index as usize,
                &read[..index as usize % 5],
                &read[..index as usize % 3],
            );
        }
        list
    }

    fn check(list: &CallList, functions: impl Iterator<Item = u32>) {
        let mut functions = functions;
        let all = list.parts().iter().flat_map(|part| {
            let calls = part.calls().iter();
            calls.map(move |call| (call, part.read(call)))
        });
        for (call, (values, thrown)) in all {
            let function = functions.next().expect("no more than there should be");
            let read = function.to_le_bytes();
            assert_eq!(call.function, function);
            assert_eq!(values, &read[..function as usize % 5]);
            assert_eq!(thrown, &read[..function as usize % 3]);
        }
        assert_eq!(functions.next(), None);
    }

    #[test]
    fn what_another_rule_reads_of_a_call_is_added() {
        let mut list = CallList::default();
        list.push(Call::default());
        list.set_read(0, b"one", b"thrown");
        list.add_read(0, b"");
        list.add_read(0, b", two");
        list.add_read(7, b"nobody's");
        let part = &list.parts()[0];
        let read = part.read(&part.calls()[0]);
        assert_eq!(read, (&b"one, two"[..], &b"thrown"[..]));
    }

    #[test]
    fn what_was_read_of_a_call_stays_its_own_across_parts_and_when_others_go() {
        let mut list = list();
        let count = PART as u32 + 10;
        assert_eq!(list.len(), count as usize);
        check(&list, 0..count);
        // Every other one goes, and with it whoever is called by it loses its caller.
        let places: Vec<Option<u32>> = (0..count).map(|n| (n % 2 == 1).then_some(n / 2)).collect();
        list.keep(&places);
        check(&list, (0..count).filter(|n| n % 2 == 1));
        assert!(list.iter().all(|call| call.parent.is_none()));
        assert_eq!(
            list.last_first().next().map(|(index, _)| index),
            Some(list.len() - 1)
        );
    }
}
