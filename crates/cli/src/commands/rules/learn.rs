//! `thalweg rules learn`: rules for what went wrong in an earlier recording, so that the next one
//! shows those calls one by one.
//!
//! ```text
//! left by exceptions, in the trees              -> exception
//! ret < 0, errno, an Err, in recorded calls     -> ret < 0
//! durations of recorded calls                   -> duration > what 99 of 100 took
//! one call far above its function's mean        -> duration > half of the longest
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::Value;
use thalweg_analysis::{FunctionTotals, flat};
use thalweg_formats::calls::Calls;
use thalweg_model::{Call, CallEnd, FuncId, Language, OutputFile, Profile};
use thalweg_rules::Rule;
use thalweg_views::command_line;

use crate::args::InputArgs;
use crate::report::{count, counted, printable, time_inline};

/// A rule keeps no more calls a second, so that what is usual in the next recording does no harm.
const MAX_PER_SECOND: u32 = 100;
/// Recorded calls of a function from which its usual duration is known.
const MIN_RECORDED: usize = 20;
/// A single call is slow if it took so many times what calls of its function take, and so long.
const MIN_TIMES_MEAN: u64 = 10;
const MIN_SLOW_NS: u64 = 100_000;
/// Calls from which a mean says something.
const MIN_CALLS: u64 = 10;

/// Propose rules for the calls that failed or were slow in a recording
///
/// Failed are calls that an exception left, and recorded ones that returned less than 0 or an error.
/// Slow are calls that took far longer than others of their function.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// Write the rules to this file [default: to standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// At most so many rules for failed calls, and as many for slow ones
    #[arg(short = 'n', long, value_name = "RULES", default_value_t = 5)]
    pub limit: usize,
}

/// What is to be recorded, and what the arguments are called there.
#[derive(Clone, Default)]
struct Values {
    names: String,
    record: Vec<String>,
}

/// A rule, and what it was learned from.
#[derive(Debug, PartialEq)]
struct Proposal {
    name: String,
    function: String,
    when: String,
    record: Vec<String>,
    why: String,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let profile = args.input.read()?;
    let proposals = propose(&profile, args.limit);
    if proposals.is_empty() {
        bail!(
            "no call in {} failed or took far longer than others of its function: there is nothing to learn",
            args.input.origin()
        );
    }
    let text = file_text(&profile, &args.input.origin(), &proposals);
    let Some(path) = &args.output else {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())
            .context("cannot write to standard output")?;
        return Ok(ExitCode::SUCCESS);
    };
    OutputFile::create(path)?.save_with(|file| file.write_all(text.as_bytes()))?;
    let path = path.display();
    tell!(
        "{} in {path}. Next:\n  thalweg record --rules {path} -- COMMAND   record what they choose\n  \
         thalweg rules -p PID --add-file {path}    in a process that is recorded already",
        counted(proposals.len() as u64, "rule", "rules")
    );
    Ok(ExitCode::SUCCESS)
}

fn propose(profile: &Profile, limit: usize) -> Vec<Proposal> {
    let rows = flat(profile);
    let recorded = Recorded::of(profile);
    let mut names = Names::default();
    let mut proposals = Vec::new();
    for (kind, found) in [
        ("failed", failing(&rows, profile, &recorded)),
        ("slow", slow(&rows, profile, &recorded)),
    ] {
        let named = heaviest(found).filter_map(|found| names.proposal(profile, kind, found));
        proposals.extend(named.take(limit));
    }
    proposals
}

/// Chosen calls by function, and what their rules recorded.
struct Recorded<'a> {
    calls: Calls<'a>,
    of: BTreeMap<FuncId, Vec<&'a Call>>,
}

impl<'a> Recorded<'a> {
    fn of(profile: &'a Profile) -> Recorded<'a> {
        let calls = Calls::new(profile);
        let mut of: BTreeMap<FuncId, Vec<&Call>> = BTreeMap::new();
        let chosen = calls.all().iter().filter(|call| call.rule.is_some());
        for call in chosen {
            of.entry(call.function).or_default().push(call);
        }
        Recorded { calls, of }
    }

    /// What the rules of a function's calls recorded, as it was written.
    fn values(&self, calls: &[&Call]) -> Values {
        let mut values = Values::default();
        let rules: BTreeSet<u32> = calls.iter().filter_map(|call| call.rule).collect();
        let one_of_each = |rule: &u32| calls.iter().find(|call| call.rule == Some(*rule));
        for call in rules.iter().filter_map(one_of_each) {
            let text = self.calls.rule(call).unwrap_or_default();
            let Ok(rule) = Rule::parse(text) else {
                continue;
            };
            let names = rule.names.iter();
            let names: Vec<&str> = names.map(|name| name.as_deref().unwrap_or("_")).collect();
            let names = names.join(", ");
            // What a rule records that calls the arguments otherwise cannot be asked for as well.
            if values.record.is_empty() {
                values.names = names;
            } else if values.names != names {
                continue;
            }
            let clauses = text.split(';').skip(1).map(str::trim);
            let clauses = clauses.filter_map(|clause| clause.strip_prefix("record "));
            for value in clauses.flat_map(|clause| clause.split(',')).map(str::trim) {
                if !values.record.iter().any(|known| known == value) {
                    values.record.push(value.to_string());
                }
            }
        }
        values
    }

    /// How a call failed by what was read of it, as a condition.
    fn failure(&self, call: &'a Call) -> Option<&'static str> {
        let at_exit = self.calls.values(call).filter(|(_, at_entry, _)| !at_entry);
        let mut errno = None;
        for (name, _, json) in at_exit {
            let value: Value = serde_json::from_str(json).unwrap_or(Value::Null);
            match name.split(':').next().unwrap_or(name) {
                "ret" if value.as_f64().is_some_and(|n| n < 0.0) => return Some("ret < 0"),
                "ret" if is_err(&value) => return Some("ret is Err"),
                "errno" if value.as_i64().is_some_and(|n| n != 0) => errno = Some("errno != 0"),
                _ => {}
            }
        }
        errno
    }
}

/// Rust's `Err`, as recorded values are told.
fn is_err(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.contains_key("Err"),
        Value::String(text) => text.starts_with("Err("),
        _ => false,
    }
}

/// What may become a rule; those that weigh most do.
struct Found {
    weight: u64,
    function: FuncId,
    when: String,
    values: Values,
    why: String,
}

fn heaviest(mut found: Vec<Found>) -> impl Iterator<Item = Found> {
    found.sort_by_key(|found| (std::cmp::Reverse(found.weight), found.function));
    found.into_iter()
}

/// Most failures first.
fn failing(rows: &[FunctionTotals], profile: &Profile, recorded: &Recorded) -> Vec<Found> {
    let mut found = Vec::new();
    for row in rows.iter().filter(|row| row.unwound > 0) {
        if !can_fail(profile, row.function) {
            continue;
        }
        found.push(Found {
            weight: row.unwound,
            function: row.function,
            when: "exception".to_string(),
            values: Values::default(),
            why: format!(
                "{} of {} {} left by an exception, a longjmp or a cancellation",
                count(row.unwound),
                counted(row.calls, "call", "calls"),
                if row.unwound == 1 { "was" } else { "were" }
            ),
        });
    }
    for (&function, calls) in &recorded.of {
        let mut by_condition: BTreeMap<&'static str, u64> = BTreeMap::new();
        for condition in calls.iter().filter_map(|call| recorded.failure(call)) {
            *by_condition.entry(condition).or_default() += 1;
        }
        for (condition, failures) in by_condition {
            found.push(Found {
                weight: failures,
                function,
                when: condition.to_string(),
                values: recorded.values(calls),
                why: format!(
                    "{} of {} had {condition}",
                    count(failures),
                    counted(calls.len() as u64, "recorded call", "recorded calls")
                ),
            });
        }
    }
    found
}

/// Calls of the C library and of what unwinds are left whenever somebody else's are. Interpreters'
/// exceptions return.
fn can_fail(profile: &Profile, function: FuncId) -> bool {
    let function = &profile.functions[function];
    let module = profile.modules.get(function.module as usize);
    let module = module.map_or("", |module| module.name.as_str());
    let runtimes = [
        "libc.so",
        "libstdc++.so",
        "libgcc_s.so",
        "ld-linux",
        "libpthread.so",
    ];
    let is_compiled = matches!(function.language, Language::Native | Language::Go);
    is_compiled && !runtimes.iter().any(|runtime| module.starts_with(runtime))
}

/// Those that took longest first.
fn slow(rows: &[FunctionTotals], profile: &Profile, recorded: &Recorded) -> Vec<Found> {
    let mut found = Vec::new();
    let longer_than = |ns: u64| format!("duration > {}", rounded(ns));
    for (&function, calls) in &recorded.of {
        let ended = |call: &&&Call| call.end == CallEnd::Returned;
        let mut durations: Vec<u64> = calls.iter().filter(ended).map(|c| c.total_ns()).collect();
        durations.sort_unstable();
        let (Some(&longest), true) = (durations.last(), durations.len() >= MIN_RECORDED) else {
            continue;
        };
        let usual = durations[(durations.len() - 1) * 99 / 100];
        found.push(Found {
            weight: longest,
            function,
            when: longer_than(usual),
            values: recorded.values(calls),
            why: format!(
                "99 of 100 recorded calls took {} at most, the longest {}",
                time_inline(usual),
                time_inline(longest)
            ),
        });
    }
    let timed = profile.meta.timed;
    for row in rows.iter().filter(|row| timed && row.calls >= MIN_CALLS) {
        let mean = row.total_ns / row.calls;
        let is_slow = row.max >= MIN_SLOW_NS
            && row.max >= (row.self_ns / row.calls).saturating_mul(MIN_TIMES_MEAN)
            // Otherwise usual calls would be kept.
            && row.max / 2 >= mean.saturating_mul(2);
        if !is_slow || recorded.of.contains_key(&row.function) {
            continue;
        }
        found.push(Found {
            weight: row.max,
            function: row.function,
            when: longer_than(row.max / 2),
            values: Values::default(),
            why: format!(
                "one of {} took {} by itself, the mean with callees is {}",
                counted(row.calls, "call", "calls"),
                time_inline(row.max),
                time_inline(mean)
            ),
        });
    }
    found
}

/// Two digits, in a unit that rules know: `4.7ms`, `250us`.
fn rounded(ns: u64) -> String {
    let (unit, scale) = [("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)]
        .into_iter()
        .find(|(_, scale)| ns as f64 >= *scale)
        .unwrap_or(("ns", 1.0));
    let value = ns as f64 / scale;
    let digits = 10f64.powi(value.max(1.0).log10().floor() as i32 - 1);
    let value = (value / digits).floor() * digits;
    match value < 10.0 {
        true => format!("{value:.1}{unit}"),
        false => format!("{value:.0}{unit}"),
    }
}

/// Names of rules that are taken.
#[derive(Default)]
struct Names(BTreeMap<String, u32>);

impl Names {
    /// `None`: the function cannot be named in a rule.
    fn proposal(&mut self, profile: &Profile, kind: &str, found: Found) -> Option<Proposal> {
        let mut pattern = pattern(profile, found.function)?;
        if !found.values.names.is_empty() {
            pattern = format!("{pattern}({})", found.values.names);
        }
        let when = format!("{} and {MAX_PER_SECOND}/s", found.when);
        Rule::parse(&format!("{pattern}: {when}")).ok()?;
        let name = &profile.functions[found.function].name;
        let plain = name.split(['(', '<']).next().unwrap_or_default();
        let plain = plain.rsplit([':', '.', '/']).next().unwrap_or_default();
        let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let plain: String = plain.chars().map(word).collect();
        let name = format!("{kind}_{}", plain.trim_matches('_'));
        let taken = self.0.entry(name.clone()).or_default();
        *taken += 1;
        let name = match *taken {
            1 => name,
            number => format!("{name}_{number}"),
        };
        Some(Proposal {
            name,
            function: pattern,
            when,
            record: found.values.record,
            why: found.why,
        })
    }
}

/// `libc.so.6!read`, `server!/^db::query\(int\)$/`
fn pattern(profile: &Profile, function: FuncId) -> Option<String> {
    let function = &profile.functions[function];
    let module = &profile.modules.get(function.module as usize)?.name;
    if module.is_empty() || module.contains('/') || function.name.contains('[') {
        return None;
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_plain = |text: &str| {
        text.chars().all(|c| is_word(c) || c == ':') && !text.starts_with(|c: char| c.is_numeric())
    };
    let module = match module.chars().all(|c| is_word(c) || ".-".contains(c)) {
        true => module.clone(),
        false => format!("^{}$", regex::escape(module)),
    };
    let name = match is_plain(&function.name) {
        true => function.name.clone(),
        false => format!("/^{}$/", regex::escape(&function.name)),
    };
    Some(format!("{module}!{name}"))
}

fn file_text(profile: &Profile, origin: &str, proposals: &[Proposal]) -> String {
    let mut text = format!(
        "# Learned from {}: {}\n",
        printable(origin),
        printable(&command_line(&profile.meta.command)).replace('\n', " ")
    );
    for proposal in proposals {
        text.push_str(&format!("\n# {}\n[[rule]]\n", proposal.why));
        let mut line = |key: &str, value: &str| {
            text.push_str(&format!("{key} = {}\n", Value::from(value)));
        };
        line("name", &proposal.name);
        line("function", &proposal.function);
        line("when", &proposal.when);
        if !proposal.record.is_empty() {
            line("record", &proposal.record.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_model::{Function, Meta, Module, Node, Process, Thread};
    use thalweg_rules::RulesFile;

    fn profile(nodes: Vec<Node>) -> Profile {
        let names = ["main", "db::query(int, char const*)", "get", "memcpy"];
        let functions = names
            .iter()
            .zip([0, 0, 0, 1])
            .map(|(name, module)| Function {
                name: name.to_string(),
                module,
                ..Function::default()
            });
        let module = |name: &str| Module {
            name: name.into(),
            ..Module::default()
        };
        Profile {
            meta: Meta {
                timed: true,
                ..Meta::default()
            },
            modules: vec![module("server"), module("libstdc++.so.6")],
            functions: functions.collect(),
            processes: vec![Process {
                pid: 1,
                threads: vec![Thread {
                    tid: 1,
                    nodes,
                    ..Thread::default()
                }],
                ..Process::default()
            }],
            ..Profile::default()
        }
    }

    fn node(function: u32, calls: u64, self_ns: u64, max: u64, unwound: u64) -> Node {
        Node {
            function: FuncId(function),
            calls,
            self_ns,
            total_ns: self_ns,
            max,
            unwound,
            ..Node::default()
        }
    }

    #[test]
    fn what_was_left_by_exceptions_and_what_took_far_longer_than_usual_becomes_a_rule() {
        let profile = profile(vec![
            node(0, 1, 5_000_000, 5_000_000, 0),
            node(1, 300, 300_000, 2_000, 12),
            node(2, 1000, 9_000_000, 4_700_000, 0),
            node(3, 20, 1000, 50, 20),
        ]);
        let learned = propose(&profile, 5);
        let told: Vec<(&str, &str)> = learned
            .iter()
            .map(|p| (p.function.as_str(), p.when.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                (
                    r"server!/^db::query\(int, char const\*\)$/",
                    "exception and 100/s"
                ),
                ("server!get", "duration > 2.3ms and 100/s"),
            ]
        );
        let text = file_text(&profile, "p.thalweg", &learned);
        let file = RulesFile::parse(&text, "learned.toml").expect("rules");
        assert_eq!(file.rules.len(), 2);
        assert_eq!(file.rules[0].name.as_deref(), Some("failed_query"));
        assert!(text.contains("# 12 of 300 calls were left by"), "{text}");
        assert!(
            file.rules[0]
                .pattern
                .matches("server", "db::query(int, char const*)", None)
        );
        assert!(
            !file.rules[0]
                .pattern
                .matches("server", "db::query(int)", None)
        );
    }

    #[test]
    fn recorded_calls_that_returned_less_than_zero_are_looked_for_again_with_their_values() {
        let mut profile = profile(vec![node(2, 25, 25_000, 1_000, 0)]);
        profile.recorded.rules.push(thalweg_model::Rule {
            text: "get(n): n > 3; record n, ret".into(),
            kept: 25,
        });
        profile.recorded.names = vec!["n".into(), "ret".into()];
        for number in 0..25u64 {
            let json = if number < 4 { "-1" } else { "7" };
            let value = thalweg_model::CallValue {
                name: 1,
                at_entry: false,
                json,
            };
            let values = profile.recorded.values.add([value]);
            profile.recorded.calls.push(Call {
                id: number,
                function: FuncId(2),
                rule: Some(0),
                exit_ns: (number + 1) * 1_000_000,
                values,
                ..Call::default()
            });
        }
        let learned = propose(&profile, 5);
        assert_eq!(learned.len(), 2);
        assert_eq!(learned[0].when, "ret < 0 and 100/s");
        assert_eq!(learned[0].function, "server!get(n)");
        assert_eq!(learned[0].record, ["n", "ret"]);
        assert_eq!(learned[0].why, "4 of 25 recorded calls had ret < 0");
        assert_eq!(learned[1].when, "duration > 24ms and 100/s");
    }

    #[test]
    fn times_are_written_as_rules_read_them() {
        let texts = [999, 1_000, 47_512, 4_750_000, 123_456_789, 2_000_000_000].map(rounded);
        assert_eq!(texts, ["990ns", "1.0us", "47us", "4.7ms", "120ms", "2.0s"]);
        for text in texts {
            Rule::parse(&format!("f: duration > {text}")).expect("a rule");
        }
    }
}
