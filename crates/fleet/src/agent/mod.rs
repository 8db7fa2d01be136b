//! `thalweg agent`: continuous profiling.
//!
//! ```text
//! /proc -> chosen processes -> one that is due -> thalweg record -p PID -> spool -> store
//! ```
//!
//! Recording and sending do not wait for each other: between them is the spool.

mod config;
mod host;
mod processes;
mod recorder;
mod schedule;
mod sender;
mod spool;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use config::Settings;
use processes::{Own, Process};
use recorder::{Ended, Recorder};
use schedule::Schedule;
use spool::Spool;

pub use config::Args;

const MAX_SCAN_PERIOD: Duration = Duration::from_secs(10);
/// What could not be detached is tried again.
const SETTLE_PERIOD: Duration = Duration::from_secs(30);
const MIN_SCAN_PERIOD: Duration = Duration::from_millis(200);
/// Of an agent that was asked to end, for what is in the spool; the rest is sent by the next one.
const LAST_SENDING: Duration = Duration::from_secs(5);

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let settings = Arc::new(args.settings()?);
    let spool = Arc::new(Spool::open(&settings.spool)?);
    spool.remove_temporary()?;
    let (stop, stopped) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch signals")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = stop.send(true);
    });
    let agent = Agent {
        recorder: Recorder::new(&settings, Arc::clone(&spool)),
        own: Own::new(&settings.thalweg),
        schedule: Schedule::new(settings.every, settings.at_most),
        stopped: stopped.clone(),
        was_busy: false,
        settings: Arc::clone(&settings),
        spool: Arc::clone(&spool),
    };
    let (done, nothing_more) = watch::channel(false);
    let sending = tokio::spawn(sender::run(
        Arc::clone(&settings),
        Arc::clone(&spool),
        nothing_more,
    ));
    if !settings.quiet {
        tell!("thalweg agent: {settings}");
    }
    let result = agent.run().await;
    let _ = done.send(true);
    if tokio::time::timeout(LAST_SENDING, sending).await.is_err() {
        // A file system that does not answer would keep this process for ever.
        let waiting = spool.profiles()?.len();
        tell!(
            "thalweg agent: ends with {waiting} profiles in the spool: the store does not answer"
        );
        let status = if result.is_ok() { 0 } else { 2 };
        std::process::exit(status);
    }
    result.map(|()| ExitCode::SUCCESS)
}

struct Agent {
    settings: Arc<Settings>,
    spool: Arc<Spool>,
    recorder: Recorder,
    own: Own,
    schedule: Schedule,
    stopped: watch::Receiver<bool>,
    was_busy: bool,
}

impl Agent {
    async fn run(mut self) -> anyhow::Result<()> {
        let period = (self.settings.every / 4).clamp(MIN_SCAN_PERIOD, MAX_SCAN_PERIOD);
        let mut settled: Option<Instant> = None;
        while !*self.stopped.borrow() {
            if settled.is_none_or(|at| at.elapsed() > SETTLE_PERIOD) {
                self.recorder.settle_all().await?;
                self.spool.bound(&self.settings.bounds)?;
                settled = Some(Instant::now());
            }
            let chosen = processes::chosen(&self.settings.groups, &self.own);
            self.schedule.see(&chosen);
            if let Some(due) = self.schedule.due(&chosen) {
                if self.is_busy() {
                    self.schedule.put_off();
                } else {
                    self.record(due.clone()).await?;
                    continue;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                _ = self.stopped.changed() => {}
            }
        }
        Ok(())
    }

    /// Told when it begins and when it ends.
    fn is_busy(&mut self) -> bool {
        let reason = self.settings.limits.exceeded();
        match &reason {
            Some(reason) if !self.was_busy => {
                tell!("thalweg agent: nothing is recorded while the host is busy: {reason}");
            }
            None if self.was_busy => tell!("thalweg agent: the host is no longer busy"),
            _ => {}
        }
        self.was_busy = reason.is_some();
        reason.is_some()
    }

    async fn record(&mut self, process: Process) -> anyhow::Result<()> {
        self.spool.bound(&self.settings.bounds)?;
        let ended = match self.spool.room(self.settings.bounds.keep_free) {
            Ok(()) => self.recorder.record(&process, &mut self.stopped).await?,
            Err(full) => Ended::Refused(full.to_string()),
        };
        match ended {
            Ended::Recorded => {
                self.spool.count(|counters| counters.recorded += 1);
            }
            Ended::Gone => {}
            Ended::Refused(why) => {
                self.spool.count(|counters| counters.refused += 1);
                if self.schedule.is_news(&process, &why) {
                    let name = crate::output::printable_lines(&process.name);
                    let why = crate::output::printable_lines(&why);
                    tell!(
                        "thalweg agent: process {} ({name}) is not recorded: {why}",
                        process.pid
                    );
                }
            }
        }
        self.schedule.recorded(&process);
        self.spool.bound(&self.settings.bounds)
    }
}
