//! `thalweg calls`: calls that were recorded one by one, as trees or as a list.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use thalweg_formats::calls::Calls;
use thalweg_model::{Call, CallEnd, FuncId, Profile};

use super::style::{Paint, Style};
use super::text::{TIME_WIDTH, count, counted, cut, printable, time, time_inline};

const MIN_NAME_WIDTH: usize = 10;

/// Of how many functions it is said how they are declared.
const MAX_SIGNATURES: usize = 20;

/// The calls that pass a filter, by index, each below the calls above it.
pub fn print_call_tree(
    profile: &Profile,
    chosen: &[bool],
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let calls = Calls::new(profile);
    let shown = with_callers(calls.all(), chosen);
    let mut levels = vec![0u32; calls.all().len()];
    for (index, call) in calls.all().iter().enumerate() {
        levels[index] = call.parent.map_or(0, |parent| levels[parent as usize] + 1);
    }
    let mut last = None;
    for index in together(calls.all()) {
        let call = &calls.all()[index];
        if !shown[index] {
            continue;
        }
        let group = group_of(call);
        if last != Some(group) {
            if last.is_some() {
                writeln!(out)?;
            }
            writeln!(out, "{}", style.paint(Paint::Title, &title(&calls, call)))?;
            heading(out, style)?;
        }
        last = Some(group);
        row(&calls, call, levels[index], out, style)?;
    }
    let mut seen = Seen::default();
    for (call, _) in calls
        .all()
        .iter()
        .zip(chosen)
        .filter(|(_, chosen)| **chosen)
    {
        seen.add(call);
    }
    seen.any |= !calls.all().is_empty();
    footer(profile, &seen, out)
}

/// A request is one, whatever threads it was served by; other calls are their threads'.
fn group_of(call: &Call) -> (u32, u32, u64) {
    match call.request {
        0 => (call.pid, call.tid, 0),
        request => (call.pid, 0, request),
    }
}

/// Calls in their order, but for those of a request or thread, which stand together: rings of threads
/// are read by turns, so that calls of others may lie in between.
fn together(calls: &[Call]) -> Vec<usize> {
    let mut first: HashMap<(u32, u32, u64), usize> = HashMap::new();
    let numbered = calls.iter().enumerate();
    let key = |(index, call)| *first.entry(group_of(call)).or_insert(index);
    let firsts: Vec<usize> = numbered.map(key).collect();
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|&index| firsts[index]);
    order
}

/// The chosen calls alone, some after the other.
#[derive(Default)]
pub struct List {
    seen: Seen,
}

impl List {
    pub fn print(
        &mut self,
        calls: &Calls,
        call: &Call,
        out: &mut impl Write,
        style: Style,
    ) -> io::Result<()> {
        if call.rule.is_none() {
            return Ok(());
        }
        if self.seen.kept == 0 {
            heading(out, style)?;
        }
        self.seen.add(call);
        row(calls, call, 0, out, style)
    }

    /// `any`: there were calls, shown or not.
    pub fn finish(mut self, profile: &Profile, any: bool, out: &mut impl Write) -> io::Result<()> {
        self.seen.any = any;
        footer(profile, &self.seen, out)
    }
}

fn heading(out: &mut impl Write, style: Style) -> io::Result<()> {
    let heading = format!(
        "{:>12}  {:>width$}  {:>width$}  {:>width$}  {}",
        "At",
        "Total",
        "Self",
        "Waiting",
        "Call",
        width = TIME_WIDTH
    );
    writeln!(out, "{}", style.paint(Paint::Aside, &heading))
}

/// One call, without those around it.
pub fn print_call(
    calls: &Calls,
    call: &Call,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    row(calls, call, 0, out, style)
}

fn with_callers(calls: &[Call], chosen: &[bool]) -> Vec<bool> {
    let mut shown = chosen.to_vec();
    for (index, call) in calls.iter().enumerate().rev() {
        if let Some(parent) = call.parent
            && shown[index]
        {
            shown[parent as usize] = true;
        }
    }
    shown
}

fn title(calls: &Calls, call: &Call) -> String {
    let thread = printable(calls.thread(call));
    let of = match thread.is_empty() {
        true => format!("thread {}", call.tid),
        false => format!("thread {} {thread}", call.tid),
    };
    let of = match call.pid == call.tid {
        true => of,
        false => format!("{of} of process {}", call.pid),
    };
    match call.request {
        0 => of,
        request => format!("request {request}, {of}"),
    }
}

fn row(
    calls: &Calls,
    call: &Call,
    level: u32,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let known = !matches!(call.end, CallEnd::Lost);
    let span = |ns: u64| match known {
        true => time(ns),
        false => format!("{:>TIME_WIDTH$}", "?"),
    };
    let figures = format!(
        "{:>10.6} s  {}  {}  {}  ",
        call.entry_ns as f64 / 1e9,
        span(call.total_ns()),
        span(call.self_ns),
        span(call.waited_ns)
    );
    let indent = "  ".repeat(level as usize);
    let mut name = printable(calls.function(call)).into_owned();
    for (what, at_entry, json) in calls.values(call) {
        let arrow = if at_entry { "" } else { "-> " };
        name.push_str(&format!("  {arrow}{}={}", printable(what), printable(json)));
    }
    if call.end != CallEnd::Returned {
        name.push_str(&format!("  [{}]", call.end.word()));
    }
    let name = match style.width {
        Some(width) => {
            let room = width.saturating_sub(figures.len() + indent.len());
            cut(&name, room.max(MIN_NAME_WIDTH)).into_owned()
        }
        None => name,
    };
    let paint = match call.rule {
        Some(_) => Paint::Plain,
        None => Paint::Aside,
    };
    writeln!(out, "{figures}{indent}{}", style.paint(paint, &name))
}

/// What is said below of the calls that were shown.
#[derive(Default)]
struct Seen {
    any: bool,
    /// Those that a rule has chosen.
    kept: u64,
    /// Of each rule.
    longest: BTreeMap<u32, u64>,
    /// In the order in which they came.
    functions: Vec<FuncId>,
}

impl Seen {
    fn add(&mut self, call: &Call) {
        self.any = true;
        let Some(rule) = call.rule else {
            return;
        };
        self.kept += 1;
        let longest = self.longest.entry(rule).or_default();
        *longest = call.total_ns().max(*longest);
        if self.functions.len() < MAX_SIGNATURES && !self.functions.contains(&call.function) {
            self.functions.push(call.function);
        }
    }
}

fn footer(profile: &Profile, seen: &Seen, out: &mut impl Write) -> io::Result<()> {
    let recorded = &profile.recorded;
    if seen.any {
        writeln!(out)?;
    }
    writeln!(
        out,
        "{} chosen by {}",
        counted(seen.kept, "call", "calls"),
        counted(recorded.rules.len() as u64, "rule", "rules"),
    )?;
    for (number, rule) in (0..).zip(&recorded.rules) {
        let longest = seen.longest.get(&number);
        let longest = longest.map_or_else(String::new, |ns| {
            format!(", the longest took {}", time_inline(*ns))
        });
        writeln!(
            out,
            "  {}: {}{longest}",
            printable(&rule.text),
            count(rule.kept)
        )?;
    }
    let mut declared: Vec<(&str, &str)> = Vec::new();
    for function in &seen.functions {
        let name = profile.functions.get(function.index());
        if let (Some(function), Some(text)) = (name, recorded.signature(*function))
            && !declared.contains(&(&function.name, text))
        {
            declared.push((&function.name, text));
        }
    }
    for (name, text) in declared {
        writeln!(out, "  {} is {}", printable(name), printable(text))?;
    }
    if recorded.dropped > 0 {
        writeln!(
            out,
            "{} found no room and were dropped: see --record-memory and --keep-calls",
            counted(recorded.dropped, "chosen call", "chosen calls")
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_model::{Function, Process, Recorded, Rule};

    #[test]
    fn what_is_read_of_a_request_at_two_times_is_one_tree() {
        let call = |id, parent, tid, request| Call {
            id,
            parent,
            tid,
            request,
            pid: 7,
            rule: Some(0),
            ..Call::default()
        };
        let calls = vec![
            call(1, None, 7, 1),
            call(2, Some(0), 7, 1),
            call(3, None, 8, 2),
            call(4, Some(0), 9, 1),
            call(5, None, 7, 0),
        ];
        let profile = Profile {
            functions: vec![Function {
                name: "serve".into(),
                ..Function::default()
            }],
            processes: vec![Process {
                pid: 7,
                ..Process::default()
            }],
            recorded: Recorded {
                rules: vec![Rule {
                    text: "serve".into(),
                    kept: 5,
                }],
                calls,
                ..Recorded::default()
            },
            ..Profile::default()
        };
        let mut out = Vec::new();
        print_call_tree(&profile, &[true; 5], &mut out, Style::plain()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("request 1,").count(), 1, "{text}");
        assert_eq!(text.matches("request 2,").count(), 1, "{text}");
        let at = |what: &str| text.find(what).expect(what);
        assert!(at("request 1,") < at("request 2,"));
        let first = &text[at("request 1,")..at("request 2,")];
        assert_eq!(first.matches("serve").count(), 3, "{text}");
    }
}
