//! A terminal of our own with thalweg in it: keys go in, and what stands on the screen can be read.

use super::thalweg::command;
use nix::pty::{Winsize, openpty};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::num::NonZero;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ROWS: u16 = 40;
const COLUMNS: u16 = 120;

/// How long something may take to appear on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Screen {
    child: Child,
    keys: File,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    pub fn start(arguments: &[&str]) -> Screen {
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).expect("a pty");
        let end = |_| File::from(pty.slave.try_clone().expect("clone"));
        let child = command()
            .args(arguments)
            .env("TERM", "xterm-256color")
            .stdin(end(0))
            .stdout(end(1))
            .stderr(end(2))
            .spawn()
            .expect("thalweg starts");
        drop(pty.slave);
        let keys = File::from(pty.master);
        let mut output = keys.try_clone().expect("clone");
        let [rows, columns] = [ROWS, COLUMNS].map(|size| NonZero::new(size).expect("not 0"));
        let parser = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let shared = Arc::clone(&parser);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The last end of the terminal is closed when thalweg ends, which is EIO on this side.
            loop {
                match output.read(&mut bytes) {
                    Ok(0) => break,
                    Ok(count) => shared.lock().expect("parser").process(&bytes[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        eprintln!("the terminal is read no more: {error}");
                        break;
                    }
                }
            }
        });
        Screen {
            child,
            keys,
            parser,
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("terminal");
    }

    pub fn text(&self) -> String {
        self.parser.lock().expect("parser").screen().contents()
    }

    /// Waits until the screen is as `what` says; gives it.
    #[track_caller]
    pub fn until(&self, what: &str, mut shows: impl FnMut(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut text = self.text();
            if shows(&text) {
                // It may be only half drawn.
                std::thread::sleep(Duration::from_millis(120));
                text = self.text();
                if shows(&text) {
                    return text;
                }
            }
            assert!(Instant::now() < deadline, "never: {what}\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(Instant::now() < deadline, "still there: {}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
