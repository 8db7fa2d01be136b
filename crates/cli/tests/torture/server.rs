//! Servers under load: launched, and attached to while they answer.

use crate::cycles::{self, Generates};
use crate::processor;
use crate::row::{Launched, Row};
use crate::support::build::copy_program;
use crate::support::in_short_or_long;
use crate::support::thalweg::command;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub struct Server<'a> {
    pub program: &'a str,
    pub generates: Generates,
    pub arguments: Vec<String>,
    pub answers: &'a dyn Fn() -> bool,
    /// About so many seconds of load. Checks every answer, and gives answers per second.
    pub load: &'a (dyn Fn(u64) -> f64 + Sync),
    /// The process to attach to, given the server's.
    pub victim: &'a dyn Fn(u32) -> Option<u32>,
    /// When the last cycle is over and the server is about to be stopped.
    pub before_stop: &'a dyn Fn(),
    pub user: Option<u32>,
    /// What makes it end well.
    pub stop: Signal,
}

/// A directory outside of the build's, and a port that was free a moment ago.
pub fn place() -> (TempDir, u16) {
    let directory = TempDir::new().expect("a temporary directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    (
        directory,
        listener.local_addr().expect("its address").port(),
    )
}

impl Server<'_> {
    #[track_caller]
    pub fn try_out(&self, directory: &Path) {
        let pairs = in_short_or_long(1, 3);
        let (mut plain, mut under, mut launched) = (f64::MAX, f64::MAX, None);
        for _ in 0..pairs {
            plain = plain.min(self.by_itself());
            let (cost, profile) = self.launch(directory);
            under = under.min(cost);
            launched = Some(profile);
        }
        let cycles = self.attach();
        Row {
            program: self.program,
            launched: &launched.expect("at least one pair"),
            cycles,
            slowdown: under / plain,
        }
        .write();
    }

    fn start(&self, mut command: Command) -> Running<'_> {
        let log = tempfile::tempfile().expect("a file for what the server says");
        let handle = || log.try_clone().expect("one more handle");
        command
            .stdin(Stdio::null())
            .stdout(handle())
            .stderr(handle());
        if let Some(user) = self.user {
            command.uid(user);
        }
        let child = command.spawn().expect("the server starts");
        let mut running = Running {
            child,
            log,
            server: self,
        };
        let deadline = Instant::now() + Duration::from_secs(120);
        while !(self.answers)() {
            if let Some(status) = running.child.try_wait().expect("wait") {
                panic!("{} ended with {status}: {}", self.program, running.said());
            }
            assert!(
                Instant::now() < deadline,
                "{} does not answer",
                self.program
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        running
    }

    fn plain(&self) -> Command {
        let mut plain = Command::new(&self.arguments[0]);
        plain.args(&self.arguments[1..]);
        plain
    }

    /// Processor time of the server for each answer.
    fn cost_of_an_answer(&self, server: u32) -> f64 {
        let (before, started) = (processor::seconds(server), Instant::now());
        let rate = (self.load)(in_short_or_long(2, 10));
        (processor::seconds(server) - before) / (rate * started.elapsed().as_secs_f64())
    }

    fn by_itself(&self) -> f64 {
        let running = self.start(self.plain());
        let pid = running.child.id();
        let cost = self.cost_of_an_answer(pid);
        running.stop(pid);
        cost
    }

    fn launch(&self, directory: &Path) -> (f64, Launched) {
        let file = directory.join("launched.thalweg");
        let thalweg = directory.join("thalweg");
        // The server's user may not be able to reach the build directory.
        if !thalweg.exists() {
            copy_program(env!("CARGO_BIN_EXE_thalweg").as_ref(), &thalweg);
        }
        let mut launch = Command::new(&thalweg);
        launch
            .args(["record", "-q", "--no-report", "-o"])
            .arg(&file)
            .arg("--")
            .args(&self.arguments);
        let running = self.start(launch);
        let target = *processor::children(running.child.id())
            .first()
            .expect("thalweg's child is the server");
        let cost = self.cost_of_an_answer(target);
        running.stop(target);
        (cost, Launched::read(&file))
    }

    #[track_caller]
    fn attach(&self) -> u32 {
        let running = self.start(self.plain());
        let root = running.child.id();
        let over = AtomicBool::new(false);
        let survived = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    (self.load)(in_short_or_long(4, 30));
                }
            });
            let survived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                cycles::survive(cycles::count(), self.generates, || {
                    loop {
                        assert!(!load.is_finished(), "the load on {} failed", self.program);
                        if let Some(pid) = (self.victim)(root) {
                            return pid;
                        }
                        std::thread::sleep(Duration::from_millis(20));
                    }
                })
            }));
            over.store(true, Ordering::Relaxed);
            if let Err(panic) = load.join() {
                std::panic::resume_unwind(panic);
            }
            survived.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        (self.before_stop)();
        assert!((self.answers)(), "{} answers afterwards", self.program);
        running.stop(root);
        survived
    }
}

struct Running<'a> {
    child: Child,
    log: File,
    server: &'a Server<'a>,
}

impl Running<'_> {
    fn said(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.log.rewind();
        let _ = self.log.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Ends the server in the way that it likes, which it must do with status 0.
    #[track_caller]
    fn stop(mut self, target: u32) {
        let _ = kill(Pid::from_raw(target as i32), self.server.stop);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                assert!(
                    status.success(),
                    "{} ended with {status}: {}",
                    self.server.program,
                    self.said()
                );
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{} does not end: {}",
                self.server.program,
                self.said()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // A trial that failed: neither the server nor a thalweg that launched it is left running.
        if matches!(self.child.try_wait(), Ok(None)) {
            let id = self.child.id();
            let _ = command().args(["detach", &id.to_string()]).output();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
