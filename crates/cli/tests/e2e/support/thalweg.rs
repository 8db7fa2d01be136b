//! Runs the real `thalweg` binary.

use super::build::Program;
use super::profile::Profile;
use super::scratch::Scratch;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

/// No test waits for a calibration that it did not ask for, nor depends on one that somebody made on this machine. Analysed files
/// are kept for the other tests, apart from the user's.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command
        .env("THALWEG_NO_CALIBRATE", "1")
        .env("THALWEG_KEEP_SECONDS", "120")
        .env("XDG_STATE_HOME", "/nonexistent")
        .env_remove("THALWEG_CACHE")
        .env("XDG_CACHE_HOME", super::scratch::root().join("cache"));
    command
}

/// Another program that runs thalweg, in the same environment.
pub fn through(program: impl AsRef<OsStr>) -> Command {
    let mut through = Command::new(program);
    for (name, value) in command().get_envs() {
        match value {
            Some(value) => through.env(name, value),
            None => through.env_remove(name),
        };
    }
    through
}

/// Any command, killed if it takes for ever.
#[allow(dead_code)] // The attack suite uses it.
pub fn bounded() -> Command {
    let mut bounded = through("timeout");
    bounded.args(["-k", "5", "120"]).stdin(Stdio::null());
    bounded
}

/// Runs thalweg with these arguments, whatever comes of it.
pub fn thalweg<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    let mut command = command();
    command.args(arguments).stdin(Stdio::null());
    command.output().expect("thalweg starts")
}

/// Runs thalweg, which must succeed; gives its stdout.
#[track_caller]
pub fn succeed<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    let output = thalweg(arguments);
    assert!(
        output.status.success(),
        "thalweg {} failed: {}",
        words(arguments),
        text(&output)
    );
    String::from_utf8(output.stdout).expect("thalweg prints text")
}

/// Runs thalweg, which must refuse with code 2 and a message of its own; gives the message.
#[track_caller]
pub fn refuse<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    let output = thalweg(arguments);
    assert_eq!(
        output.status.code(),
        Some(2),
        "thalweg {} should end with code 2: {}",
        words(arguments),
        text(&output)
    );
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !message.contains("panicked"),
        "thalweg {} panicked: {message}",
        words(arguments)
    );
    assert!(
        output.stdout.is_empty(),
        "a refusal goes to stderr only: {}",
        text(&output)
    );
    message
}

pub struct Recorded {
    pub profile: Profile,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub status: ExitStatus,
}

/// `thalweg record OPTIONS -- PROGRAM ARGUMENTS`, then `export`. `record`'s status is the target's.
#[track_caller]
pub fn record_with_input(
    options: &[&str],
    program: &Path,
    arguments: &[&str],
    input: &[u8],
) -> Recorded {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let mut child = command()
        .arg("record")
        .arg("-o")
        .arg(&file)
        .args(options)
        .arg("--")
        .arg(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("thalweg starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A target that does not read is free to close its end.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("thalweg ends");
    writer.join().expect("writer");
    assert!(file.exists(), "record wrote no profile: {}", text(&output));
    Recorded {
        profile: export(&file),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        status: output.status,
    }
}

#[track_caller]
pub fn record(options: &[&str], program: &Program, arguments: &[&str]) -> Recorded {
    record_path(options, &program.path, arguments)
}

/// Records a program that must end well.
#[track_caller]
pub fn record_path(options: &[&str], program: &Path, arguments: &[&str]) -> Recorded {
    let recorded = record_with_input(options, program, arguments, b"");
    assert!(
        recorded.status.success(),
        "{} under thalweg ended with {:?} (signal {:?}):\n{}\n{}",
        program.display(),
        recorded.status.code(),
        recorded.status.signal(),
        String::from_utf8_lossy(&recorded.stdout),
        recorded.stderr
    );
    recorded
}

#[track_caller]
pub fn export(file: &Path) -> Profile {
    let json = succeed(&[
        OsStr::new("export"),
        OsStr::new("-i"),
        file.as_os_str(),
        "--format".as_ref(),
        "json".as_ref(),
    ]);
    Profile::parse(&json)
}

pub fn words<S: AsRef<OsStr>>(arguments: &[S]) -> String {
    arguments
        .iter()
        .map(|a| a.as_ref().to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

pub fn text(output: &Output) -> String {
    format!(
        "status {:?}, signal {:?}\nstdout: {}\nstderr: {}",
        output.status.code(),
        output.status.signal(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
