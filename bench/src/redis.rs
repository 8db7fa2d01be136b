//! A server under load: redis, asked by its own benchmark over a socket of the file system.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// What redis-server is started with, in the folder of the benchmark: it writes nothing to the disk.
pub(super) const ARGUMENTS: &[&str] = &[
    "--port",
    "0",
    "--save",
    "",
    "--appendonly",
    "no",
    "--unixsocket",
    SOCKET,
];
const SOCKET: &str = "redis.sock";

/// How long it may take to begin: it is analysed and patched before.
const BEGINNING: Duration = Duration::from_secs(30);

/// How many different requests a load consists of.
pub(super) const KINDS: f64 = 4.0;

pub(super) struct Redis {
    socket: PathBuf,
}

impl Redis {
    /// One that is about to be started in this folder.
    pub(super) fn new(folder: &Path) -> Redis {
        let socket = folder.join(SOCKET);
        let _ = std::fs::remove_file(&socket);
        Redis { socket }
    }

    fn ask(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new("redis-cli");
        command.arg("-s").arg(&self.socket).args(words);
        let output = command.output().context("cannot run redis-cli")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Until it answers.
    pub(super) fn wait(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + BEGINNING;
        while !self.socket.exists() || self.ask(&["ping"])?.trim() != "PONG" {
            if Instant::now() > deadline {
                bail!("redis-server does not answer");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// So many requests of each kind.
    pub(super) fn load(&self, requests: u32) -> anyhow::Result<()> {
        let mut command = Command::new("redis-benchmark");
        command.arg("-s").arg(&self.socket);
        command.args(["-q", "-t", "set,get,lpush,lpop", "-P", "8", "-n"]);
        command.arg(requests.to_string());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().context("cannot run redis-benchmark")?;
        Ok(())
    }

    /// Seconds of processor time, as it says itself.
    pub(super) fn used(&self) -> anyhow::Result<f64> {
        let said = self.ask(&["info", "cpu"])?;
        let field = |name: &str| -> f64 {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok())
                .unwrap_or(0.0)
        };
        Ok(field("used_cpu_user:") + field("used_cpu_sys:"))
    }

    pub(super) fn stop(&self) -> anyhow::Result<()> {
        self.ask(&["shutdown", "nosave"]).map(drop)
    }
}
