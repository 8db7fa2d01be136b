//! A `thalweg record -p` in the background.

use super::live::Live;
use super::thalweg::{command, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

pub struct Recording(Child);

impl Recording {
    /// Starts it and waits until the target is patched and its gates are served.
    #[track_caller]
    pub fn of(live: &Live, file: &Path, options: &[&str]) -> Recording {
        Recording::of_process(live.pid(), file, options)
    }

    #[track_caller]
    pub fn of_process(pid: u32, file: &Path, options: &[&str]) -> Recording {
        let mut child = command()
            .args(["record", "--budget", "off", "-p", &pid.to_string(), "-o"])
            .arg(file)
            .args(options)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("thalweg starts");
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_served(pid) {
            if child.try_wait().expect("wait").is_some() {
                panic!("{}", text(&child.wait_with_output().expect("output")));
            }
            assert!(
                Instant::now() < deadline,
                "it is not recorded after a minute"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Recording(child)
    }

    pub fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("it runs");
    }

    /// Ctrl-C; gives what it said.
    #[track_caller]
    pub fn interrupt(self) -> String {
        self.send(Signal::SIGINT);
        self.end()
    }

    /// Waits for its end, which must be a good one; gives what it said.
    #[track_caller]
    pub fn end(self) -> String {
        let output = self.0.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Whether somebody records it by now.
fn is_served(pid: u32) -> bool {
    let mut status = command();
    status.args(["status", &pid.to_string(), "--json"]);
    let status = status.output();
    let status = status.expect("thalweg starts").stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
    status["served"] == true
}
