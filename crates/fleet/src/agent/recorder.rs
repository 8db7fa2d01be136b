//! One recording: `thalweg record -p PID`, and that the process is as it was afterwards.
//!
//! The recorder ends by itself when its time is over, also if the agent is killed. Should it be
//! killed as well, the mark in the spool tells the next agent which process to detach.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::config::Settings;
use super::processes::{self, Id, Process};
use super::spool::{Labels, Spool};

/// For attaching and saving; a large program takes some seconds.
const BEYOND: Duration = Duration::from_secs(120);
/// From the request to end until it is killed.
const TO_END: Duration = Duration::from_secs(60);
const BUSY_PERIOD: Duration = Duration::from_secs(1);
const MAX_MESSAGE_BYTES: u64 = 16 << 10;

pub struct Recorder {
    settings: Arc<Settings>,
    spool: Arc<Spool>,
}

pub enum Ended {
    Recorded,
    /// The process has ended.
    Gone,
    Refused(String),
}

impl Recorder {
    pub fn new(settings: &Arc<Settings>, spool: Arc<Spool>) -> Recorder {
        Recorder {
            settings: Arc::clone(settings),
            spool,
        }
    }

    pub async fn record(
        &self,
        process: &Process,
        stopped: &mut watch::Receiver<bool>,
    ) -> anyhow::Result<Ended> {
        let id = process.id;
        if !processes::is_alive(id) {
            return Ok(Ended::Gone);
        }
        if let Some(why) = processes::taken(id.pid) {
            return Ok(Ended::Refused(why.to_owned()));
        }
        let group = &self.settings.groups[process.group];
        let name = Spool::name(
            id.pid,
            &Labels {
                service: group.service.clone(),
                release: group.release.clone(),
                host: self.settings.host.clone(),
            },
        );
        if let Err(error) = self.spool.mark(id) {
            return Ok(Ended::Refused(format!("{error:#}")));
        }
        let mut child = match self.start(id.pid, &name) {
            Ok(child) => child,
            Err(error) => {
                self.spool.unmark(id);
                return Ok(Ended::Refused(format!("{error:#}")));
            }
        };
        let messages = tokio::spawn(first_of(child.stderr.take()));
        let status = self.wait(&mut child, stopped).await?;
        let message = tokio::time::timeout(Duration::from_secs(1), messages).await;
        let message = message.ok().and_then(Result::ok).unwrap_or_default();
        self.settle(id).await;
        let is_there = self.spool.has(&name);
        if is_there {
            self.spool.added.notify_one();
        }
        // Without what differs each time, so that the same is told once. Nobody keeps what was counted: it
        // was told so at the start.
        let message = message.replace(&name, "its profile");
        let message = message.trim().trim_start_matches("thalweg: ");
        let message = message.split("; process ").next().unwrap_or(message);
        if !status.success() && is_there {
            // Saved, and something was wrong nevertheless.
            tell!("thalweg agent: process {}: {}", id.pid, shown(message));
        }
        Ok(match is_there {
            true => Ended::Recorded,
            false if !processes::is_alive(id) => Ended::Gone,
            false if message.is_empty() => Ended::Refused(format!("the recorder ended: {status}")),
            false => Ended::Refused(message.to_owned()),
        })
    }

    /// In the spool's directory as it was opened, whatever stands under its path by now. In a
    /// process group of its own: who ends the agent from a terminal ends the recording by way of
    /// the agent.
    fn start(&self, pid: u32, name: &str) -> anyhow::Result<Child> {
        let thalweg = std::path::absolute(&self.settings.thalweg)?;
        let seconds = self.settings.duration.as_millis();
        Command::new(&thalweg)
            .args(["record", "--quiet", "--no-report", "-p"])
            .arg(pid.to_string())
            .args(["-d", &format!("{seconds}ms")])
            .args(["--budget", &self.settings.budget])
            .args(&self.settings.record_options)
            .args(["-o", name])
            .current_dir(self.spool.folder())
            // What a full disk has no room for is not kept in memory instead: it would be, once
            // every few minutes.
            .env("THALWEG_KEEP_SECONDS", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", thalweg.display()))
    }

    async fn wait(
        &self,
        child: &mut Child,
        stopped: &mut watch::Receiver<bool>,
    ) -> io::Result<ExitStatus> {
        let late = tokio::time::sleep(self.settings.duration + BEYOND);
        tokio::pin!(late);
        let mut check = tokio::time::interval(BUSY_PERIOD);
        let mut is_stopped = *stopped.borrow();
        while !is_stopped {
            tokio::select! {
                status = child.wait() => return status,
                () = &mut late => break,
                _ = stopped.changed() => is_stopped = true,
                _ = check.tick() => is_stopped = self.settings.limits.exceeded().is_some(),
            }
        }
        // It detaches, and saves what it has.
        send(child, Signal::INT);
        match tokio::time::timeout(TO_END, child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                send(child, Signal::KILL);
                child.wait().await
            }
        }
    }

    /// Detaches what a recorder has left, now or under an agent that was killed. A mark that stays
    /// is tried again.
    pub async fn settle_all(&self) -> anyhow::Result<()> {
        for id in self.spool.marked()? {
            if !processes::is_alive(id) {
                self.spool.unmark(id);
            } else {
                self.settle(id).await;
            }
        }
        Ok(())
    }

    async fn settle(&self, id: Id) {
        if !processes::is_attached(id.pid) {
            return self.spool.unmark(id);
        }
        // Of an agent that was killed, or somebody's: it detaches by itself.
        if processes::is_recorded(id.pid) {
            return;
        }
        if self.is_kept(id).await {
            return self.spool.unmark(id);
        }
        let mut detach = Command::new(&self.settings.thalweg);
        detach.arg("detach").arg(id.pid.to_string());
        match detach.stdin(Stdio::null()).output().await {
            Ok(output) if output.status.success() => {
                tell!(
                    "thalweg agent: process {} was left attached, and is detached now",
                    id.pid
                );
                self.spool.unmark(id);
            }
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                tell!(
                    "thalweg agent: process {} is still attached: {}",
                    id.pid,
                    shown(why.trim())
                );
            }
            Err(error) => tell!("thalweg agent: cannot detach process {}: {error}", id.pid),
        }
    }

    /// A process of thalweg lives that looks after it.
    async fn is_kept(&self, id: Id) -> bool {
        let mut status = Command::new(&self.settings.thalweg);
        status.arg("status").arg(id.pid.to_string()).arg("--json");
        let Ok(output) = status.stdin(Stdio::null()).output().await else {
            return false;
        };
        let told: Result<serde_json::Value, _> = serde_json::from_slice(&output.stdout);
        told.is_ok_and(|told| {
            let keepers = ["sidecar", "budget_kept_by", "looked_at_by"];
            told["served"] == true || keepers.iter().any(|keeper| !told[*keeper].is_null())
        })
    }
}

fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

fn shown(message: &str) -> String {
    crate::output::printable_lines(message)
}

/// All is read, so that nobody waits for us; the beginning is kept.
async fn first_of(from: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut from) = from else {
        return String::new();
    };
    let mut first = Vec::new();
    let _ = (&mut from)
        .take(MAX_MESSAGE_BYTES)
        .read_to_end(&mut first)
        .await;
    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&first).into_owned()
}
