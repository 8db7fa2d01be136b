//! A program by itself and recorded, by turns; the least of several runs counts on both sides: everything else that a machine does only adds. Where
//! the two least do not agree, none of them may have been left alone, and it goes on for a while.

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

/// The same of several ways of recording.
pub(super) struct TurnsOf {
    pub plain: f64,
    /// One for each.
    pub raw: Vec<Profile>,
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
        let TurnsOf { plain, raw } = self.by_turns_of(program, path, &[options])?;
        let raw = raw.into_iter().next().context("no rounds")?;
        Ok(Turns { plain, raw })
    }

    pub(super) fn by_turns_of(
        &self,
        program: &Program,
        path: &Path,
        ways: &[&[&str]],
    ) -> anyhow::Result<TurnsOf> {
        program.write_files(&self.folder)?;
        let mut plain = Vec::new();
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
        let mut best: Vec<Option<Profile>> = vec![None; ways.len()];
        for round in 1..=self.rounds * LONGER {
            let mut all = std::iter::once(&mut plain).chain(&mut times);
            if round > self.rounds && all.all(|times| do_agree(&mut times.clone())) {
                break;
            }
            eprint!("\r\x1b[Kround {round}: {}", program.name);
            let alone = || time_on_processor(self.plain(program, path.into()));
            let (took, by_the_server) = self.asked(program, alone)?;
            plain.push(by_the_server.unwrap_or(took));
            for ((options, times), best) in ways.iter().zip(&mut times).zip(&mut best) {
                let recorded = || self.recorded(program, path.into(), options);
                let (profile, _) = self.asked(program, recorded)?;
                times.push(summary(&profile).time as f64);
                if times.iter().all(|time| times.last() <= Some(time)) {
                    *best = Some(profile);
                }
            }
        }
        let raw: Option<Vec<Profile>> = best.into_iter().collect();
        Ok(TurnsOf {
            plain: plain.into_iter().fold(f64::INFINITY, f64::min),
            raw: raw.context("no rounds")?,
        })
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
    fn runs_that_were_left_alone_agree() {
        assert!(!do_agree(&mut [1.2, 1.0, 1.1]));
        assert!(do_agree(&mut [1.2, 1.0, 1.01]));
        assert!(do_agree(&mut [1.0]), "one round is what was asked for");
    }
}
