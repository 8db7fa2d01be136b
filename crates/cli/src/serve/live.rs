//! A live process behind the page: read again and again while someone looks; on request its probes are switched, and it is saved
//! and let go.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use thalweg_analysis::{Lanes, Pipeline, flat};
use thalweg_instrument::detach;
use thalweg_instrument::filter::Filter;
use thalweg_model::{OutputFile, Profile};
use thalweg_ptrace::proc::{self, Pid, Tid};
use thalweg_snapshot::lines;

use crate::commands::switch::{self, Which};
use crate::live::Interrupts;
use crate::page::{Load, ProfileView, Query, Reading};
use crate::session::{Reader, completed};

const READING_INTERVAL: Duration = Duration::from_secs(1);

/// A page that asked nothing for so long is closed or frozen.
const IDLE_AFTER: Duration = Duration::from_secs(5);

pub struct Watched {
    pid: Pid,
    started: Instant,
    /// Milliseconds after `started` when a page last asked something.
    looked: AtomicU64,
    detached: AtomicBool,
    /// Something was changed that the next reading shows.
    is_due: AtomicBool,
    reader: Mutex<Reader>,
    target: Option<proc::Target>,
    /// What it did, reading by reading.
    load: Mutex<Load>,
    /// Times as they were measured, with what the probes cost.
    raw: bool,
}

impl Watched {
    pub fn new(pid: Pid, reader: Reader, raw: bool) -> Watched {
        Watched {
            pid,
            started: Instant::now(),
            looked: AtomicU64::new(0),
            detached: AtomicBool::new(false),
            is_due: AtomicBool::new(false),
            reader: Mutex::new(reader.keeping_calls()),
            target: proc::preflight(pid).ok(),
            load: Mutex::default(),
            raw,
        }
    }

    /// Notes what happened since the reading before: calls, processor time, threads that waited.
    fn note_load(&self, rates: &[[f64; 3]]) -> Load {
        let calls = rates.iter().fold(0.0, |sum, rate| sum + rate[0]);
        let tasks = proc::tasks(self.pid).unwrap_or_default();
        let times = tasks
            .iter()
            .map(|&tid| (tid, proc::processor_time(self.pid, tid)));
        let times: HashMap<Tid, u64> = times.filter_map(|(tid, time)| Some((tid, time?))).collect();
        let at = self.started.elapsed().as_nanos() as u64;
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        load.add(at, calls, times);
        load.clone()
    }

    pub fn first(&self) -> anyhow::Result<ProfileView> {
        let reading = Reading {
            pid: self.pid.0 as u32,
            number: 1,
            ..Reading::default()
        };
        Ok(self.view(self.shown()?, reading))
    }

    fn view(&self, (profile, lanes): (Profile, Lanes), reading: Reading) -> ProfileView {
        ProfileView::new(profile, format!("process {}", self.pid))
            .with_lanes(lanes)
            .with_reading(reading)
            .with_sources()
    }

    fn read(&self) -> anyhow::Result<Profile> {
        let mut reader = self
            .reader
            .lock()
            .map_err(|_| anyhow!("an earlier reading failed"))?;
        reader.read()
    }

    /// With the figures that reports show.
    fn shown(&self) -> anyhow::Result<(Profile, Lanes)> {
        let pipeline = Pipeline {
            raw: self.raw,
            ..Pipeline::with_sites()
        };
        let recorded = self.read()?;
        let lanes = Lanes::from_recorded(&recorded);
        Ok((pipeline.run(recorded)?, lanes))
    }

    pub fn someone_looks(&self) {
        let now = self.started.elapsed().as_millis() as u64;
        self.looked.store(now, Ordering::Relaxed);
    }

    fn is_watched(&self) -> bool {
        let looked = Duration::from_millis(self.looked.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(looked) < IDLE_AFTER
    }

    fn has_ended(&self) -> bool {
        let alive = self.target.as_ref().is_some_and(|target| target.is_alive());
        self.detached.load(Ordering::Relaxed) || !alive
    }

    /// Says what was done.
    pub fn act(&self, request: &Query) -> anyhow::Result<String> {
        match request.what.as_str() {
            "switch" => self.switch(request),
            "checkpoint" => {
                let path = self.free_name()?;
                let output = OutputFile::create(&path)?;
                output.save(&completed(self.read()?, &mut lines::Lookup::default()))?;
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
    fn switch(&self, request: &Query) -> anyhow::Result<String> {
        if self.has_ended() {
            bail!("the process has ended, or is no longer attached: nothing can be switched");
        }
        let state = request
            .text("state")
            .and_then(switch::state_named)
            .context("'state' is timed, timed 1 in 64, counted or off")?;
        let functions = request.numbers("f", u32::MAX)?;
        let everywhere = Filter::default();
        let which = match request.text("match") {
            Some(pattern) => Which::Named(pattern, &everywhere),
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
    view: Arc<RwLock<Arc<ProfileView>>>,
    interrupts: Interrupts,
) {
    std::thread::spawn(move || {
        let mut next = Instant::now() + READING_INTERVAL;
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
            let Ok(shown) = watched.shown() else { break };
            let before = view
                .read()
                .unwrap_or_else(|poisoned| poisoned.into_inner())
                .clone();
            let rates = rates(before.profile(), &shown.0, last.elapsed().as_secs_f64());
            let reading = Reading {
                pid: watched.pid.0 as u32,
                number: before.reading().map_or(1, |reading| reading.number + 1),
                load: watched.note_load(&rates),
                rates,
                ended,
            };
            last = begun;
            let now = Arc::new(watched.view(shown, reading));
            *view
                .write()
                .unwrap_or_else(|poisoned| poisoned.into_inner()) = now;
            if ended {
                break;
            }
            // Reading large trees takes time itself; they are read less often.
            next = Instant::now() + READING_INTERVAL.max(begun.elapsed() * 10);
        }
    });
}

fn rates(before: &Profile, after: &Profile, seconds: f64) -> Vec<[f64; 3]> {
    let mut rates = vec![[0.0; 3]; after.functions.len()];
    for (sign, profile) in [(1.0, after), (-1.0, before)] {
        for row in flat(profile) {
            if let Some(rates) = rates.get_mut(row.function.index()) {
                let figures = [row.calls, row.self_ns, row.total_ns];
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
