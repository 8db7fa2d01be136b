//! From the spool to the store, the oldest first. While the store is away it is tried again, less
//! and less often.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use tokio::sync::watch;

use super::config::Settings;
use super::spool::{Entry, Spool};
use crate::push::{LabelArgs, NoCalls, Target};
use crate::store::Away;

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(5);
/// Profiles of a recorder that has outlived its agent are not announced.
const LOOK_PERIOD: Duration = Duration::from_secs(30);

/// Until nothing more comes: then once more, and no waiting.
pub async fn run(
    settings: Arc<Settings>,
    spool: Arc<Spool>,
    mut nothing_more: watch::Receiver<bool>,
) {
    let mut failures = 0;
    let mut told = String::new();
    loop {
        let is_last = *nothing_more.borrow();
        let wait = match send_all(&settings, &spool).await {
            Ok(sent) => {
                if failures > 0 {
                    tell!("thalweg agent: the store is back, {sent} profiles sent");
                }
                (failures, told) = (0, String::new());
                LOOK_PERIOD
            }
            Err(error) => {
                let wait = back_off(failures);
                failures += 1;
                let why = format!("{error:#}");
                if why != told {
                    let waiting = spool.profiles().map_or(0, |all| all.len());
                    let why = crate::output::printable_lines(&why);
                    tell!("thalweg agent: {waiting} profiles wait in the spool: {why}");
                    told = why;
                }
                wait
            }
        };
        if is_last {
            return;
        }
        // A new profile is no reason to ask a store that is away.
        let is_away = failures > 0;
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = spool.added.notified(), if !is_away => {}
            _ = nothing_more.changed() => {}
        }
    }
}

fn back_off(failures: u32) -> Duration {
    let longest = LONGEST_WAIT.min(FIRST_WAIT * 2u32.saturating_pow(failures.min(16)));
    longest.mul_f64(0.75 + 0.5 * fastrand::f64())
}

/// How many have gone.
async fn send_all(settings: &Settings, spool: &Arc<Spool>) -> anyhow::Result<usize> {
    let waiting = spool.profiles()?;
    if waiting.is_empty() {
        return Ok(0);
    }
    // Each time anew: credentials may have changed in their files.
    let target = match spool.knows(&settings.to) {
        true => Target::open_known(&settings.to).await?,
        false => Target::open(&settings.to).await?,
    };
    spool.remember(&settings.to);
    let target = Arc::new(target);
    let mut sent = 0;
    for entry in waiting {
        let Some(bytes) = spool.read(&entry)? else {
            continue;
        };
        match send(&target, &entry, bytes).await {
            Ok(()) => {
                spool.remove(&entry.name);
                spool.count(|counters| counters.sent += 1);
                sent += 1;
            }
            Err(error) if error.is::<Away>() => return Err(error),
            // Of a process that did nothing meanwhile.
            Err(error) if error.is::<NoCalls>() => spool.remove(&entry.name),
            Err(error) => {
                let why = crate::output::printable_lines(&format!("{error:#}"));
                tell!("thalweg agent: {} is set aside: {why}", entry.name);
                spool.set_aside(&entry);
            }
        }
    }
    Ok(sent)
}

/// In a thread of its own, because it computes; a profile at which something panics is one that
/// cannot be read.
async fn send(target: &Arc<Target>, entry: &Entry, bytes: Vec<u8>) -> anyhow::Result<()> {
    let labels = LabelArgs {
        service: entry.labels.service.clone(),
        host: entry.labels.host.clone(),
        release: entry.labels.release.clone(),
    };
    let target = Arc::clone(target);
    let engine = tokio::runtime::Handle::current();
    let pushing =
        tokio::task::spawn_blocking(move || engine.block_on(target.push(&bytes, &labels)));
    match pushing.await {
        Ok(pushed) => pushed.map(drop),
        Err(error) => Err(anyhow!("something is wrong with it: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_minutes() {
        assert!(back_off(0) <= Duration::from_millis(1250));
        assert!(back_off(3) >= Duration::from_secs(6));
        assert!((0..1000).all(|failures| back_off(failures) <= LONGEST_WAIT.mul_f64(1.25)));
    }
}
