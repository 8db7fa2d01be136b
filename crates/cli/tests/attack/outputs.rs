//! Outputs in a folder where others may write too: nothing is written through what they plant, and nothing is left behind.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{command, export, refuse, succeed, text, through};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[track_caller]
fn refused(output: &Path) {
    let output = output.to_str().expect("UTF-8");
    let message = refuse(&["record", "-q", "-o", output, "--", "/bin/true"]);
    assert!(message.contains("symbolic link"), "{message}");
}

#[test]
fn a_planted_link_is_not_written_through() {
    let scratch = Scratch::new();
    let (public, private) = (scratch.join("public"), scratch.join("private"));
    for folder in [&public, &private] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let victim = private.join("victim");
    std::fs::write(&victim, "precious").expect("the victim is written");
    let listed = || {
        let entries = std::fs::read_dir(&private).expect("a folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names.collect::<Vec<_>>()
    };
    // One that leads to a name that does not exist yet: the file there would be made.
    symlink(private.join("new"), public.join("dangling")).expect("a link");
    refused(&public.join("dangling"));
    assert_eq!(listed(), ["victim"]);
    if !is_root() {
        eprintln!("skipped: another user's link cannot be made here");
        return;
    }
    // As in /tmp: another user's link in a folder that all may write to, whatever fs.protected_symlinks says.
    symlink(&victim, public.join("planted")).expect("a link");
    lchown(public.join("planted"), Some(NOBODY), Some(NOBODY)).expect("root may");
    lchown(&public, Some(NOBODY - 1), None).expect("root may");
    let all = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(&public, all).expect("root may");
    refused(&public.join("planted"));
    assert_eq!(listed(), ["victim"]);
    assert_eq!(std::fs::read(&victim).expect("it is there"), b"precious");
}

#[test]
fn a_link_of_ones_own_is_followed_and_stays() {
    let scratch = Scratch::new();
    let (real, link) = (scratch.join("real.thalweg"), scratch.join("latest"));
    std::fs::write(&real, "before").expect("a file");
    symlink(&real, &link).expect("a link");
    let output = link.to_str().expect("UTF-8");
    succeed(&["record", "-q", "-o", output, "--", "/bin/true"]);
    let meta = std::fs::symlink_metadata(&link).expect("it is there");
    assert!(meta.is_symlink());
    export(&real);
    assert_eq!(scratch.list(), ["latest", "real.thalweg"]);
}

#[test]
fn a_killed_recording_leaves_no_file() {
    const O_TMPFILE: i32 = 0o20200000;
    let scratch = Scratch::new();
    let can = std::fs::File::options()
        .write(true)
        .custom_flags(O_TMPFILE)
        .open(scratch.path());
    if can.is_err() {
        eprintln!("skipped: no files without names here");
        return;
    }
    let live = Live::ready(&Build::simple("dying.c").path, &[]);
    let before = live.text();
    let mut recording = command()
        .args(["record", "--budget", "off", "-q", "-p", &live.id(), "-o"])
        .arg(scratch.join("out.thalweg"))
        .stdin(Stdio::null())
        .spawn()
        .expect("thalweg starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while live.text() == before {
        assert!(Instant::now() < deadline, "the recording does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    recording.kill().expect("it can be killed");
    recording.wait().expect("it ends");
    assert_eq!(scratch.list(), [""; 0]);
    succeed(&["detach", "-q", &live.id()]);
}

/// A service's log may be on a full disk: nobody can be told anything then, and everything is done all the same.
#[test]
fn a_standard_error_that_takes_nothing_costs_no_profile() {
    let scratch = Scratch::new();
    let mut live = Live::ready(&Build::simple("commands.c").path, &[]);
    let before = live.text();
    let id = live.id();
    let unheard = |arguments: &[&str]| {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let status = command()
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(full.expect("the device"))
            .status()
            .expect("thalweg starts");
        assert!(status.success(), "{arguments:?}: {status}");
    };
    let file = &scratch.word("detached.thalweg");
    unheard(&["attach", &id]);
    live.ask("work 10");
    unheard(&["detach", &id, "-o", file]);
    export(file.as_ref());
    assert_restored(&before, &live.text());
    let file = &scratch.word("recorded.thalweg");
    unheard(&["record", "-o", file, "-p", &id, "-d", "100ms"]);
    export(file.as_ref());
    assert_restored(&before, &live.text());
    live.assert_healthy();
}

/// A limit on the size of files is an error like another, and leaves nothing behind: its signal would end thalweg half way.
#[test]
fn a_limit_on_the_size_of_files_is_told_and_leaves_the_target_alone() {
    let scratch = Scratch::new();
    let mut live = Live::ready(&Build::simple("commands.c").path, &[]);
    let before = live.text();
    let id = &live.id();
    let file = &scratch.word("limited.thalweg");
    let limited = |arguments: &[&str]| {
        let output = through("bash")
            .args(["-c", "ulimit -f 100; exec \"$@\"", "bash"])
            .arg(command().get_program())
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("bash");
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    };
    limited(&["attach", id]);
    limited(&["record", "-o", file, "-d", "100ms", "-p", id]);
    limited(&["record", "-o", file, "--", "/bin/true"]);
    assert_restored(&before, &live.text());
    let maps = std::fs::read_to_string(format!("/proc/{id}/maps")).expect("the target lives");
    assert!(!maps.contains("thalweg"), "memory stays mapped: {maps}");
    live.assert_healthy();
}
