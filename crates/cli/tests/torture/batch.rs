//! Programs that run to their end and print an answer.

use crate::cycles::{self, Generates};
use crate::processor;
use crate::row::{Launched, Row};
use crate::support::in_short_or_long;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, text};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A cycle takes less than half of it where nothing else runs. Processors differ by a factor of four in what they do meanwhile.
const LONG_RUN: Duration = Duration::from_secs(3);

pub struct Batch<'a> {
    pub program: &'a str,
    pub generates: Generates,
    /// Its argument is how much to do: 1 for a launched run, more for one that is to be attached to.
    pub arguments: &'a (dyn Fn(u32) -> Vec<String> + Sync),
    /// What must be the same in every run, from what it printed.
    pub answer: &'a (dyn Fn(&Output) -> String + Sync),
    /// How much to begin with for a run that is attached to; twice that, and so on, until it takes [`LONG_RUN`].
    pub long: u32,
    /// The program's own figure of how fast it was, where it works for a time instead of an amount.
    pub rate: Option<&'a (dyn Fn(&Output) -> f64 + Sync)>,
    /// Attach to the child of this name instead of the program itself.
    pub child: Option<&'a str>,
}

impl Batch<'_> {
    #[track_caller]
    pub fn try_out(&self) {
        let (launched, slowdown) = self.launch();
        let cycles = self.attach();
        Row {
            program: self.program,
            launched: &launched,
            cycles,
            slowdown,
        }
        .write();
    }

    fn plain(&self, amount: u32) -> Command {
        let arguments = (self.arguments)(amount);
        let mut plain = Command::new(&arguments[0]);
        plain.args(&arguments[1..]);
        plain
    }

    #[track_caller]
    fn check(&self, output: &Output, how: &str) -> String {
        assert!(
            output.status.success(),
            "{} {how}: {}",
            self.program,
            text(output)
        );
        (self.answer)(output)
    }

    /// Pairs of a plain and a launched run; the cheapest of each are compared.
    #[track_caller]
    fn launch(&self) -> (Launched, f64) {
        let scratch = Scratch::new();
        let file = scratch.join("launched.thalweg");
        let mut best = (f64::MAX, f64::MAX);
        let mut last = None;
        for _ in 0..in_short_or_long(1, 3) {
            let (output, seconds) = watched(&mut self.plain(1), Some);
            best.0 = best.0.min(self.cost(seconds, &output));
            let expected = self.check(&output, "by itself");
            let mut launch = command();
            launch
                .args(["record", "-q", "--no-report", "-o"])
                .arg(&file)
                .arg("--")
                .args((self.arguments)(1));
            let (output, seconds) = watched(&mut launch, |thalweg| {
                processor::children(thalweg).first().copied()
            });
            best.1 = best.1.min(self.cost(seconds, &output));
            let answer = self.check(&output, "launched under thalweg");
            assert_eq!(answer, expected, "{} under thalweg", self.program);
            last = Some(Launched::read(&file));
        }
        (last.expect("at least one pair"), best.1 / best.0)
    }

    /// Seconds of the processor; or seconds for a unit of the program's own.
    fn cost(&self, seconds: f64, output: &Output) -> f64 {
        self.rate.map_or(seconds, |rate| 1.0 / rate(output))
    }

    /// The program runs again and again beside the cycles, and answers the same each time.
    #[track_caller]
    fn attach(&self) -> u32 {
        let (amount, expected) = self.long_enough();
        let running = AtomicU32::new(0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let mut child = self.plain(amount);
                    let child = child.stdin(Stdio::null()).stdout(Stdio::piped());
                    let child = child.stderr(Stdio::piped()).spawn();
                    let child = child.expect("the program starts");
                    running.store(child.id(), Ordering::Relaxed);
                    let output = child.wait_with_output().expect("the program ends");
                    running.store(0, Ordering::Relaxed);
                    let answer = self.check(&output, "while attached to");
                    assert_eq!(answer, expected, "{} while attached to", self.program);
                }
            });
            let survived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                cycles::survive(cycles::count(), self.generates, || {
                    self.victim(&running, || work.is_finished())
                })
            }));
            over.store(true, Ordering::Relaxed);
            if let Err(panic) = work.join() {
                std::panic::resume_unwind(panic);
            }
            survived.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// How much takes this machine long enough for a cycle, and what it answers.
    #[track_caller]
    fn long_enough(&self) -> (u32, String) {
        let mut amount = self.long;
        loop {
            let began = Instant::now();
            let output = self.plain(amount).stdin(Stdio::null()).output();
            let expected = self.check(&output.expect("the program starts"), "by itself");
            if began.elapsed() >= LONG_RUN {
                return (amount, expected);
            }
            amount *= 2;
        }
    }

    /// A process that is past its start.
    fn victim(&self, running: &AtomicU32, gave_up: impl Fn() -> bool) -> u32 {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let root = running.load(Ordering::Relaxed);
            let pid = match self.child {
                Some(name) => processor::child(root, name),
                None => Some(root).filter(|&pid| pid != 0),
            };
            if let Some(pid) = pid {
                std::thread::sleep(Duration::from_millis(200));
                if cycles::lives(pid) {
                    return pid;
                }
            }
            assert!(!gave_up(), "{} failed", self.program);
            assert!(Instant::now() < deadline, "{} hangs", self.program);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Runs a command to its end, and sees how much processor time one of its processes took.
fn watched(command: &mut Command, which: impl Fn(u32) -> Option<u32> + Sync) -> (Output, f64) {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let child = piped.stderr(Stdio::piped()).spawn();
    let child = child.expect("the program starts");
    let (id, over) = (child.id(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0f64;
            while !over.load(Ordering::Relaxed) {
                most = which(id).map_or(most, |pid| most.max(processor::seconds(pid)));
                std::thread::sleep(Duration::from_millis(2));
            }
            most
        });
        let output = child.wait_with_output().expect("the program ends");
        over.store(true, Ordering::Relaxed);
        (output, watch.join().expect("watching goes on"))
    })
}

/// Everything that the program wrote to its standard output.
pub fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The words of what it wrote, without any figure: times differ.
pub fn without_figures(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    let all = String::from_utf8_lossy(&all).into_owned();
    let words = all.split_whitespace();
    let words = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}
