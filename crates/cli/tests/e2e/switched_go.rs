//! Go functions that are switched while goroutines are inside them: nothing is lost, nothing is invented, and nothing stays behind.

use thalweg_model::FuncId;

use crate::budget::{self, wait_until};
use crate::goroutines::{newer, program};
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::profile::Profile;
use crate::support::scratch::Scratch;
use crate::support::text::{assert_patched, assert_restored};
use crate::support::thalweg::{export, succeed};
use crate::support::watched::Recording;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Functions that are switched off now and then; all others are counted all the time. Goroutines wait in some of them, grow their stacks in another,
/// and leave others by panics and by Goexit.
const SOMETIMES_OFF: [&str; 7] = [
    "main.recurse",
    "main.visit",
    "main.consume",
    "main.catch",
    "main.leave",
    "main.ping",
    "main.(*node).insert",
];

fn goroutines(compiler: &Path, name: &str) -> PathBuf {
    program(compiler, "goroutines.go", name, &[])
}

/// A simple generator: the same orders on every run.
struct Draw(u64);

impl Draw {
    fn one_of<'a>(&mut self, these: &[&'a str]) -> &'a str {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        these[((self.0 >> 33) % these.len() as u64) as usize]
    }
}

/// Stops the program, which says what it has called.
fn own_counts(live: &mut Live) -> BTreeMap<String, u64> {
    let first = live.ask("stop");
    assert!(first.starts_with("answers"), "{first}");
    let mut counts = BTreeMap::new();
    loop {
        let line = live.line();
        match line.rsplit_once(' ') {
            Some((name, count)) => counts.insert(name.to_owned(), count.parse().expect("a count")),
            None => return counts,
        };
    }
}

/// The program ends well.
fn end(mut live: Live) {
    live.tell("end");
    let (rest, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}: {rest}");
}

/// A regular expression for just this name.
fn just(name: &str) -> String {
    let escaped = name.chars().flat_map(|c| {
        let slash = "().*".contains(c).then_some('\\');
        slash.into_iter().chain([c])
    });
    format!("^{}$", escaped.collect::<String>())
}

/// Switches this and that while the program runs. What is never off is counted to the unit.
fn switch_at_random(program: &Path, seed: u64) {
    let mut live = Live::ready(program, &["-", "wait"]);
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let before = live.text();
    succeed(&["attach", "--time", "all", &live.id()]);
    live.tell("go");
    let others = [
        r"^main\.(busy|produce|throw|unwind)$",
        r"^main\.(square|deferring|bigFrame)",
        r"^main\.(selecting|round|keep)",
        r"^main\..*func",
        "^(sync|fmt|strconv|os)",
    ];
    let mut draw = Draw(seed);
    for turn in 0..in_short_or_long(60, 1000) {
        let mut arguments = vec!["switch".to_owned(), live.id()];
        for name in SOMETIMES_OFF {
            let way = draw.one_of(&["--off", "--off", "--count", "--time-some", "--time"]);
            arguments.extend([way.to_owned(), just(name)]);
        }
        for names in others {
            let way = draw.one_of(&["--count", "--time-some", "--time"]);
            arguments.extend([way.to_owned(), names.to_owned()]);
        }
        let said = succeed(&arguments);
        assert!(
            (said.contains("function switched") || said.contains("functions switched"))
                && !said.contains("stays as it is"),
            "turn {turn}: {said}"
        );
        live.assert_healthy();
    }
    assert_patched(&before, &live.text());
    let own = own_counts(&mut live);
    succeed(&["detach", &live.id(), "-o", file.to_str().expect("UTF-8")]);
    assert_restored(&before, &live.text());
    end(live);
    assert_exact(&export(&file), &own);
}

#[track_caller]
fn assert_exact(profile: &Profile, own: &BTreeMap<String, u64>) {
    let seen = profile.calls_by_name();
    let mut compared = 0;
    for (name, &calls) in own {
        if profile.skipped.iter().any(|skipped| skipped.name == *name) {
            continue;
        }
        let counted = seen.get(name).copied().unwrap_or(0);
        if SOMETIMES_OFF.contains(&name.as_str()) {
            assert!(
                0 < counted && counted < calls,
                "{name}: {counted} of {calls}"
            );
        } else {
            compared += 1;
            assert_eq!(counted, calls, "calls of {name}");
        }
    }
    assert!(compared >= 6, "only {compared} functions were compared");
    let unwound = profile.nodes_named("main.throw").map(|(_, n)| n.unwound);
    assert_eq!(
        unwound.sum::<u64>(),
        seen.get("main.throw").copied().unwrap_or(0),
        "every call of throw ends in a panic"
    );
    for name in ["main.recurse", "main.visit", "main.busy"] {
        let unwound = profile.nodes_named(name).map(|(_, n)| n.unwound);
        assert_eq!(unwound.sum::<u64>(), 0, "{name} always returns");
    }
}

#[test]
fn go_counts_are_exact_through_switches() {
    switch_at_random(&goroutines(Path::new("go"), "switched"), 7);
}

#[test]
fn go_counts_of_another_version_are_exact_through_switches() {
    switch_at_random(&goroutines(&newer(), "switched-newer"), 11);
}

/// Calls that were counted up to now.
fn counted(live: &Live, name: &str) -> u64 {
    let scratch = Scratch::new();
    let file = scratch.join("now.thalweg");
    let path = file.to_str().expect("UTF-8");
    succeed(&["checkpoint", &live.id(), "-o", path, "-q"]);
    export(&file)
        .calls_by_name()
        .get(name)
        .copied()
        .unwrap_or(0)
}

#[test]
fn a_go_function_that_is_off_is_not_counted_and_comes_back() {
    let program = goroutines(Path::new("go"), "switched");
    let mut live = Live::ready(&program, &["-", "wait"]);
    let before = live.text();
    succeed(&["attach", "--time", "all", &live.id()]);
    live.tell("go");
    wait_until("it is counted", || counted(&live, "main.visit") > 0);
    let said = succeed(&["switch", &live.id(), "--off", r"^main\.visit$"]);
    assert!(said.contains("1 function switched, with a stop"), "{said}");
    let (off, others) = (counted(&live, "main.visit"), counted(&live, "main.recurse"));
    wait_until("others go on", || counted(&live, "main.recurse") > others);
    assert_eq!(counted(&live, "main.visit"), off, "nothing counts it");
    for way in ["--time-some", "--off", "--time"] {
        succeed(&["switch", &live.id(), way, r"^main\.visit$"]);
        let now = counted(&live, "main.visit");
        if way != "--off" {
            wait_until("it is counted again", || counted(&live, "main.visit") > now);
        }
    }
    succeed(&["switch", &live.id(), "--off", "."]);
    succeed(&["detach", &live.id()]);
    assert_restored(&before, &live.text());
    own_counts(&mut live);
    end(live);
}

#[test]
fn what_is_off_and_on_again_is_patched_as_it_was() {
    for (compiler, name) in [(Path::new("go"), "patched"), (&newer(), "patched-newer")] {
        let program = goroutines(compiler, name);
        let mut live = Live::ready(&program, &["-", "wait"]);
        let before = live.text();
        succeed(&["attach", "--time", "all", &live.id()]);
        let patched = live.text();
        live.tell("go");
        for _ in 0..3 {
            succeed(&["switch", &live.id(), "--off", "."]);
            assert_ne!(live.text(), patched, "nothing went off");
            succeed(&["switch", &live.id(), "--time", "."]);
            assert_eq!(live.text(), patched);
        }
        succeed(&["detach", &live.id()]);
        assert_restored(&before, &live.text());
        own_counts(&mut live);
        end(live);
    }
}

/// A goroutine waits in a function that goes off, and is not seen to return when it is back on: meanwhile what it calls is nobody's callee.
#[test]
fn a_goroutine_that_waits_in_a_function_forgets_it_when_it_goes_off() {
    let program = program(Path::new("go"), "gowaiting.go", "waiting", &[]);
    let mut live = Live::ready(&program, &[]);
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let before = live.text();
    succeed(&["attach", "--time", "all", &live.id()]);
    assert_eq!(live.ask("a"), "1 a");
    succeed(&["switch", &live.id(), "--off", r"^main\.serve$"]);
    assert_eq!(live.ask("b"), "2 b");
    succeed(&["switch", &live.id(), "--time", r"^main\.serve$"]);
    assert_eq!(live.ask("c"), "3 c");
    assert_eq!(live.ask("d"), "4 d");
    succeed(&["detach", &live.id(), "-o", file.to_str().expect("UTF-8")]);
    assert_restored(&before, &live.text());
    live.tell("end");
    let (rest, status) = live.wait(Duration::from_secs(60));
    assert!(status.success() && rest == "end\n", "{status}: {rest}");
    let profile = export(&file);
    assert_eq!(profile.calls_by_name()["main.serve"], 1);
    let (mut inside, mut outside) = (0, 0);
    for (thread, node) in profile.nodes_named("main.handle") {
        match profile
            .path(thread, node)
            .iter()
            .any(|name| name == "main.serve")
        {
            true => inside += node.calls,
            false => outside += node.calls,
        }
    }
    assert_eq!((inside, outside), (1, 3));
}

/// Goroutines that C has called, and threads that C made, in the midst of both.
#[test]
fn go_and_c_that_call_each_other_are_exact_through_switches() {
    let program = program(Path::new("go"), "cgo", "cgo-switched", &[]);
    let mut live = Live::ready(&program, &["-", "wait"]);
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let recording = Recording::of(&live, &file, &[]);
    live.tell("go");
    let mut draw = Draw(5);
    for _ in 0..in_short_or_long(40, 400) {
        let mut arguments = vec!["switch".to_owned(), live.id()];
        for name in ["main.back", "c_leaf"] {
            let way = draw.one_of(&["--off", "--off", "--time-some", "--time"]);
            arguments.extend([way.to_owned(), just(name)]);
        }
        let way = draw.one_of(&["--count", "--time-some", "--time"]);
        arguments.extend([way.to_owned(), "^(main.out|c_around|goBack)$".to_owned()]);
        succeed(&arguments);
        live.assert_healthy();
    }
    live.tell("stop");
    let (rest, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}: {rest}");
    recording.end();
    let calls = export(&file).calls_by_name();
    let mut compared = 0;
    for line in rest.lines() {
        let (name, count) = line.split_once(' ').expect("a name and a count");
        let count: u64 = count.parse().expect("a count");
        match name {
            "main.out" | "main.onOneThread" | "c_around" | "c_thread" => {
                compared += 1;
                assert_eq!(calls.get(name), Some(&count), "calls of {name}");
            }
            "main.back" | "c_leaf" => assert!(calls[name] < count, "{name} was never off"),
            _ => {}
        }
    }
    assert_eq!(compared, 4, "{rest}");
}

/// Four goroutines call one short function 24 million times each. It goes off, and what does not is exact.
#[test]
fn a_go_program_under_a_budget_is_exact_but_for_what_is_off() {
    let mut run = budget::Run::new("gosamples", &[]);
    run.program = program(Path::new("go"), "gosamples.go", "budget", &[]);
    let (said, profile) = run.record(&["--budget", "5%"]);
    assert_eq!(said, run.plain());
    let (calls, off) = (budget::calls(&profile), budget::off(&profile));
    let at = |name: &str| {
        let function = profile.functions.iter().position(|f| f.name == name);
        budget::place(&profile, FuncId(function.expect(name) as u32))
    };
    let leaf = at("main.leaf");
    assert!(off.contains(&leaf) && calls[&leaf] < 4 * 60 * 400_000);
    let mut compared = 0;
    for (name, times) in [
        ("main.main", 1),
        ("main.main.func1", 4),
        ("main.deeper", 4 * 60 * 31),
        ("main.shallow", 4 * 60),
        ("main.work", 4 * 60 * 2),
    ] {
        let place = at(name);
        if !off.contains(&place) {
            compared += 1;
            assert_eq!(calls[&place], times, "calls of {name}");
        }
    }
    assert!(compared > 1, "nearly everything went off");
}
