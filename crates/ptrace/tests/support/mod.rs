//! Real target programs: compiled here, run as children, checked by themselves.

#![allow(dead_code)] // each test binary uses a part of it

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use thalweg_ptrace::proc::Pid;

/// A directory of the test's own, removed at its end.
pub struct Dir {
    path: PathBuf,
}

impl Dir {
    pub fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("thalweg-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Compiles a C program.
    pub fn c(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let file = self.path.join(format!("{name}.c"));
        let program = self.path.join(name);
        std::fs::write(&file, source).unwrap();
        let done = Command::new("gcc")
            .args(["-O1", "-w", "-pthread", "-o"])
            .arg(&program)
            .arg(&file)
            .args(flags)
            .status()
            .expect("gcc is needed for the tests of this crate");
        assert!(done.success(), "{name}.c does not compile");
        program
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A running target whose standard output is read here; killed at the end of the test.
pub struct Target {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Target {
    /// Starts it and waits for its line "ready".
    pub fn start(program: &Path, arguments: &[&str]) -> Target {
        let mut target = Target::run(Command::new(program).args(arguments));
        assert_eq!(target.line(), "ready");
        target
    }

    pub fn run(command: &mut Command) -> Target {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Target { child, out }
    }

    pub fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and not collected yet, so the id is its.
        assert_eq!(unsafe { libc::kill(self.pid().0, signal) }, 0);
    }

    /// Asks the program to end and to judge: its last line.
    pub fn verdict(mut self) -> String {
        self.signal(libc::SIGTERM);
        let line = self.line();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the target ended with {status}: {line}");
        line
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The letter that ps shows.
    pub fn state(&self) -> char {
        thalweg_ptrace::proc::stat(self.pid()).unwrap().state
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that can be started at once. Another process writes it: a child that some other test starts meanwhile would
/// inherit our descriptor, and what is open for writing cannot be executed.
pub fn copy_program(from: &Path, to: &Path) {
    let status = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}
