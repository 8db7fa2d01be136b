//! A program by itself and recorded, by turns; the least of several runs counts on both sides: everything else that a machine does only adds.

use std::path::Path;

use anyhow::{Context, anyhow};
use thalweg_analysis::summary;
use thalweg_model::Profile;

use super::Bench;
use super::programs::Program;
use super::redis::Redis;
use super::truth::time_on_processor;

/// The best of both.
pub(super) struct Turns {
    /// Nanoseconds on a processor, by itself.
    pub plain: f64,
    /// As it was measured.
    pub raw: Profile,
}

impl Bench {
    pub(super) fn by_turns(
        &self,
        program: &Program,
        path: &Path,
        options: &[&str],
    ) -> anyhow::Result<Turns> {
        program.write_files(&self.folder)?;
        let mut plain = f64::INFINITY;
        let mut best: Option<(u64, Profile)> = None;
        for round in 1..=self.rounds {
            eprint!("\r\x1b[Kround {round} of {}: {}", self.rounds, program.name);
            let alone = || time_on_processor(self.plain(program, path.into()));
            let (took, by_the_server) = self.asked(program, alone)?;
            plain = plain.min(by_the_server.unwrap_or(took));
            let recorded = || self.recorded(program, path.into(), options);
            let (profile, _) = self.asked(program, recorded)?;
            let time = summary(&profile).time;
            if best.as_ref().is_none_or(|(least, _)| time < *least) {
                best = Some((time, profile));
            }
        }
        let (_, raw) = best.context("no rounds")?;
        Ok(Turns { plain, raw })
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
