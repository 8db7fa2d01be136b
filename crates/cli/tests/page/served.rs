//! `thalweg serve` as a child, gone when the test ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Runs thalweg, which must succeed; gives its standard output.
#[track_caller]
pub fn thalweg(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_thalweg"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("thalweg starts");
    assert!(
        output.status.success(),
        "thalweg {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("thalweg prints text")
}

pub struct Served {
    child: Child,
    address: String,
}

impl Served {
    pub fn start(arguments: &[&str]) -> Served {
        Served::start_in(Path::new("."), arguments)
    }

    pub fn start_in(directory: &Path, arguments: &[&str]) -> Served {
        let mut child = Command::new(env!("CARGO_BIN_EXE_thalweg"))
            .arg("serve")
            .args(arguments)
            .arg("--no-open")
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("thalweg starts");
        let mut address = String::new();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        said.read_line(&mut address).unwrap();
        let address = address.trim().to_string();
        assert!(
            address.starts_with("http://127.0.0.1:"),
            "it says {address:?}"
        );
        Served { child, address }
    }

    /// With the secret.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn port(&self) -> u16 {
        let host = self.address.trim_start_matches("http://127.0.0.1:");
        host.split('/').next().unwrap().parse().unwrap()
    }

    pub fn token(&self) -> &str {
        self.address.split_once("token=").unwrap().1
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // As someone who presses Ctrl-C: a process it attached to is let go.
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
        let _ = self.child.wait();
    }
}

/// A program that runs until the test ends, however it does.
pub struct Target(Child);

impl Target {
    pub fn start(command: &mut Command) -> Target {
        Target(command.stdin(Stdio::null()).spawn().unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // One that has ended by itself cannot be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
