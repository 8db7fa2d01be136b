//! A thread that does not stop: it sleeps uninterruptibly (state D) in a `vfork`, on a frozen file system, or at a file
//! server that does not answer. Nothing is lost, nobody else stands still for it, and it finds itself in good order.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::profile::Profile;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{command, export, refuse, succeed, text, thalweg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn program() -> Program {
    Build::new("frozen").source("frozen.c").flag("-O2").finish()
}

/// A target of which one thread sleeps when it is told to.
struct Target {
    live: Live,
}

impl Target {
    fn start(program: &Program, arguments: &[&str]) -> Target {
        Target {
            live: Live::ready(&program.path, arguments),
        }
    }

    fn states(&self) -> Vec<String> {
        let status = |tid| format!("/proc/{}/task/{tid}/status", self.live.pid());
        let threads = self.live.threads().into_iter();
        let texts = threads.filter_map(|tid| std::fs::read_to_string(status(tid)).ok());
        texts
            .filter_map(|text| Some(text.split("State:\t").nth(1)?.get(..1)?.to_owned()))
            .collect()
    }

    /// Tells one thread to sleep, and waits until it does.
    fn freeze(&mut self, state: &str) {
        self.live.ask("freeze");
        wait_until("a thread sleeps", || {
            self.states().iter().any(|now| now == state)
        });
    }

    fn calls(&mut self) -> u64 {
        self.live.ask("work").parse().expect("a number")
    }

    /// The others run, nobody is traced, nobody is left stopped.
    fn assert_others_run(&mut self) {
        for tid in self.live.threads() {
            let path = format!("/proc/{}/task/{tid}/status", self.live.pid());
            let status = std::fs::read_to_string(path).expect("target lives");
            assert!(
                status.contains("TracerPid:\t0\n"),
                "thread {tid} is held: {status}"
            );
        }
        assert!(!self.states().iter().any(|state| state == "t"));
        let before = self.calls();
        wait_until("the worker works", || self.calls() > before);
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "in vain for a minute: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `record -p` in the background, from when on the target is patched.
fn record(target: &Target, file: &Path, options: &[&str]) -> Child {
    let all = match options.contains(&"--budget") {
        true => &[][..],
        false => &["--budget", "off"],
    };
    let child = command()
        .args(["record", "--no-report", "-p", &target.live.id(), "-o"])
        .arg(file)
        .args(options)
        .args(all)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("thalweg starts");
    wait_until("the target is attached", || {
        let status = thalweg(&["status", &target.live.id()]);
        String::from_utf8_lossy(&status.stdout).contains("has been attached")
    });
    child
}

/// Ends a recording while a thread sleeps: the profile is there, and says what it is.
#[track_caller]
fn assert_saved(target: &mut Target, recording: Child, file: &Path) -> Profile {
    kill(Pid::from_raw(recording.id() as i32), Signal::SIGINT).expect("it runs");
    let output = recording.wait_with_output().expect("it ends");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let finish = format!("thalweg detach {}", target.live.id());
    assert!(said.contains(&finish), "{said}");
    assert!(!said.contains("already traced"), "{said}");
    target.assert_others_run();
    let profile = export(file);
    let small = profile.calls_by_name().get("small").copied();
    assert!(small.is_some_and(|calls| calls > 0), "{small:?}");
    let notes = succeed(&["summary".as_ref(), file.as_os_str()]);
    assert!(notes.contains("without stopping it"), "{notes}");
    let status = succeed(&["status", &target.live.id()]);
    assert!(status.contains("has been attached"), "{status}");
    profile
}

/// What is asked of all kinds of sleep. `thaw` ends it.
fn play(target: &mut Target, sleeps_in: &str, thaw: impl FnOnce(&mut Target)) {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let before = target.live.text();
    let recording = record(target, &file, &[]);
    target.freeze(sleeps_in);
    assert_saved(target, recording, &file);
    let message = refuse(&["detach", &target.live.id()]);
    assert!(message.contains("still attached"), "{message}");
    assert!(message.contains("state D"), "{message}");
    target.assert_others_run();
    thaw(target);
    target.assert_others_run();
    succeed(&["detach", &target.live.id()]);
    assert_restored(&before, &target.live.text());
    target.assert_others_run();
    target.live.assert_healthy();
    let status = refuse(&["status", &target.live.id()]);
    assert!(status.contains("not attached"), "{status}");
}

#[test]
fn a_recording_ends_well_while_a_thread_waits_for_its_vfork_child() {
    let program = program();
    for who in ["thread", "main"] {
        let mut target = Target::start(&program, &[who, "vfork"]);
        play(&mut target, "D", |target| {
            target.live.ask("thaw");
        });
    }
}

/// Before, everybody stood still for two seconds of every 2.4: the governor of a budget tried again at once.
#[test]
fn a_budget_does_not_hold_up_the_others_for_a_thread_that_does_not_stop() {
    let program = program();
    let scratch = Scratch::new();
    let profile = scratch.join("profile.thalweg");
    // A vfork parent was waited for with everybody running all along; a frozen file system is what did the harm.
    let mount = is_root().then(|| Mount::new(&scratch)).flatten();
    let file = mount.as_ref().map(|mount| mount.folder.join("file"));
    let file = file.map(|file| file.display().to_string());
    let arguments = match &file {
        Some(file) => vec!["thread", "write", file],
        None => vec!["thread", "vfork"],
    };
    let mut target = Target::start(&program, &arguments);
    let frozen = mount.as_ref().map(Mount::freeze);
    target.freeze("D");
    // Attaching is refused meanwhile, and nothing is left behind.
    let before = target.live.text();
    let message = refuse(&["attach", "--budget", "off", &target.live.id()]);
    assert!(message.contains("state D"), "{message}");
    assert_restored(&before, &target.live.text());
    drop(frozen);
    target.live.ask("thaw");
    let recording = record(&target, &profile, &["--budget", "0.1%", "--samples", "0"]);
    let frozen = mount.as_ref().map(Mount::freeze);
    target.freeze("D");
    let (mut asked, mut stood) = (0, 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        asked += 1;
        stood += u32::from(target.states().iter().any(|state| state == "t"));
        std::thread::sleep(Duration::from_millis(3));
    }
    assert!(
        stood * 3 < asked,
        "threads stood still {stood} of {asked} times"
    );
    target.assert_others_run();
    assert_saved(&mut target, recording, &profile);
    drop(frozen);
    target.live.ask("thaw");
    succeed(&["detach", &target.live.id()]);
    assert_restored(&before, &target.live.text());
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// A mounted file system. It is gone at the end, whatever happens.
struct Mount {
    folder: PathBuf,
}

impl Mount {
    /// One in a file, which can be frozen. `None` where there are no loop devices, or not the means to make one.
    fn new(scratch: &Scratch) -> Option<Mount> {
        let image = scratch.join("image");
        let folder = scratch.join("mounted");
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = std::fs::File::create(&image).expect("a file");
        file.set_len(16 << 20).expect("a length");
        let run = |program: &str, arguments: &[&Path]| {
            let output = Command::new(program).args(arguments).output();
            output.is_ok_and(|output| output.status.success())
        };
        let made = run("mkfs.ext4", &["-q".as_ref(), &image])
            && run("mount", &["-o".as_ref(), "loop".as_ref(), &image, &folder]);
        made.then_some(Mount { folder })
    }

    fn freeze(&self) -> Frozen<'_> {
        let mut command = Command::new("fsfreeze");
        let done = command.arg("-f").arg(&self.folder).status();
        assert!(done.is_ok_and(|status| status.success()), "fsfreeze -f");
        Frozen(self)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
    }
}

/// Nobody can write, until it is dropped: also when a check fails, before the target is waited for.
struct Frozen<'a>(&'a Mount);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let mut command = Command::new("fsfreeze");
        let _ = command.arg("-u").arg(&self.0.folder).output();
    }
}

#[test]
fn a_recording_ends_well_on_a_frozen_file_system() {
    let scratch = Scratch::new();
    let program = program();
    let Some(mount) = is_root().then(|| Mount::new(&scratch)).flatten() else {
        eprintln!("not played: it takes root, loop devices and mkfs.ext4");
        return;
    };
    for who in ["thread", "main"] {
        let file = mount.folder.join("file").display().to_string();
        let mut target = Target::start(&program, &[who, "write", &file]);
        std::fs::write(&file, "x").expect("not frozen yet");
        let frozen = mount.freeze();
        play(&mut target, "D", |target| {
            drop(frozen);
            target.live.ask("thaw");
        });
    }
}

/// Here the thread goes into state D when it is interrupted, so that it is held by then, and others have stopped.
#[test]
fn a_recording_ends_well_at_a_file_server_that_does_not_answer() {
    let scratch = Scratch::new();
    let folder = scratch.join("served");
    std::fs::create_dir_all(&folder).expect("a folder");
    if !is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("not played: it takes root and FUSE");
        return;
    }
    let server = Build::new("silent_server")
        .source("silent_server.c")
        .flag("-O2")
        .finish();
    let program = program();
    for who in ["thread", "main"] {
        let file = folder.join("file").display().to_string();
        let mut target = Target::start(&program, &[who, "read", &file]);
        let mut server = Live::ready(&server.path, &[&folder.display().to_string()]);
        let _mount = Mount {
            folder: folder.clone(),
        };
        play(&mut target, "S", |target| {
            assert_eq!(server.ask("answer"), "answered");
            target.live.ask("thaw");
        });
    }
}
