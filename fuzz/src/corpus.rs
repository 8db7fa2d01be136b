//! What mutations begin with, and the run itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};

use crate::Target;
use crate::mutate::{Random, mutated};

/// Processor time that one input may take. The slowest took some tenths of a second.
pub const MOST_TIME: Duration = Duration::from_secs(20);
/// Address space of the whole run.
pub const MOST_MEMORY: u64 = 8 << 30;

pub fn folder(target: &Target) -> PathBuf {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    corpus.join(target.name)
}

/// The files of a folder, in the order of their names.
pub fn files(folder: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("{}", path.display()));
    paths.iter().map(read).collect()
}

/// More memory is refused, which ends the process: a reader that takes it is found out.
pub fn bound_memory() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_AS)?;
    setrlimit(Resource::RLIMIT_AS, MOST_MEMORY.min(hard), hard)?;
    Ok(())
}

/// The inputs themselves, then mutations of them for as long as `goes_on` says. What fails is kept for the next look at it.
pub fn run(
    target: &Target,
    inputs: &[Vec<u8>],
    seed: u64,
    mut goes_on: impl FnMut(u64) -> bool,
) -> anyhow::Result<u64> {
    if inputs.is_empty() {
        bail!("there is nothing to begin with for {}", target.name);
    }
    let mut random = Random::new(seed);
    let mut count = 0;
    for input in inputs {
        one(target, input, seed, count)?;
        count += 1;
    }
    while goes_on(count) {
        one(target, &mutated(inputs, &mut random), seed, count)?;
        count += 1;
    }
    Ok(count)
}

fn one(target: &Target, input: &[u8], seed: u64, count: u64) -> anyhow::Result<()> {
    let before = processor_time();
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let took = processor_time().saturating_sub(before);
    let what = match result {
        Err(_) => "panics".to_owned(),
        Ok(()) if took > MOST_TIME => format!("takes {took:?}"),
        Ok(()) => return Ok(()),
    };
    let name = format!("{}-{seed}-{count}", target.name);
    let kept = std::env::temp_dir().join(name);
    std::fs::write(&kept, input)?;
    bail!(
        "{} {what} on input {count} of seed {seed}, which is kept as {}",
        target.name,
        kept.display()
    )
}

/// Of this thread.
fn processor_time() -> Duration {
    let used = getrusage(UsageWho::RUSAGE_THREAD);
    used.map_or(Duration::ZERO, |used| {
        let time = used.user_time() + used.system_time();
        Duration::from_micros(time_in_micros(time))
    })
}

fn time_in_micros(time: nix::sys::time::TimeVal) -> u64 {
    use nix::sys::time::TimeValLike;
    time.num_microseconds().max(0) as u64
}
