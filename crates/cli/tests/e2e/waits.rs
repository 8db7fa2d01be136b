//! Working and waiting are told apart: base and cum are time on a processor, elapsed is wall time, in every thread and charged to
//! the function in which it happened.

use crate::support::build::Build;
use crate::support::profile::{Node, Profile, Thread};
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, record, succeed};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// What the kernel says of one thread, in nanoseconds: from before its function was called to after it returned, and from the function's first
/// line to its last. What the function took is in between, wherever the thread was switched out.
struct Truth {
    kind: String,
    tid: u64,
    outer: Clocks,
    inner: Clocks,
}

struct Clocks {
    cpu: u64,
    wall: u64,
}

impl Clocks {
    fn off(&self) -> u64 {
        self.wall.saturating_sub(self.cpu)
    }
}

fn truths(output: &[u8]) -> Vec<Truth> {
    let output = String::from_utf8_lossy(output);
    let lines = output.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse().expect("a number");
        Truth {
            kind: words[0].into(),
            tid: number(1),
            outer: Clocks {
                cpu: number(2),
                wall: number(3),
            },
            inner: Clocks {
                cpu: number(4),
                wall: number(5),
            },
        }
    });
    lines.collect()
}

/// The one context of a function in a thread.
fn node<'a>(profile: &Profile, thread: &'a Thread, name: &str) -> &'a Node {
    let mut nodes = thread.nodes.iter();
    nodes
        .find(|node| profile.functions[node.function].name == name)
        .unwrap_or_else(|| panic!("{name} is not in thread {}", thread.tid))
}

/// What a function waited itself in one thread, over all contexts with this in their name.
fn waited(profile: &Profile, thread: &Thread, part: &str) -> u64 {
    let mut sum = 0;
    for (index, node) in thread.nodes.iter().enumerate() {
        let name = profile.functions[node.function].name.as_str();
        if name.contains(part) {
            let callees = thread.nodes.iter().filter(|n| n.parent == Some(index));
            let of_callees: u64 = callees.map(|n| n.elapsed).sum();
            sum += (node.elapsed - of_callees).saturating_sub(node.base);
        }
    }
    sum
}

/// What one thread's two clocks, read one after the other, and the gap after which a thread asks for its processor time leave open.
const SLACK: f64 = 300_000.0;

/// Between two readings of the kernel's, but for so much of it.
fn between(measured: u64, inner: u64, outer: u64, share: f64) -> bool {
    let (measured, slack) = (measured as f64, outer as f64 * share + SLACK);
    inner as f64 - slack <= measured && measured <= outer as f64 + slack
}

#[test]
fn processor_time_and_wall_time_of_every_thread_are_the_kernels() {
    let program = Build::simple("waits.c");
    // The clock's own figures: samples round to a period.
    let recorded = record(&["--no-report", "-q", "--samples", "0"], &program, &[]);
    let profile = &recorded.profile;
    let truths = truths(&recorded.stdout);
    assert_eq!(truths.len(), 10);
    for truth in &truths {
        let (kind, what) = (truth.kind.as_str(), format!("{} {}", truth.kind, truth.tid));
        let mut threads = profile.threads.iter();
        let thread = threads.find(|t| t.tid == truth.tid).expect(&what);
        let body = node(profile, thread, kind);
        // What the agent itself takes is in the kernel's figures only, on both sides: the wait must be the same.
        let off = body.elapsed - body.cum;
        let (inner, outer) = (truth.inner.off(), truth.outer.off());
        assert!(
            between(off, inner, outer, 0.02),
            "{what}: waited {off}, in truth {inner} to {outer}"
        );
        assert!(
            between(body.cum, 0, truth.outer.cpu, 0.02),
            "{what}: {} on a processor, {} in truth",
            body.cum,
            truth.outer.cpu
        );
        let (where_it_waits, least) = match kind {
            "naps" => ("nanosleep", 200_000_000),
            "polls" => ("poll", 200_000_000),
            "asks" | "answers" => ("read", 5_000_000),
            _ => continue,
        };
        let there = waited(profile, thread, where_it_waits);
        assert!(there >= least, "{what}: {there} in {where_it_waits}");
    }
}

#[test]
fn a_wait_is_that_of_the_function_that_waited_though_it_calls_nobody() {
    let program = Build::simple("waits.c");
    let recorded = record(&["--no-report", "-q"], &program, &["itself"]);
    let profile = &recorded.profile;
    let there = waited(profile, &profile.threads[0], "waits_itself");
    assert!(there >= 95_000_000, "{there} of ten times 10 ms");
}

/// Others that want the processors all the time.
struct Busy(Vec<Child>);

impl Busy {
    fn begin() -> Busy {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let spin = || {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]);
            shell.spawn().expect("a shell")
        };
        Busy((0..3 * processors).map(|_| spin()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// It is switched out amid probes as well, which is no reason to count less of its work.
#[test]
fn a_thread_that_seldom_gets_a_processor_has_all_of_its_work() {
    let _others = Busy::begin();
    let options = [
        "--time",
        "all",
        "--no-report",
        "-q",
        "-N",
        "^(six|three|one)$",
    ];
    let recorded = record(&options, &crate::samples::sampled(), &["shares", "2000"]);
    let said = String::from_utf8_lossy(&recorded.stdout);
    let truth: f64 = crate::samples::spells(&said).iter().map(|s| s.ms).sum();
    let profile = &recorded.profile;
    let shown = node(profile, &profile.threads[0], "main").cum as f64 / 1e6;
    assert!(
        (shown - truth).abs() < truth * 0.025,
        "main worked for {truth} ms by the kernel's clock and is shown with {shown}"
    );
}

#[test]
fn a_person_is_waited_for_at_nobodys_charge() {
    let scratch = Scratch::new();
    let program = Build::simple("waits.c");
    let file = scratch.join("person.thalweg");
    let recording = format!(
        "{} record --no-report -q -o {} -- {} person",
        command().get_program().display(),
        file.display(),
        program.path.display()
    );
    // script gives it a terminal, and passes on what we write.
    let mut terminal = Command::new("script")
        .args(["-q", "-e", "-c", &recording, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script starts");
    let mut keyboard = terminal.stdin.take().expect("piped");
    let mut shown = BufReader::new(terminal.stdout.take().expect("piped")).lines();
    for _ in 0..3 {
        // It is about to read.
        let asks =
            |line: &std::io::Result<String>| line.as_ref().is_ok_and(|l| l.contains("line?"));
        assert!(shown.any(|line| asks(&line)), "it never asked");
        sleep(Duration::from_millis(700));
        keyboard.write_all(b"line\n").expect("script reads");
    }
    // Else it waits for somebody to read what it shows.
    shown.for_each(drop);
    assert!(terminal.wait().expect("it ends").success());
    let summary = succeed(&["summary", file.to_str().expect("UTF-8"), "--json"]);
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    let kinds = summary["wait_kinds"].as_array().expect("kinds");
    let person = kinds.iter().find(|k| k["what"] == "a terminal's input");
    let person = person.expect("named")["time_ns"]
        .as_u64()
        .expect("a number");
    assert!(person > 1_400_000_000, "{person} ns for a person");
    let charged = summary["waiting_ns"].as_u64().expect("a number");
    assert!(charged < 500_000_000, "{charged} ns charged");
}

/// What a preempted call ran for is known to a microsecond or two: a call of less must not seem to have taken nothing.
#[test]
fn the_shortest_call_is_no_shorter_than_the_function() {
    let program = Build::simple("preempted.c");
    let options = ["--time", "all", "--samples", "0"];
    let recorded = record(&options, &program, &["2000000"]);
    let stdout = String::from_utf8_lossy(&recorded.stdout).into_owned();
    let own: u64 = stdout.trim().parse().expect("nanoseconds");
    let (_, node) = recorded.profile.nodes_named("work").next().expect("work");
    assert_eq!(node.calls, 2_000_000);
    // Three quarters, for what rounding does to ticks and nanoseconds of a short function.
    assert!(
        node.min * 4 >= own * 3,
        "{} ns at the least, {own} ns by itself",
        node.min
    );
}
