//! A program by itself and recorded, by turns.
//!
//! For what something costs the least of several runs counts on both sides: everything else that a machine does only adds. Where the two least
//! do not agree, none of them may have been left alone, and it goes on for a while. For how true one recording is every recording counts, and is
//! held against the runs right before and after it.

use std::path::Path;

use anyhow::{Context, anyhow};
use thalweg_analysis::summary;
use thalweg_model::Profile;

use super::Bench;
use super::programs::Program;
use super::redis::Redis;
use super::truth::time_on_processor;

/// How close the two least have to be, and how much longer it is tried for.
const AGREE: f64 = 0.015;
const LONGER: u32 = 3;

/// The best of both.
pub(super) struct Turns {
    /// Nanoseconds on a processor, by itself.
    pub plain: f64,
    /// As it was measured.
    pub raw: Profile,
}

/// One recording, between two runs of the program by itself.
pub(super) struct Between {
    /// The mean of those two, in nanoseconds on a processor: what else runs, and so what the program takes, changes from one moment to the
    /// next.
    pub plain: f64,
    /// As it was measured.
    pub raw: Profile,
}

/// The program by itself, and recorded in several ways.
pub(super) struct Interleaved {
    pub plain: Vec<f64>,
    /// Of each way all recordings.
    pub recorded: Vec<Vec<Between>>,
}

impl Interleaved {
    pub fn mean(&self) -> f64 {
        self.plain.iter().sum::<f64>() / self.plain.len().max(1) as f64
    }

    /// What a run differs by from the mean of its two neighbours, as two standard deviations and as a part of the time: such a run and such
    /// a mean, without what changes more slowly.
    pub fn varies(&self) -> f64 {
        let off = |three: &[f64]| three[1] - (three[0] + three[2]) / 2.0;
        let squares: Vec<f64> = self.plain.windows(3).map(|w| off(w).powi(2)).collect();
        let variance = squares.iter().sum::<f64>() / squares.len().max(1) as f64;
        2.0 * variance.sqrt() / self.mean()
    }
}

/// Sorts them.
fn do_agree(times: &mut [f64]) -> bool {
    times.sort_by(f64::total_cmp);
    match times {
        [least, next, ..] => *next <= *least * (1.0 + AGREE),
        _ => true,
    }
}

impl Bench {
    pub(super) fn by_turns(
        &self,
        program: &Program,
        path: &Path,
        options: &[&str],
    ) -> anyhow::Result<Turns> {
        program.write_files(&self.folder)?;
        let (mut plain, mut times) = (Vec::new(), Vec::new());
        let mut best: Option<Profile> = None;
        for round in 1..=self.rounds * LONGER {
            if round > self.rounds && do_agree(&mut plain) && do_agree(&mut times) {
                break;
            }
            eprint!("\r\x1b[Kround {round}: {}", program.name);
            plain.push(self.alone(program, path)?);
            let profile = self.one_recording(program, path, options)?;
            times.push(summary(&profile).time as f64);
            if times.iter().all(|time| times.last() <= Some(time)) {
                best = Some(profile);
            }
        }
        Ok(Turns {
            plain: plain.into_iter().fold(f64::INFINITY, f64::min),
            raw: best.context("no rounds")?,
        })
    }

    /// Each recording between two runs of the program by itself.
    pub(super) fn interleaved(
        &self,
        program: &Program,
        path: &Path,
        ways: &[&[&str]],
    ) -> anyhow::Result<Interleaved> {
        program.write_files(&self.folder)?;
        let mut plain = vec![self.alone(program, path)?];
        let mut recorded: Vec<Vec<Between>> = ways.iter().map(|_| Vec::new()).collect();
        for round in 1..=self.rounds {
            for (options, recorded) in ways.iter().zip(&mut recorded) {
                eprint!("\r\x1b[Kround {round}: {}", program.name);
                let before = plain.last().copied().unwrap_or_default();
                let raw = self.one_recording(program, path, options)?;
                let after = self.alone(program, path)?;
                plain.push(after);
                recorded.push(Between {
                    plain: (before + after) / 2.0,
                    raw,
                });
            }
        }
        Ok(Interleaved { plain, recorded })
    }

    fn one_recording(
        &self,
        program: &Program,
        path: &Path,
        options: &[&str],
    ) -> anyhow::Result<Profile> {
        let recorded = || self.recorded(program, path.into(), options);
        Ok(self.asked(program, recorded)?.0)
    }

    /// Nanoseconds on a processor.
    fn alone(&self, program: &Program, path: &Path) -> anyhow::Result<f64> {
        let alone = || time_on_processor(self.plain(program, path.into()));
        let (took, by_the_server) = self.asked(program, alone)?;
        Ok(by_the_server.unwrap_or(took))
    }

    /// `run` runs the program to its end. A server is asked meanwhile, and then told to end; it says what it has used until then, in
    /// nanoseconds on a processor.
    pub(super) fn asked<T>(
        &self,
        program: &Program,
        run: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Option<f64>)> {
        if program.requests == 0 {
            return Ok((run()?, None));
        }
        let redis = Redis::new(&self.folder);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                redis.wait()?;
                redis.load(program.requests)?;
                let used = redis.used()?;
                redis.stop()?;
                anyhow::Ok(used)
            });
            let done = run();
            let used = load.join().map_err(|_| anyhow!("the load has failed"))?;
            Ok((done?, Some(used? * 1e9)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_slowly_is_no_difference_between_neighbours() {
        let of = |plain: [f64; 5]| Interleaved {
            plain: plain.into(),
            recorded: Vec::new(),
        };
        assert_eq!(of([1.0, 2.0, 3.0, 4.0, 5.0]).varies(), 0.0);
        let varies = of([10.0, 11.0, 10.0, 11.0, 10.0]).varies();
        assert!((0.19..0.2).contains(&varies), "{varies}");
    }

    #[test]
    fn runs_that_were_left_alone_agree() {
        assert!(!do_agree(&mut [1.2, 1.0, 1.1]));
        assert!(do_agree(&mut [1.2, 1.0, 1.01]));
        assert!(do_agree(&mut [1.0]), "one round is what was asked for");
    }
}
