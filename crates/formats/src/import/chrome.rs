//! Traces of entries and exits in Chrome's JSON: `uftrace dump --chrome`, Chrome itself, and all that
//! write for its viewers. Calls and times are exact: every call is an event.
//!
//! ```text
//! [ or {"traceEvents": [      {"ph":"B", "ts":1.5, "pid":1, "tid":2, "name":"f"}     a call begins, microseconds
//!                             {"ph":"E", "ts":2.5, "pid":1, "tid":2}                 the innermost one ends
//!                             {"ph":"X", "ts":1.5, "dur":1, ...}                     both in one event
//!                             {"ph":"M", "name":"thread_name", "args":{"name":..}}
//! ```
//!
//! Other events (async, counters, flows) are no calls and are left out. A list that was never closed
//! is taken as it is, because those who are killed leave such.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;
use thalweg_model::{FuncId, Profile};

use super::ImportError;
use super::trees::Trees;

/// Some 40 bytes each in memory.
const MAX_EVENTS: usize = 100_000_000;
/// No thread calls as deep.
const MAX_DEPTH: usize = 1 << 22;

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    ph: Option<&'a RawValue>,
    #[serde(borrow, default)]
    ts: Option<&'a RawValue>,
    #[serde(borrow, default)]
    dur: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pid: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tid: Option<&'a RawValue>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    cat: Option<String>,
    #[serde(borrow, default)]
    args: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Clone, Copy)]
enum Kind {
    Begin(FuncId),
    End,
    /// With its length.
    Whole(FuncId, u64),
}

#[derive(Clone, Copy)]
struct Call {
    at_ns: u64,
    kind: Kind,
}

struct Reader {
    trees: Trees,
    /// By the process's and the thread's number.
    threads: HashMap<(u32, u32), Vec<Call>>,
    thread_names: HashMap<(u32, u32), String>,
    /// Processes and threads that have names in the place of numbers.
    words: HashMap<String, u32>,
    events: usize,
    too_many: bool,
}

pub fn looks_like_it(head: &str) -> bool {
    let head = head.trim_start();
    let list = head.strip_prefix('[').map(str::trim_start);
    list.is_some_and(|rest| rest.starts_with(['{', ']']))
        || head.starts_with('{') && head.contains("\"traceEvents\"")
}

pub fn read(text: &str) -> Result<Profile, ImportError> {
    let mut reader = Reader {
        trees: Trees::new("a Chrome trace"),
        threads: HashMap::new(),
        thread_names: HashMap::new(),
        words: HashMap::new(),
        events: 0,
        too_many: false,
    };
    let mut input = serde_json::Deserializer::from_str(text);
    let read = match text.trim_start().starts_with('[') {
        true => Events(&mut reader).deserialize(&mut input),
        false => Whole(&mut reader).deserialize(&mut input),
    };
    let cut_short = match read {
        Ok(()) => false,
        Err(_) if reader.too_many => return Err(ImportError::TooLarge("100 million events")),
        Err(error) if error.is_eof() && reader.events > 0 => true,
        Err(error) => return Err(ImportError::Malformed(error.to_string())),
    };
    reader.finish(cut_short)
}

/// `{"traceEvents": [...], ...}`
struct Whole<'r>(&'r mut Reader);

impl<'de> DeserializeSeed<'de> for Whole<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "an object with traceEvents")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => map.next_value_seed(Events(&mut *self.0))?,
                _ => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

/// `[{...}, ...]`: one event at a time.
struct Events<'r>(&'r mut Reader);

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(event) = list.next_element::<Event>()? {
            self.0.take(&event);
            if self.0.events > MAX_EVENTS {
                self.0.too_many = true;
                return Err(A::Error::custom("too many events"));
            }
        }
        Ok(())
    }
}

impl Reader {
    fn take(&mut self, event: &Event) {
        let pid = self.number(event.pid).unwrap_or(0);
        let tid = self.number(event.tid).unwrap_or(pid);
        let name = event.name.as_deref().unwrap_or_default();
        match event.ph.map(RawValue::get) {
            Some("\"M\"") if name == "thread_name" => {
                let args = event.args.map(RawValue::get).unwrap_or_default();
                if let Ok(named) = serde_json::from_str::<Named>(args) {
                    self.thread_names.insert((pid, tid), named.name);
                }
            }
            Some(kind @ ("\"B\"" | "\"E\"" | "\"X\"")) => {
                let Some(at_ns) = event.ts.and_then(|ts| nanoseconds(ts.get())) else {
                    return;
                };
                let length = event.dur.and_then(|dur| nanoseconds(dur.get()));
                let kind = match kind {
                    "\"E\"" => Kind::End,
                    _ => {
                        let module = self.trees.module(event.cat.as_deref().unwrap_or(""), "");
                        let function = self.trees.function(module, name, 0, None, 0);
                        match kind {
                            "\"B\"" => Kind::Begin(function),
                            _ => Kind::Whole(function, length.unwrap_or(0)),
                        }
                    }
                };
                self.events += 1;
                let calls = self.threads.entry((pid, tid)).or_default();
                calls.push(Call { at_ns, kind });
            }
            _ => {}
        }
    }

    /// Of a process or a thread: a number, or a name, which gets one that none is likely to have.
    fn number(&mut self, value: Option<&RawValue>) -> Option<u32> {
        let text = value?.get();
        if let Ok(number) = text.parse() {
            return Some(number);
        }
        let next = u32::MAX - self.words.len() as u32;
        Some(*self.words.entry(text.to_string()).or_insert(next))
    }

    fn finish(mut self, cut_short: bool) -> Result<Profile, ImportError> {
        let mut threads: Vec<_> = std::mem::take(&mut self.threads).into_iter().collect();
        threads.sort_by_key(|(numbers, _)| *numbers);
        let first = threads.iter().flat_map(|(_, calls)| calls);
        let first = first.map(|call| call.at_ns).min().unwrap_or(0);
        let mut last = first;
        let mut odd = Odd::default();
        for ((pid, tid), calls) in threads {
            let name = self.thread_names.remove(&(pid, tid)).unwrap_or_default();
            let thread = self.trees.thread(pid, tid, &name);
            let mut building = Building::new(&mut self.trees, thread);
            building.all(calls, &mut odd)?;
            last = last.max(building.latest);
        }
        self.trees.start_at(first);
        self.trees.meta.duration_ns = last - first;
        let mut notes = vec![
            "imported from a trace of entries and exits: times are wall time, with what functions \
             waited for in their own"
                .to_string(),
        ];
        notes.extend(cut_short.then(|| "the trace is cut short".to_string()));
        notes.extend((odd.open > 0).then(|| {
            format!(
                "{} of the calls had not ended: they have the time until their thread's last event",
                odd.open
            )
        }));
        notes.extend((odd.ends > 0).then(|| {
            format!(
                "{} of the exits have no entry in the trace and are left out",
                odd.ends
            )
        }));
        self.trees.notes.extend(notes);
        self.trees.finish_as_is()
    }
}

#[derive(Default)]
struct Odd {
    open: u64,
    ends: u64,
}

/// A call that has not ended.
struct Open {
    node: u32,
    start_ns: u64,
    /// Known beforehand where one event tells of both ends.
    end_ns: Option<u64>,
    in_callees: u64,
}

struct Building<'t> {
    trees: &'t mut Trees,
    thread: usize,
    stack: Vec<Open>,
    latest: u64,
}

impl Building<'_> {
    fn new(trees: &mut Trees, thread: usize) -> Building<'_> {
        Building {
            trees,
            thread,
            stack: Vec::new(),
            latest: 0,
        }
    }

    /// Events that tell of both ends may come in any order; the others come as they happened.
    fn all(&mut self, mut calls: Vec<Call>, odd: &mut Odd) -> Result<(), ImportError> {
        let end = |call: &Call| match call.kind {
            Kind::Whole(_, length) => call.at_ns.saturating_add(length),
            _ => call.at_ns,
        };
        self.latest = calls.iter().map(end).max().unwrap_or(0);
        let outer_first = |call: &Call| match call.kind {
            Kind::Whole(_, length) => u64::MAX - length,
            _ => 0,
        };
        match calls
            .iter()
            .all(|call| matches!(call.kind, Kind::Whole(..)))
        {
            true => calls.sort_by_key(|call| (call.at_ns, outer_first(call))),
            false => calls.sort_by_key(|call| call.at_ns),
        }
        for call in calls {
            self.trees.seen_at(self.thread, call.at_ns);
            self.end_before(call.at_ns);
            match call.kind {
                Kind::Begin(function) => self.begin(function, call.at_ns, None)?,
                Kind::Whole(function, length) => {
                    let end = call.at_ns.saturating_add(length);
                    self.begin(function, call.at_ns, Some(end))?;
                }
                Kind::End => {
                    let begun = self.stack.iter().rposition(|open| open.end_ns.is_none());
                    match begun {
                        None => odd.ends += 1,
                        // What it made does not outlive it.
                        Some(begun) => {
                            while self.stack.len() > begun {
                                self.end(call.at_ns);
                            }
                        }
                    }
                }
            }
        }
        while let Some(open) = self.stack.last() {
            odd.open += u64::from(open.end_ns.is_none());
            let end = open.end_ns.unwrap_or(self.latest);
            self.end(end);
        }
        self.trees.seen_at(self.thread, self.latest);
        Ok(())
    }

    /// Calls whose ends were known beforehand, and that have come.
    fn end_before(&mut self, now: u64) {
        while let Some(&Open {
            end_ns: Some(end), ..
        }) = self.stack.last()
        {
            if end > now {
                break;
            }
            self.end(end);
        }
    }

    fn begin(
        &mut self,
        function: FuncId,
        at_ns: u64,
        end_ns: Option<u64>,
    ) -> Result<(), ImportError> {
        if self.stack.len() >= MAX_DEPTH {
            return Err(ImportError::TooLarge("4 million calls in each other"));
        }
        let above = self.stack.last();
        let parent = above.map(|open| open.node);
        // None ends after the one that made it.
        let limit = above.and_then(|open| open.end_ns);
        let end_ns = end_ns.map(|end| limit.map_or(end, |limit| end.min(limit)));
        let node = self.trees.child(self.thread, parent, function)?;
        self.stack.push(Open {
            node,
            start_ns: at_ns,
            end_ns,
            in_callees: 0,
        });
        Ok(())
    }

    fn end(&mut self, at_ns: u64) {
        let Some(open) = self.stack.pop() else { return };
        let total = at_ns.saturating_sub(open.start_ns);
        let own = total.saturating_sub(open.in_callees);
        let node = self.trees.node(self.thread, open.node);
        node.min = match node.calls {
            0 => own,
            _ => node.min.min(own),
        };
        node.max = node.max.max(own);
        node.calls = node.calls.saturating_add(1);
        node.self_ns = node.self_ns.saturating_add(own);
        node.total_ns = node.total_ns.saturating_add(total);
        if let Some(caller) = self.stack.last_mut() {
            caller.in_callees = caller.in_callees.saturating_add(total);
        }
    }
}

/// Microseconds as decimal text, to the nanosecond: a number with a fraction has no bits for both a
/// date and that.
fn nanoseconds(text: &str) -> Option<u64> {
    let text = text.trim_matches('"');
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        // With an exponent, or below zero.
        let value: f64 = text.parse().ok()?;
        return (0.0..1e15)
            .contains(&value)
            .then(|| (value * 1e3).round() as u64);
    }
    let mut below = 0;
    for place in 0..3 {
        let digit = fraction
            .as_bytes()
            .get(place)
            .map_or(0, |digit| digit - b'0');
        below = below * 10 + u64::from(digit);
    }
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000)?
        .checked_add(below)
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn times_are_exact_to_the_nanosecond_whatever_the_date() {
        assert_eq!(
            nanoseconds("1763596800123456.789"),
            Some(1_763_596_800_123_456_789)
        );
        assert_eq!(nanoseconds("4.5"), Some(4_500));
        assert_eq!(nanoseconds("0.0019"), Some(1));
        assert_eq!(nanoseconds("\"12\""), Some(12_000));
        assert_eq!(nanoseconds("1.5e3"), Some(1_500_000));
        for bad in [
            "",
            "-1",
            "x",
            "1.x",
            "null",
            "1e400",
            "99999999999999999999",
        ] {
            assert_eq!(nanoseconds(bad), None, "{bad}");
        }
    }
}
