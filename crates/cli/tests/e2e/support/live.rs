//! A target that is already running when thalweg comes, as in production.

use super::text::{self, TextMap};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub struct Live {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    ended: Option<ExitStatus>,
}

impl Live {
    pub fn start(program: &Path, arguments: &[&str]) -> Live {
        let mut command = Command::new(program);
        command.args(arguments);
        Live::spawn(&mut command)
    }

    pub fn spawn(command: &mut Command) -> Live {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?} does not start: {e}"));
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Live {
            child,
            stdin,
            stdout,
            ended: None,
        }
    }

    /// Starts the program and waits for its line that begins with "ready".
    pub fn ready(program: &Path, arguments: &[&str]) -> Live {
        let mut live = Live::start(program, arguments);
        let line = live.line();
        assert!(
            line.starts_with("ready"),
            "{} says {line:?} instead of ready",
            program.display()
        );
        live
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The pid as a command line takes it.
    pub fn id(&self) -> String {
        self.pid().to_string()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout
            .read_line(&mut line)
            .expect("target prints text");
        line.trim_end().to_owned()
    }

    /// Writes a command line to the target.
    pub fn tell(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is open");
        writeln!(stdin, "{command}").expect("target reads");
        stdin.flush().expect("target reads");
    }

    /// The same, and gives its answer.
    pub fn ask(&mut self, question: &str) -> String {
        self.tell(question);
        self.line()
    }

    pub fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).expect("target can be signalled");
    }

    pub fn text(&self) -> TextMap {
        text::executable_mappings(self.pid())
    }

    pub fn threads(&self) -> Vec<u32> {
        let mut threads: Vec<u32> = std::fs::read_dir(format!("/proc/{}/task", self.pid()))
            .expect("target lives")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        threads.sort();
        threads
    }

    /// The target is there, it is not stopped and nobody traces it.
    #[track_caller]
    pub fn assert_healthy(&mut self) {
        if let Some(status) = self.child.try_wait().expect("wait") {
            let mut rest = String::new();
            let _ = self.stdout.read_to_string(&mut rest);
            panic!("target ended with {status}: {rest}");
        }
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("target lives");
        let field = |name: &str| {
            let line = status
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_default();
            line[name.len().min(line.len())..].trim().to_owned()
        };
        assert_eq!(field("TracerPid:"), "0", "a tracer is still attached");
        let state = field("State:");
        assert!(
            !state.starts_with('T') && !state.starts_with('t'),
            "target is left stopped: {state}"
        );
    }

    /// Asks the target to end by SIGTERM; gives its last words and status.
    pub fn terminate(mut self) -> (String, ExitStatus) {
        self.send(Signal::SIGTERM);
        self.wait(Duration::from_secs(60))
    }

    /// Waits for the end, and for no longer than this.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> (String, ExitStatus) {
        drop(self.stdin.take());
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "target does not end within {limit:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        self.ended = Some(status);
        let mut rest = String::new();
        self.stdout
            .read_to_string(&mut rest)
            .expect("target prints text");
        (rest, status)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What a web server on this machine answers, headers included.
pub fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}
