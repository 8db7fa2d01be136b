//! What it costs to count system calls: of functions that make one in every case nothing beyond their call, of others a probe before the
//! instruction.

use std::fs;
use std::process::Command;

use anyhow::{Context, ensure};

use super::table::Table;
use super::{Bench, programs};

/// What thalweg is told, beside recording; nothing for the program alone.
const VARIANTS: [(&str, Option<&[&str]>); 3] = [
    ("plain", None),
    ("thalweg", Some(&[])),
    ("thalweg --metric syscalls", Some(&["--metric", "syscalls"])),
];

const FUNCTIONS: [&str; 2] = [
    "in every case: counted by the calls of the function",
    "or none: counted by a probe before the instruction",
];

impl Bench {
    /// One function, one system call (`getppid`).
    pub(super) fn entering(&self, table: &mut Table) -> anyhow::Result<()> {
        let source = self.path("entering.c");
        fs::write(&source, programs::ENTERING).context("cannot write the benchmark's source")?;
        let target = self.path("entering");
        let mut gcc = Command::new("gcc");
        gcc.arg("-O2").arg(&source).arg("-o").arg(&target);
        self.execute(gcc).context("the benchmark needs gcc")?;
        let mut best = [[f64::INFINITY; 2]; VARIANTS.len()];
        for _ in 0..self.rounds {
            for ((_, options), best) in VARIANTS.iter().zip(&mut best) {
                let mut command = match options {
                    None => Command::new(&target),
                    Some(options) => {
                        let mut record = Command::new(&self.thalweg);
                        record.args(["record", "--no-report", "--no-calibrate", "-q", "-o"]);
                        record.arg(self.path("profile.thalweg")).args(*options);
                        record.arg("--").arg(&target);
                        record
                    }
                };
                command.arg("2000");
                let (_, printed) = self.execute(command)?;
                let costs: Vec<f64> = printed
                    .split_whitespace()
                    .filter_map(|word| word.parse().ok())
                    .collect();
                ensure!(costs.len() == best.len(), "entering printed {printed:?}");
                for (best, cost) in best.iter_mut().zip(costs) {
                    *best = best.min(cost);
                }
            }
        }
        for (at, function) in FUNCTIONS.iter().enumerate() {
            table.heading(&format!("a call with a system call {function} (ns)"));
            let plain = best[0][at];
            for ((name, _), costs) in VARIANTS.iter().zip(&best) {
                table.row(name, costs[at], costs[at] / plain, 0, None);
            }
        }
        Ok(())
    }
}
