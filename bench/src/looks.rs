//! How true figures under a budget are once looks have divided what events leave together: programs that run for some seconds, by themselves and
//! with `--budget`, by turns.
//!
//! The sum of all base times is held against the time on a processor that the program takes by itself, the shares of its ten hottest functions
//! against what `perf` sees in it (`truth.rs`). Some seconds, because it takes a budget some tenths of one to find out what is hot.

use anyhow::ensure;
use thalweg_analysis::summary;
use thalweg_model::ProbeState;

use super::Bench;
use super::budget::BUDGET;
use super::programs::{LONG, Program};
use super::table::{Goal, Table};
use super::truth::{MOST_OFF, Shares, is_compensated};
use super::turns::Turns;
use thalweg_analysis::Pipeline;

/// Of one program, in nanoseconds.
struct Outcome {
    plain: f64,
    whole: f64,
    /// Whose times come from looks, and how many are off at the end.
    looked: usize,
    off: usize,
    shares: Option<Shares>,
}

impl Bench {
    pub(super) fn looks(&self, table: &mut Table) -> anyhow::Result<()> {
        self.build_truth()?;
        self.calibrate_once()?;
        table.heading(&format!(
            "--budget {BUDGET}, with looks: whole programs' time, ms, and shares of their ten hottest functions"
        ));
        for program in LONG {
            match self.looked_at(program)? {
                Some(outcome) => outcome.rows(program, table),
                None => table.heading(&format!("{} is not installed", program.command)),
            }
        }
        Ok(())
    }

    fn looked_at(&self, program: &Program) -> anyhow::Result<Option<Outcome>> {
        let Some(path) = self.find_program(program) else {
            return Ok(None);
        };
        let Turns { plain, raw } = self.by_turns(program, &path, &["--budget", BUDGET])?;
        let profile = Pipeline::new().run(raw.clone())?;
        ensure!(is_compensated(&profile), "the recording was not calibrated");
        let shares = self.shares(program, path, plain, &raw, &profile)?;
        eprint!("\r\x1b[K");
        let seen = profile.sampled.iter().filter(|one| one.on_stack > 0);
        let switched = profile.switched.iter();
        Ok(Some(Outcome {
            plain,
            whole: summary(&profile).time as f64,
            looked: seen.count(),
            off: switched.filter(|one| one.state == ProbeState::Off).count(),
            shares,
        }))
    }
}

impl Outcome {
    fn rows(&self, program: &Program, table: &mut Table) {
        table.heading(&format!(
            "{}: {} ({} functions off, {} with times from looks)",
            program.name, program.what, self.off, self.looked
        ));
        let ms = |ns: f64| ns / 1e6;
        table.row("by itself", ms(self.plain), 1.0, 0, None);
        let ratio = self.whole / self.plain;
        let goal = Goal::at_most("off", (ratio - 1.0).abs(), MOST_OFF);
        table.row(
            &format!("--budget {BUDGET}"),
            ms(self.whole),
            ratio,
            0,
            Some(goal),
        );
        if let Some(shares) = &self.shares {
            shares.rows(table);
        }
    }
}
