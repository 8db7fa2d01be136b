//! One walk over a thread's records makes its pruned call trees.
//!
//! An entry mark opens a call below the one that is open, an exit record closes one. Marks and records say how deep they were
//! and when the call began: a mark that was written twice is known, and what was dropped shows.

use std::collections::VecDeque;

use thalweg_abi::record::{
    HOW_ENDED, HOW_GOROUTINE, HOW_MARKED_ELSEWHERE, HOW_SUSPENDED, HOW_UNWOUND, HOW_WITHOUT_VALUES,
    Head, KIND_ENTER, KIND_EXIT, KIND_NONE, KIND_THREAD, NO_RULE,
};

use super::list::{CallList, ReadAt};
use super::moving::{Early, Name};

/// A recorded call; times are counter values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Of its first record, in words since the thread's first.
    pub position: u64,
    /// Index among the calls.
    pub parent: Option<u32>,
    pub function: u32,
    pub rule: u32,
    pub pid: u32,
    pub tid: u32,
    pub request: u32,
    pub entry: u64,
    pub end: End,
    /// What rules have read of it, and what left it where that was thrown.
    pub read: ReadAt,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    #[default]
    Open,
    /// Its exit record was dropped.
    Lost,
    Closed {
        exit: u64,
        own: u64,
        processor: u64,
        slow: u64,
        how: u8,
    },
}

impl End {
    pub fn is_unwound(self) -> bool {
        matches!(self, End::Closed { how, .. } if how & !HOW_WITHOUT_VALUES == HOW_UNWOUND)
    }

    pub fn is_suspended(self) -> bool {
        matches!(self, End::Closed { how, .. } if how & !HOW_WITHOUT_VALUES == HOW_SUSPENDED)
    }

    pub fn is_end_of_thread(self) -> bool {
        matches!(self, End::Closed { how, .. } if how & !HOW_WITHOUT_VALUES == HOW_ENDED)
    }
}

/// The walk over one thread's records, which can stop and go on where it stopped.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    thread: (u32, u32),
    open: Vec<Opened>,
    /// Those that ended last: of a call that several rules keep each has a record.
    ended: VecDeque<Opened>,
    /// When there are so many calls no more are added.
    pub limit: Option<usize>,
    /// Calls that a rule had chosen and that were not added for that.
    pub left_out: u64,
}

#[derive(Clone, Copy, Debug)]
struct Opened {
    depth: u64,
    entry: u64,
    function: u32,
    /// Index among the calls; `None`: it was not added.
    call: Option<u32>,
    /// A goroutine's, which may go on elsewhere.
    moves: bool,
}

/// So many are remembered: signal handlers may keep calls of their own between two records of one call.
const MAX_ENDED: usize = 8;

/// Why a walk has stopped before the end of what it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A record is being written.
    Unfinished { words: u64 },
    /// No record begins here: one is about to be written, or the target has written to its own data.
    Damaged,
}

impl Walk {
    /// Goes over `words` of a ring of `size`, the first of which is at `position`, and adds what it finds to `calls`. Returns the position behind the last record,
    /// and why it is not the end.
    pub fn go(
        &mut self,
        words: &[u64],
        position: u64,
        size: u64,
        calls: &mut CallList,
    ) -> (u64, Option<Stop>) {
        let mut at = 0;
        while let Some(&first) = words.get(at) {
            let head = Head(first);
            let length = head.words() as usize;
            let place = position + at as u64;
            if !head.is_at(place, size) {
                return (place, Some(Stop::Damaged));
            }
            if head.kind() == KIND_NONE && length > 0 {
                return (
                    place,
                    Some(Stop::Unfinished {
                        words: length as u64,
                    }),
                );
            }
            let Some(record) = words.get(at..at + length).filter(|_| length > 0) else {
                return (place, Some(Stop::Damaged));
            };
            if self.record(head, record, place, calls).is_none() {
                return (place, Some(Stop::Damaged));
            }
            at += length;
        }
        (position + at as u64, None)
    }

    fn record(
        &mut self,
        head: Head,
        record: &[u64],
        position: u64,
        calls: &mut CallList,
    ) -> Option<()> {
        match head.kind() {
            KIND_THREAD => {
                self.close_from(0, calls);
                let who = *record.get(1)?;
                self.thread = ((who >> 32) as u32, who as u32);
            }
            KIND_ENTER => {
                let (what, entry) = (*record.get(1)?, *record.get(2)?);
                let function = (what >> 32) as u32;
                self.close_from(head.depth() + 1, calls);
                let known = self.is_innermost(head.depth(), function, entry);
                if !known {
                    self.close_from(head.depth(), calls);
                    let moves = head.how() & HOW_GOROUTINE != 0;
                    self.begin(head, what, entry, position, moves, calls);
                }
            }
            KIND_EXIT if head.how() & HOW_GOROUTINE != 0 => {
                self.exit_of_goroutine(head, record, position, calls)?;
            }
            KIND_EXIT => {
                let (what, entry) = (*record.get(1)?, *record.get(2)?);
                let rule = (*record.get(7)? >> 32) as u32;
                self.close_from(head.depth() + 1, calls);
                let function = (what >> 32) as u32;
                let known = self.is_innermost(head.depth(), function, entry);
                if !known {
                    if rule == NO_RULE {
                        // Its mark was dropped, and with it all that it was there for.
                        return Some(());
                    }
                    if let Some(call) = self.just_ended(head.depth(), function, entry) {
                        return also(call, record, calls);
                    }
                    self.close_from(head.depth(), calls);
                    self.begin(head, what, entry, position, false, calls);
                }
                let open = self.open.pop()?;
                self.note_end(open);
                self.end(open.call, record, head.how(), calls)?;
            }
            _ => return None,
        }
        Some(())
    }

    /// The call of a goroutine ends, whose mark may be in another ring.
    fn exit_of_goroutine(
        &mut self,
        head: Head,
        record: &[u64],
        position: u64,
        calls: &mut CallList,
    ) -> Option<()> {
        let (what, entry) = (*record.get(1)?, *record.get(2)?);
        let rule = (*record.get(7)? >> 32) as u32;
        let function = (what >> 32) as u32;
        let name = self.name(head, function, entry);
        self.close_from(head.depth() + 1, calls);
        let is_open = self.is_innermost(head.depth(), function, entry);
        let known = calls.moving.get(name);
        if !is_open
            && known.is_none()
            && rule != NO_RULE
            && let Some(call) = self.just_ended(head.depth(), function, entry)
        {
            return also(call, record, calls);
        }
        if !is_open {
            self.close_from(head.depth(), calls);
        }
        if !is_open && known.is_none() {
            if rule == NO_RULE {
                if head.how() & HOW_MARKED_ELSEWHERE != 0 {
                    let early = Early {
                        record: record.to_vec(),
                        how: head.how(),
                    };
                    calls.moving.add_early(name, early);
                }
                return Some(());
            }
            let is_marked_elsewhere = head.how() & HOW_MARKED_ELSEWHERE != 0;
            self.begin(head, what, entry, position, is_marked_elsewhere, calls);
        }
        let call = match known {
            Some(call) => call,
            None => self.open.last()?.call,
        };
        if is_open || known.is_none() {
            self.open.pop();
        }
        self.note_end(Opened {
            depth: head.depth(),
            entry,
            function,
            call,
            moves: true,
        });
        calls.moving.end(name);
        self.end(call, record, head.how(), calls)
    }

    /// Whether it is the innermost call that is open.
    fn is_innermost(&self, depth: u64, function: u32, entry: u64) -> bool {
        let same = |top: &Opened| (top.depth, top.function, top.entry) == (depth, function, entry);
        self.open.last().is_some_and(same)
    }

    /// The call that has ended lately, if it is this one: its place among the calls, if it has one.
    fn just_ended(&self, depth: u64, function: u32, entry: u64) -> Option<Option<u32>> {
        let same = |one: &&Opened| (one.depth, one.function, one.entry) == (depth, function, entry);
        self.ended.iter().find(same).map(|one| one.call)
    }

    fn note_end(&mut self, open: Opened) {
        self.ended.truncate(MAX_ENDED - 1);
        self.ended.push_front(open);
    }

    fn name(&self, head: Head, function: u32, entry: u64) -> Name {
        Name {
            pid: self.thread.0,
            function,
            entry,
            goroutine: head.goroutine(),
        }
    }

    /// What an exit record says of the call at `index`.
    fn end(
        &mut self,
        index: Option<u32>,
        record: &[u64],
        how: u8,
        calls: &mut CallList,
    ) -> Option<()> {
        let word = |index: usize| record.get(index).copied();
        let rule = (word(7)? >> 32) as u32;
        let (values, thrown) = (word(7)? as u16, (word(7)? >> 16) as u16);
        let Some(index) = index else {
            self.left_out += u64::from(rule != NO_RULE);
            return Some(());
        };
        let behind = 8 + usize::from(values).div_ceil(8);
        let values = bytes(record.get(8..behind)?, values);
        let thrown = bytes(record.get(behind..)?, thrown);
        calls.set_read(index as usize, &values, &thrown);
        let call = calls.get_mut(index as usize)?;
        call.rule = rule;
        call.end = End::Closed {
            exit: word(3)?,
            own: word(4)?,
            processor: word(5)?,
            slow: word(6)?,
            how: how & !(HOW_GOROUTINE | HOW_MARKED_ELSEWHERE),
        };
        Some(())
    }

    /// `moves`: other rings may speak of it, too, or have done so.
    fn begin(
        &mut self,
        head: Head,
        what: u64,
        entry: u64,
        position: u64,
        moves: bool,
        calls: &mut CallList,
    ) {
        let request = what as u32;
        let function = (what >> 32) as u32;
        let name = self.name(head, function, entry);
        let depth = head.depth();
        if moves && let Some(call) = calls.moving.get(name) {
            return self.open.push(Opened {
                depth,
                entry,
                function,
                call,
                moves,
            });
        }
        let parent = self.open.last().and_then(|above| above.call);
        let has_room = !calls.is_full() && self.limit.is_none_or(|limit| calls.len() < limit);
        // A request is a tree of its own, whoever serves it.
        let same = |parent: &u32| {
            let above = calls.get(*parent as usize);
            above.is_some_and(|above| above.request == request)
        };
        let parent = parent.filter(same);
        // A goroutine's calls are told as those of one thread that has run it.
        let above = parent.and_then(|parent| calls.get(parent as usize));
        let (pid, tid) = above.map_or(self.thread, |above| (above.pid, above.tid));
        let call = Call {
            position,
            parent,
            function,
            pid,
            tid,
            request,
            entry,
            ..Call::default()
        };
        let place = has_room.then_some(calls.len() as u32);
        self.open.push(Opened {
            depth,
            entry,
            function,
            call: place,
            moves,
        });
        if has_room {
            calls.push(call);
        }
        if moves {
            calls.moving.add(name, place);
            if let Some(early) = calls.moving.take_early(name) {
                self.end(place, &early.record, early.how, calls);
                calls.moving.end(name);
            }
        }
    }

    /// Calls have got other places; `None`: one is no longer there.
    pub fn renumber(&mut self, places: &[Option<u32>]) {
        for open in self.open.iter_mut().chain(&mut self.ended) {
            let place = open.call.and_then(|call| places.get(call as usize));
            open.call = place.copied().flatten();
        }
    }

    /// Whatever is open at this depth or deeper has ended without a word.
    fn close_from(&mut self, depth: u64, calls: &mut CallList) {
        while let Some(top) = self.open.last()
            && top.depth >= depth
        {
            let call = top.call.and_then(|call| calls.get_mut(call as usize));
            if let Some(call) = call
                && !top.moves
            {
                call.end = End::Lost;
            }
            self.open.pop();
        }
    }
}

/// What one more rule has read of a call that it keeps, too.
fn also(call: Option<u32>, record: &[u64], calls: &mut CallList) -> Option<()> {
    let values = *record.get(7)? as u16;
    let behind = 8 + usize::from(values).div_ceil(8);
    let values = bytes(record.get(8..behind)?, values);
    if let Some(call) = call {
        calls.add_read(call as usize, &values);
    }
    Some(())
}

fn bytes(words: &[u64], count: u16) -> Vec<u8> {
    let all = words.iter().flat_map(|word| word.to_le_bytes());
    all.take(count.into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_abi::record::{EXIT_WORDS, THREAD_WORDS};

    const SIZE: u64 = 1 << 12;

    fn put(words: &mut Vec<u64>, head: Head, rest: &[u64]) {
        words.push(head.at(words.len() as u64, SIZE).0);
        words.extend(rest);
    }

    /// The end of a call of function 3, of which a rule has read one byte.
    fn exit(words: &mut Vec<u64>, depth: u64, entry: u64, rule: u64, read: u8) {
        let head = Head::new(EXIT_WORDS + 1, KIND_EXIT, 0, depth);
        let record = [
            3 << 32,
            entry,
            entry + 9,
            1,
            1,
            0,
            rule << 32 | 1,
            read.into(),
        ];
        put(words, head, &record);
    }

    #[test]
    fn a_call_that_several_rules_keep_is_one_with_what_all_of_them_read() {
        let mut words = Vec::new();
        let head = Head::new(THREAD_WORDS, KIND_THREAD, 0, 0);
        put(&mut words, head, &[7 << 32 | 7, 0]);
        exit(&mut words, 2, 100, 1, b'a');
        // A signal handler's call in between, then the other rule's record of the first one.
        exit(&mut words, 4, 105, 2, b'h');
        exit(&mut words, 2, 100, 2, b'b');
        exit(&mut words, 2, 200, 2, b'c');
        let mut calls = CallList::default();
        let (position, stop) = Walk::default().go(&words, 0, SIZE, &mut calls);
        assert_eq!((position, stop), (words.len() as u64, None));
        let part = &calls.parts()[0];
        let read = part.calls().iter().map(|call| {
            let (values, _) = part.read(call);
            let values = String::from_utf8_lossy(values).into_owned();
            (call.entry, call.rule, values)
        });
        let read: Vec<_> = read.collect();
        let told = |entry: u64, rule: u32, values: &str| (entry, rule, values.to_string());
        assert_eq!(
            read,
            [told(100, 1, "ab"), told(105, 2, "h"), told(200, 2, "c")]
        );
    }
}
