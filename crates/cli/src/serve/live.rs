//! A live process behind the page: read again and again while someone looks; on request its probes are switched, and it is saved
//! and let go.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use thalweg_analysis::flat;
use thalweg_instrument::detach;
use thalweg_model::{OutputFile, Profile};
use thalweg_ptrace::proc::{self, Pid};
use thalweg_region::clock;
use thalweg_region::memory::Shared;
use thalweg_snapshot::call_trace::Drain;
use thalweg_snapshot::harvest::{self, Witness};
use thalweg_snapshot::lines;

use crate::args::as_shown;
use crate::calibration;
use crate::commands::switch::{self, Which};
use crate::live::Interrupts;
use crate::page::{Question, Reading, Subject};

const INTERVAL: Duration = Duration::from_secs(1);

/// A page that asked nothing for so long is closed or frozen.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(5);

/// Recorded calls that are kept here while they come; beyond that the target's own memory is read anew.
const MOST_CALLS: usize = 500_000;

pub struct Watched {
    pid: Pid,
    started: Instant,
    /// Milliseconds after `started` when a page last asked something.
    looked: AtomicU64,
    detached: AtomicBool,
    /// Something was changed that the next reading shows.
    is_due: AtomicBool,
    shared: Mutex<Source>,
    target: Option<proc::Target>,
    /// Times as they were measured, with what the probes cost.
    raw: bool,
}

/// What is read, and by whom.
struct Source {
    shared: Shared,
    witness: Witness,
    /// Only looks: whoever records the calls still gets them all.
    drain: Drain,
}

impl Watched {
    pub fn new(pid: Pid, shared: Shared, raw: bool) -> anyhow::Result<Watched> {
        Ok(Watched {
            pid,
            started: Instant::now(),
            looked: AtomicU64::new(0),
            detached: AtomicBool::new(false),
            is_due: AtomicBool::new(false),
            shared: Mutex::new(Source {
                shared,
                witness: Witness::default(),
                drain: Drain::reader(),
            }),
            target: proc::preflight(pid).ok(),
            raw,
        })
    }

    pub fn first(&self) -> anyhow::Result<Subject> {
        let reading = Reading {
            pid: self.pid.0 as u32,
            number: 1,
            ..Reading::default()
        };
        Ok(self.subject(self.shown()?, reading))
    }

    fn subject(&self, profile: Profile, reading: Reading) -> Subject {
        Subject::new(profile, format!("process {}", self.pid))
            .with_reading(reading)
            .with_sources()
    }

    /// Functions that were never called stay in it, so that the others keep their numbers from reading to reading.
    fn read(&self) -> anyhow::Result<Profile> {
        let mut shared = self
            .shared
            .lock()
            .map_err(|_| anyhow!("an earlier reading failed"))?;
        let Source {
            shared,
            witness,
            drain,
        } = &mut *shared;
        witness.look(shared)?;
        let mut profile = harvest::harvest(shared, witness, None)?;
        // What was recorded since the page was opened stays, though the target has room for the last calls only.
        if !profile.recorded.is_empty() {
            let header = shared.header()?;
            if drain.take(shared, &header)? > MOST_CALLS {
                *drain = Drain::reader();
                drain.take(shared, &header)?;
            }
            let hz = profile.meta.clock_hz;
            profile.recorded = drain.recorded(shared, &header, witness, hz, clock::ticks())?;
        }
        calibration::stamp(&mut profile);
        Ok(profile)
    }

    /// With the figures that reports show.
    fn shown(&self) -> anyhow::Result<Profile> {
        as_shown(self.read()?, None, self.raw)
    }

    pub fn someone_looks(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        self.looked.store(now, Ordering::Relaxed);
    }

    fn is_watched(&self) -> bool {
        let looked = Duration::from_millis(self.looked.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(looked) < FORGOTTEN_AFTER
    }

    fn has_ended(&self) -> bool {
        let alive = self.target.as_ref().is_some_and(|target| target.is_alive());
        self.detached.load(Ordering::Relaxed) || !alive
    }

    /// Says what was done.
    pub fn act(&self, request: &Question) -> anyhow::Result<String> {
        match request.what.as_str() {
            "switch" => self.switch(request),
            "checkpoint" => {
                let path = self.free_name()?;
                let output = OutputFile::create(&path)?;
                let mut profile = self.read()?;
                lines::complete(&mut profile, &mut lines::Lookup::default());
                output.save(&profile)?;
                Ok(format!("saved as {}", path.display()))
            }
            "detach" => {
                if self.has_ended() {
                    bail!("there is no process to detach from any more");
                }
                let detached = detach::detach(self.pid)?;
                self.detached.store(true, Ordering::Relaxed);
                detached.unmap()?;
                Ok(format!(
                    "detached: the code of process {} is what it was",
                    self.pid
                ))
            }
            what => bail!("nothing is called '{what}'"),
        }
    }

    /// `state=off&f=12,13` or `state=off&match=REGEX`.
    fn switch(&self, request: &Question) -> anyhow::Result<String> {
        if self.has_ended() {
            bail!("the process has ended, or is no longer attached: nothing can be switched");
        }
        let state = request
            .text("state")
            .and_then(switch::state_named)
            .context("'state' is timed, timed 1 in 64, counted or off")?;
        let functions = request.numbers("f", u32::MAX)?;
        let which = match request.text("match") {
            Some(pattern) => Which::Named(pattern),
            None if functions.is_empty() => bail!("no function was named"),
            None => Which::Numbered(&functions),
        };
        let report = switch::switch(self.pid, &[(which, state)])?;
        self.is_due.store(true, Ordering::Relaxed);
        let text = report.text("switched");
        match report.is_refusal {
            true => bail!("{text}"),
            false => Ok(text),
        }
    }

    /// In the directory that the server was started in; nothing is overwritten.
    fn free_name(&self) -> anyhow::Result<PathBuf> {
        (1..10_000)
            .map(|number| PathBuf::from(format!("process-{}-{number}.thalweg", self.pid)))
            .find(|path| !path.exists())
            .ok_or_else(|| anyhow!("there are ten thousand checkpoints here: remove some"))
    }
}

/// Puts a new reading in the place of the last one, as long as the process lives and someone looks.
pub fn keep_reading(
    watched: Arc<Watched>,
    subject: Arc<RwLock<Arc<Subject>>>,
    interrupts: Interrupts,
) {
    std::thread::spawn(move || {
        let mut next = Instant::now() + INTERVAL;
        let mut last = Instant::now();
        while !interrupts.any() {
            std::thread::sleep(Duration::from_millis(50));
            let is_due = watched.is_due.swap(false, Ordering::Relaxed);
            if !is_due && (Instant::now() < next || !watched.is_watched()) {
                continue;
            }
            let begun = Instant::now();
            // The memory outlives the process; what it held at the end is shown.
            let ended = watched.has_ended();
            let Ok(profile) = watched.shown() else { break };
            let before = subject
                .read()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .clone();
            let reading = Reading {
                pid: watched.pid.0 as u32,
                number: before.reading().map_or(1, |reading| reading.number + 1),
                rates: rates(before.profile(), &profile, last.elapsed().as_secs_f64()),
                ended,
            };
            last = begun;
            let now = Arc::new(watched.subject(profile, reading));
            *subject
                .write()
                .unwrap_or_else(|poisoned| poisoned.into_inner()) = now;
            if ended {
                break;
            }
            // Reading large trees takes time itself; they are read less often.
            next = Instant::now() + INTERVAL.max(begun.elapsed() * 10);
        }
    });
}

fn rates(before: &Profile, after: &Profile, seconds: f64) -> Vec<[f64; 3]> {
    let mut rates = vec![[0.0; 3]; after.functions.len()];
    for (sign, profile) in [(1.0, after), (-1.0, before)] {
        for row in flat(profile) {
            if let Some(rates) = rates.get_mut(row.function as usize) {
                let figures = [row.calls, row.base, row.cum];
                for (rate, figure) in rates.iter_mut().zip(figures) {
                    *rate += sign * figure as f64 / seconds.max(1e-3);
                }
            }
        }
    }
    // Functions of a reading are numbered anew when code was loaded: nothing ever runs backwards.
    for rate in rates.iter_mut().flatten() {
        *rate = rate.max(0.0);
    }
    rates
}
