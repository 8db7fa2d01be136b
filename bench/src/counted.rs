//! What a call costs that is counted and not timed: of a leaf, which has no frame, and of a function that calls; where nothing is timed, and where
//! the function was switched while others are.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::table::{Goal, Table};
use super::{Bench, programs};

/// How long each run takes, in seconds. The second half counts.
const SECONDS: &str = "2";
/// The processes of a run that does not begin are not waited for longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A leaf's and a framed call's, in ns.
type Costs = [f64; 2];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    WithoutClock,
    /// Timed at first, and then switched.
    Switched,
}

impl Bench {
    /// `floor`: what a timed call costs at the least, in ns.
    pub(super) fn counted(&self, floor: f64, table: &mut Table) -> anyhow::Result<()> {
        let source = self.path("counted.c");
        fs::write(&source, programs::COUNTED).context("cannot write the benchmark's source")?;
        let mut gcc = Command::new("gcc");
        gcc.arg("-O2")
            .arg(&source)
            .arg("-o")
            .arg(self.path("counted"));
        self.execute(gcc).context("the benchmark needs gcc")?;
        let ways = [Way::Plain, Way::WithoutClock, Way::Switched];
        let mut best = [[f64::INFINITY; 2]; 3];
        for _ in 0..self.rounds {
            for (way, best) in ways.iter().zip(&mut best) {
                let costs = self.counted_once(*way)?;
                for (best, cost) in best.iter_mut().zip(costs) {
                    *best = best.min(cost);
                }
            }
        }
        let [plain, without_clock, switched] = best;
        table.heading("calls that are counted, not timed (ns added to a call, and of the floor)");
        for (name, added, most) in [
            ("counted leaf", without_clock[0] - plain[0], 0.06),
            (
                "counted with a frame, --no-clock",
                without_clock[1] - plain[1],
                0.16,
            ),
            (
                "counted with a frame, state Counted",
                switched[1] - plain[1],
                0.16,
            ),
        ] {
            let ratio = added / floor;
            table.row(
                name,
                added,
                ratio,
                0,
                Some(Goal::at_most("x floor", ratio, most)),
            );
        }
        Ok(())
    }

    fn counted_once(&self, way: Way) -> anyhow::Result<Costs> {
        let (target, number) = (self.path("counted"), self.path("counted.pid"));
        let _ = fs::remove_file(&number);
        let mut command = match way {
            Way::Plain => Command::new(&target),
            Way::WithoutClock | Way::Switched => {
                let mut record = Command::new(&self.thalweg);
                record.args(["record", "--no-report", "--no-calibrate", "-q", "-o"]);
                record.arg(self.path("profile.thalweg"));
                match way {
                    Way::Switched => record.args(["--time", "all", "--samples", "0"]),
                    _ => record.arg("--no-clock"),
                };
                record.arg("--").arg(&target);
                record
            }
        };
        command.arg(SECONDS).arg(&number);
        let printed = match way {
            Way::Switched => {
                let command = command.current_dir(&self.folder).stdout(Stdio::piped());
                let running = command.stderr(Stdio::null()).spawn();
                let running = running.context("cannot run the benchmark's program")?;
                let mut switch = Command::new(&self.thalweg);
                switch
                    .arg("switch")
                    .arg(began(&number)?)
                    .args(["--count", "."]);
                self.execute(switch)?;
                let output = running.wait_with_output()?;
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            _ => self.execute(command)?.1,
        };
        let costs: Vec<f64> = printed
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        ensure!(costs.len() == 2, "counted printed {printed:?}");
        Ok([costs[0], costs[1]])
    }
}

/// The number of the program, once it runs.
fn began(number: &std::path::Path) -> anyhow::Result<String> {
    let start = Instant::now();
    loop {
        match fs::read_to_string(number) {
            Ok(text) if text.ends_with('\n') => return Ok(text.trim().to_owned()),
            _ => ensure!(start.elapsed() < PATIENCE, "counted did not begin"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
