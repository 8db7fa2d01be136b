//! What a call costs that rules look at: refused by each kind of condition, and kept.
//!
//! All of it against the same call without rules, by turns. A batch of calls is as long as the reader of the records keeps up with, since
//! what finds no room costs less than what is written.

use std::fs;
use std::process::Command;

use anyhow::{Context, ensure};

use super::table::{Goal, Table};
use super::{Bench, programs};

/// What a refused call may cost, of one without rules; and a kept one, in nanoseconds.
const REFUSED: f64 = 1.3;
const KEPT: f64 = 1000.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    Refused,
    /// The whole program has to be asked, which is said and not a goal.
    Asked,
    Kept,
    /// The kernel has to copy a text, unless it lies on the stack's own page.
    Copied,
}

/// Rules on `handle(n, x, heap, stack, pair, e, f, last)` of `tests/targets/bench/ruled.c`, whose result is `n`.
const VARIANTS: [(&str, &[&str], Expected); 28] = [
    ("by an integer", &["handle: n > 100"], Expected::Refused),
    (
        "by `or`",
        &["handle: n > 100 or e == 9 or f < 0"],
        Expected::Refused,
    ),
    (
        "by three with `and`",
        &["handle: n >= 0 and e == 5 and f == 9"],
        Expected::Refused,
    ),
    ("by a float", &["handle: x > 1.5"], Expected::Refused),
    ("by a pointer", &["handle: heap == null"], Expected::Refused),
    (
        "by a field in a register",
        &["handle: pair.second == 9"],
        Expected::Refused,
    ),
    (
        "by an argument on the stack",
        &["handle: last != 7"],
        Expected::Refused,
    ),
    (
        "by two rules",
        &[
            "handle: n > 100; record n",
            "handle: x < 0 and last == 7; record ret",
        ],
        Expected::Refused,
    ),
    ("by duration", &["handle: duration > 1s"], Expected::Refused),
    (
        "by duration, with arguments",
        &["handle: duration > 1s; record n, x, pair"],
        Expected::Refused,
    ),
    (
        "by time of its own",
        &["handle: self > 1s"],
        Expected::Refused,
    ),
    (
        "by ret",
        &["handle: ret < 0; record ret, errno"],
        Expected::Refused,
    ),
    (
        "by ret, with arguments",
        &["handle: ret < 0; record n, x, pair, ret"],
        Expected::Refused,
    ),
    ("by errno", &["handle: errno == 4711"], Expected::Refused),
    (
        "by an exception",
        &["handle: exception =~ /x/; record exception, n"],
        Expected::Refused,
    ),
    ("by two arguments", &["handle: e > f"], Expected::Refused),
    (
        "by an argument or ret",
        &["handle: n > 100 or ret < 0"],
        Expected::Refused,
    ),
    (
        "by either, both recorded",
        &["handle: n > 100 or ret < 0; record n, ret, errno"],
        Expected::Refused,
    ),
    (
        "by argument or duration",
        &["handle: n > 100 or duration > 5ms; record n"],
        Expected::Refused,
    ),
    (
        "by ends for arguments",
        &["handle: (n > 3 and ret < 0) or (n <= 3 and ret > 10); record n, ret"],
        Expected::Refused,
    ),
    (
        "by either, a late text",
        &["handle: n > 100 or ret < 0; record exit(heap), n, ret"],
        Expected::Refused,
    ),
    (
        "by duration, a late text",
        &["handle: duration > 1s; record exit(heap)"],
        Expected::Refused,
    ),
    (
        "by stack argument or ret",
        &["handle: last != 7 or ret < 0"],
        Expected::Asked,
    ),
    (
        "by duration, with a text",
        &["handle: duration > 1s; record heap"],
        Expected::Asked,
    ),
    ("kept", &["handle"], Expected::Kept),
    (
        "kept, three numbers",
        &["handle; record n, x, ret"],
        Expected::Kept,
    ),
    (
        "kept, a text on the stack",
        &["handle; record stack"],
        Expected::Copied,
    ),
    (
        "kept, a text on the heap",
        &["handle; record heap"],
        Expected::Copied,
    ),
];

impl Bench {
    pub(super) fn rules(&self, table: &mut Table) -> anyhow::Result<()> {
        let source = self.path("ruled.c");
        fs::write(&source, programs::RULED).context("cannot write the benchmark's source")?;
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-g"])
            .arg(&source)
            .arg("-o")
            .arg(self.path("ruled"));
        self.execute(gcc).context("the benchmark needs gcc")?;
        let mut plain = f64::INFINITY;
        let mut best = [f64::INFINITY; VARIANTS.len()];
        for round in 1..=self.rounds {
            eprint!("\r\x1b[Kround {round} of {}: rules", self.rounds);
            plain = plain.min(self.ruled(&[])?);
            for ((_, rules, _), best) in VARIANTS.iter().zip(&mut best) {
                *best = best.min(self.ruled(rules)?);
            }
        }
        eprint!("\r\x1b[K");
        table.heading("calls that rules look at (ns per call, entry and exit together)");
        table.row("no rules", plain, 1.0, 0, None);
        for ((name, _, expected), figure) in VARIANTS.iter().zip(best) {
            let ratio = figure / plain;
            let (name, goal) = match expected {
                Expected::Refused => (
                    format!("refused {name}"),
                    Some(Goal::at_most("x no rules", ratio, REFUSED)),
                ),
                Expected::Asked => (format!("refused {name}"), None),
                Expected::Kept => ((*name).to_owned(), Some(Goal::at_most("ns", figure, KEPT))),
                Expected::Copied => ((*name).to_owned(), None),
            };
            table.row(&name, figure, ratio, 0, goal);
        }
        Ok(())
    }

    fn ruled(&self, rules: &[&str]) -> anyhow::Result<f64> {
        let mut command = Command::new(&self.thalweg);
        command
            .args(["record", "--no-report", "--no-calibrate", "-q", "-o"])
            .arg(self.path("profile.thalweg"));
        if rules.is_empty() {
            // With rules every call is timed, so it is held against that.
            command.args(["--time", "all"]);
        }
        for rule in rules {
            command.args(["--rule", rule]);
        }
        command.arg("--").arg(self.path("ruled"));
        let (_, printed) = self.execute(command)?;
        let cost: f64 = printed
            .trim()
            .parse()
            .with_context(|| format!("the program printed {printed:?}"))?;
        ensure!(cost > 0.0, "the program measured nothing");
        Ok(cost)
    }
}
