//! Java virtual machines that run: what is found in them, and that they drop what they have compiled.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use thalweg_instrument::java::{Machine, drop_compiled};
use thalweg_ptrace::proc::Pid;

/// Calls a method over and over and says what came out, for as long as it is let.
const SOURCE: &str = "
public class Busy {
    static long step(long value) { return value * 6364136223846793005L + 1442695040888963407L; }
    public static void main(String[] none) {
        for (int round = 0;; round++) {
            long value = 1;
            for (int i = 0; i < 2_000_000; i++) value = step(value);
            System.out.println(\"round \" + round + \" \" + value);
        }
    }
}";

struct Java {
    child: Child,
    output: BufReader<ChildStdout>,
    _folder: PathBuf,
}

impl Java {
    fn start(name: &str, options: &[&str]) -> Java {
        let folder = std::env::temp_dir().join(format!("thalweg-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("Busy.java"), SOURCE).unwrap();
        let mut compiler = Command::new("javac");
        let compiled = compiler.arg("Busy.java").current_dir(&folder).status();
        assert!(compiled.unwrap().success());
        let mut child = Command::new("java")
            .args(options)
            .arg("Busy")
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Java {
            child,
            output,
            _folder: folder,
        }
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    /// Reads lines until one is as wanted; all rounds on the way must have the right result.
    fn until(&mut self, what: &str, mut wanted: impl FnMut(&str) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "{what}: it ended"
            );
            if let Some(round) = line.strip_prefix("round ") {
                let value = round.split_whitespace().nth(1).unwrap();
                assert_eq!(value, expected().to_string());
            }
            if wanted(&line) {
                return;
            }
            assert!(Instant::now() < deadline, "{what} does not come");
        }
    }
}

fn expected() -> i64 {
    (0..2_000_000).fold(1i64, |value, _| {
        value
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407)
    })
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self._folder);
    }
}

#[test]
fn a_machine_drops_what_it_has_compiled_each_time_and_goes_on() {
    let mut java = Java::start("drop", &["-XX:+PrintCompilation"]);
    java.until("compiled code", |line| line.contains("Busy::step"));
    java.until("a round", |line| line.starts_with("round"));
    let machine = Machine::of_process(java.pid()).unwrap().expect("HotSpot");
    assert!(!machine.is_set().unwrap());
    for time in ["the first time", "the second time", "the third time"] {
        drop_compiled(&machine).unwrap();
        let gone = |line: &str| line.contains("Busy::step") && line.contains("made not entrant");
        java.until(time, gone);
        java.until("compiled again", |line| {
            line.contains("Busy::step") && !line.contains("made not")
        });
        java.until("a round", |line| line.starts_with("round"));
    }
    let left = std::fs::read_dir("/tmp").unwrap().flatten();
    let ours = format!(".thalweg-{}-", java.pid());
    let wish = format!(".attach_pid{}", java.pid());
    for entry in left {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(!name.starts_with(&ours) && name != wish, "{name} is left");
    }
}

#[test]
fn a_machine_that_may_not_be_asked_is_left_alone() {
    for (option, why) in [
        ("-XX:+DisableAttachMechanism", "DisableAttachMechanism"),
        ("-Xrs", "-Xrs"),
    ] {
        let mut java = Java::start(&option[1..4], &[option]);
        java.until("a round", |line| line.starts_with("round 1"));
        let machine = Machine::of_process(java.pid()).unwrap().expect("HotSpot");
        let refused = drop_compiled(&machine).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
        // A machine that was sent SIGQUIT would print its threads, or end.
        java.until("a round", |line| {
            assert!(line.starts_with("round"), "{line}");
            line.starts_with("round 2")
        });
    }
}

#[test]
fn what_is_no_java_has_no_machine() {
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let found = Machine::of_process(Pid(sleeper.id() as i32)).unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(found.is_none());
}
