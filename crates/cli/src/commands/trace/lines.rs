//! Recorded calls as lines, in the order in which things happened: a call that made others that are shown has two.

use std::collections::HashSet;

use thalweg_formats::calls::Calls;
use thalweg_model::{Call, CallEnd};

use crate::report::{Paint, Style, cut, printable, time};

const MIN_NAME_WIDTH: usize = 16;
/// Deeper calls are not moved further to the right.
const MAX_INDENT: usize = 24;

/// What was printed so far.
pub struct Lines {
    style: Style,
    /// Calls that were printed, whole.
    done: HashSet<u64>,
    /// Of those whose beginning was printed and whose end was not.
    begun: HashSet<u64>,
    count: u64,
}

/// A line, and when what it tells happened.
struct Event {
    at_ns: u64,
    order: usize,
    text: String,
}

impl Lines {
    pub fn new(style: Style) -> Lines {
        Lines {
            style,
            done: HashSet::new(),
            begun: HashSet::new(),
            count: 0,
        }
    }

    /// How many calls were printed.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn head(&self) -> Vec<u8> {
        format!("{:>12}  {:>10}  {:>7}  Call\n", "At", "Total", "Thread").into_bytes()
    }

    /// Those chosen calls that were not printed yet and for which `is_due` holds, at most so many in all.
    pub fn of(
        &mut self,
        calls: &Calls,
        most: Option<u64>,
        is_due: impl Fn(&Call) -> bool,
    ) -> Vec<u8> {
        let all = calls.all();
        let mut levels: Vec<usize> = Vec::with_capacity(all.len());
        let mut nests = vec![false; all.len()];
        for call in all {
            let above = chosen_above(all, call);
            levels.push(above.map_or(0, |above| levels[above] + 1));
            // One that stays open because the recording ended has nothing to add.
            if let Some(above) = above.filter(|_| call.rule.is_some()) {
                nests[above] = true;
            }
        }
        let mut events: Vec<Event> = Vec::new();
        for (index, call) in all.iter().enumerate() {
            if call.rule.is_none() || self.done.contains(&call.id) {
                continue;
            }
            let has_begun = self.begun.contains(&call.id);
            let ended = is_due(call);
            if !has_begun && most.is_some_and(|most| self.count >= most) {
                continue;
            }
            let mut event = |at_ns, order, text| {
                events.push(Event { at_ns, order, text });
            };
            let level = levels[index];
            if !has_begun {
                if !ended && !nests[index] {
                    continue;
                }
                self.count += 1;
                if !ended || nests[index] {
                    event(call.entry_ns, index, self.begin(calls, call, level));
                    self.begun.insert(call.id);
                } else {
                    event(call.entry_ns, index, self.whole(calls, call, level));
                }
            }
            if ended {
                if self.begun.remove(&call.id) {
                    let order = usize::MAX - index;
                    event(call.exit_ns, order, self.end(calls, call, level));
                }
                self.done.insert(call.id);
            }
        }
        events.sort_by_key(|event| (event.at_ns, event.order));
        let lines = events.into_iter().map(|event| event.text);
        lines.collect::<String>().into_bytes()
    }

    fn whole(&self, calls: &Calls, call: &Call, level: usize) -> String {
        let text = format!("{}{}", entered(calls, call), left(calls, call));
        self.line(call, call.entry_ns, Some(call.total_ns()), level, &text)
    }

    fn begin(&self, calls: &Calls, call: &Call, level: usize) -> String {
        let text = format!("{} {{", entered(calls, call));
        self.line(call, call.entry_ns, None, level, &text)
    }

    fn end(&self, calls: &Calls, call: &Call, level: usize) -> String {
        let name = printable(calls.function(call));
        let text = format!("}}{}  {name}", left(calls, call));
        self.line(call, call.exit_ns, Some(call.total_ns()), level, &text)
    }

    fn line(
        &self,
        call: &Call,
        at_ns: u64,
        total_ns: Option<u64>,
        level: usize,
        text: &str,
    ) -> String {
        let total = match (total_ns, call.end) {
            (None, _) => String::new(),
            (_, CallEnd::Open | CallEnd::Lost) => "?".to_string(),
            (Some(ns), _) => time(ns).trim().to_string(),
        };
        let figures = format!(
            "{:>10.6} s  {total:>10}  {:>7}  ",
            at_ns as f64 / 1e9,
            call.tid
        );
        let indent = "  ".repeat(level.min(MAX_INDENT));
        let room = self
            .style
            .width
            .map(|width| width.saturating_sub(figures.len() + indent.len()));
        let text = match room {
            Some(room) => cut(text, room.max(MIN_NAME_WIDTH)),
            None => text.into(),
        };
        let text = match call.end {
            CallEnd::Returned | CallEnd::Open => text.into_owned(),
            _ => self.style.paint(Paint::Hot, &text).to_string(),
        };
        format!("{figures}{indent}{text}\n")
    }
}

/// The nearest caller that is shown as well.
fn chosen_above(all: &[Call], call: &Call) -> Option<usize> {
    let mut at = call.parent;
    while let Some(index) = at {
        let above = &all[index as usize];
        if above.rule.is_some() {
            return Some(index as usize);
        }
        at = above.parent;
    }
    None
}

/// `query(sql="select 7", n=7)`
fn entered(calls: &Calls, call: &Call) -> String {
    let values = calls.values(call).filter(|(_, at_entry, _)| *at_entry);
    let values: Vec<String> = values
        .map(|(name, _, json)| format!("{}={}", printable(name), value(json)))
        .collect();
    let name = printable(calls.function(call));
    // Names of C++ and Rust have the types of their arguments already.
    match name.ends_with(')') && values.is_empty() {
        true => name.into_owned(),
        false => format!(
            "{}({})",
            name.split('(').next().unwrap_or(&name),
            values.join(", ")
        ),
    }
}

/// As one would write it: addresses are no texts.
fn value(json: &str) -> String {
    let bare = json
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    let is_address = |text: &&str| {
        let digits = text.strip_prefix("0x");
        digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    match bare.filter(is_address) {
        Some(address) => address.to_string(),
        None if json.starts_with("{\"missing\"") => "?".to_string(),
        None => printable(json).into_owned(),
    }
}

/// ` = -7`, and what became of it otherwise.
fn left(calls: &Calls, call: &Call) -> String {
    let mut text = String::new();
    for (name, at_entry, json) in calls.values(call) {
        if at_entry {
            continue;
        }
        match name {
            // There is none.
            "ret" if call.end != CallEnd::Returned => {}
            "ret" => text.push_str(&format!(" = {}", value(json))),
            _ => text.push_str(&format!("  {}={}", printable(name), value(json))),
        }
    }
    if call.end != CallEnd::Returned {
        text.push_str(&format!("  [{}]", call.end.word()));
    }
    text
}
