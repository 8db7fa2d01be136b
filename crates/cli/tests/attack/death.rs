//! Data that outlives its target, or a full disk: what was counted is lost only when nobody wants it.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{export, refuse, succeed, text, thalweg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::Path;
use std::time::{Duration, Instant};

const STEPS: u64 = 12_345;

/// Attached, and it has worked.
fn worked() -> Live {
    let mut live = Live::ready(&Build::simple("dying.c").path, &[]);
    succeed(&["attach", "--budget", "off", "-q", &live.id()]);
    assert!(live.ask(&format!("work {STEPS}")).starts_with("done"));
    live
}

/// Lets it die and be collected.
fn die(live: &mut Live, how: &str) {
    match how {
        "killed" => live.send(Signal::SIGKILL),
        "terminated" => live.send(Signal::SIGTERM),
        command => live.tell(command),
    }
    live.wait(Duration::from_secs(60));
}

fn status(id: &str) -> serde_json::Value {
    serde_json::from_str(&succeed(&["status", id, "--json"])).expect("JSON")
}

fn exists(pid: i64) -> bool {
    // A zombie that nobody collects is gone too.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[track_caller]
fn wait_for_end(pid: i64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while exists(pid) {
        assert!(Instant::now() < deadline, "process {pid} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn assert_has_steps(file: &Path) {
    let calls = export(file).calls_by_name();
    assert_eq!((calls["step"], calls["work"]), (STEPS, 1));
}

fn name(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_target_that_dies_after_the_attach_leaves_what_it_counted() {
    for (how, words) in [
        ("killed", "was killed by signal 9"),
        ("terminated", "was killed by signal 15"),
        ("crash", "was killed by signal 6"),
        ("exit 7", "exited with status 7"),
    ] {
        let scratch = Scratch::new();
        let mut live = worked();
        let id = live.id();
        let sidecar = status(&id)["sidecar"].as_i64().expect("a sidecar");
        die(&mut live, how);
        let left = status(&id);
        assert_eq!(left["kept_by"].as_i64(), Some(sidecar), "{left}");
        // Before Linux 6.15 nobody but the parent knows how, once it has collected the status.
        let ended = left["ended"].as_str().expect("text");
        assert!([words, "has ended"].contains(&ended), "{how}: {left}");
        assert!(left["calls"].as_u64() > Some(STEPS), "{left}");
        let report = succeed(&["report", "--flat", "-p", &id]);
        assert!(report.contains("step"), "{report}");
        let file = scratch.join("left.thalweg");
        succeed(&["detach", &id, "-q", "-o", name(&file)]);
        assert_has_steps(&file);
        wait_for_end(sidecar);
        refuse(&["detach", &id]);
        refuse(&["status", &id]);
    }
}

#[test]
fn children_of_a_dead_target_are_restored() {
    let mut live = worked();
    let child: i64 = live.ask("fork").parse().expect("a number");
    let maps = || std::fs::read_to_string(format!("/proc/{child}/maps")).expect("it lives");
    assert!(maps().contains("/memfd:thalweg"), "{}", maps());
    die(&mut live, "killed");
    let deadline = Instant::now() + Duration::from_secs(60);
    while maps().contains("/memfd:thalweg") {
        assert!(Instant::now() < deadline, "it still has probes: {}", maps());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(exists(child), "it died of that");
    kill(Pid::from_raw(child as i32), Signal::SIGKILL).expect("it can be killed");
    succeed(&["detach", "-q", &live.id()]);
}

#[test]
fn a_sidecar_ends_when_its_target_is_detached() {
    let live = worked();
    let sidecar = status(&live.id())["sidecar"].as_i64().expect("a sidecar");
    succeed(&["detach", "-q", &live.id()]);
    wait_for_end(sidecar);
    let message = refuse(&["status", &live.id()]);
    assert!(message.contains("not attached"), "{message}");
}

#[test]
fn a_detach_onto_a_full_disk_loses_nothing() {
    let scratch = Scratch::new();
    let mut live = Live::ready(&Build::simple("dying.c").path, &[]);
    let before = live.text();
    succeed(&["attach", "--budget", "off", "-q", &live.id()]);
    live.ask(&format!("work {STEPS}"));
    let message = refuse(&["detach", "-q", &live.id(), "-o", "/dev/full"]);
    assert!(message.contains("No space left"), "{message}");
    let advice = format!("thalweg detach {} -o FILE", live.id());
    assert!(message.contains(&advice), "{message}");
    assert_restored(&before, &live.text());
    live.assert_healthy();
    // It is kept however often it cannot be saved.
    let message = refuse(&["detach", "-q", &live.id(), "-o", "/dev/full"]);
    assert!(message.contains(&advice), "{message}");
    let file = scratch.join("kept.thalweg");
    succeed(&["detach", "-q", &live.id(), "-o", name(&file)]);
    assert_has_steps(&file);
    let message = refuse(&["detach", &live.id()]);
    assert!(message.contains("not attached"), "{message}");
    live.assert_healthy();
}

#[test]
fn a_recording_onto_a_full_disk_loses_nothing() {
    let scratch = Scratch::new();
    let mut live = Live::ready(&Build::simple("dying.c").path, &[]);
    let (id, file) = (live.id(), scratch.join("kept.thalweg"));
    let message = refuse(&[
        "record",
        "--budget",
        "off",
        "-q",
        "-p",
        &id,
        "-d",
        "200ms",
        "-o",
        "/dev/full",
    ]);
    assert!(message.contains("No space left"), "{message}");
    succeed(&["detach", "-q", &id, "-o", name(&file)]);
    export(&file);
    live.assert_healthy();
}

/// The target may write whatever it likes into the memory that the sidecar holds.
#[test]
fn a_target_that_lies_about_itself_fools_no_sidecar() {
    use std::os::unix::fs::FileExt;
    let overwrite = |live: &Live, offset: u64, bytes: &[u8]| {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", live.id())).expect("it lives");
        let line = maps.lines().find(|line| line.contains("/memfd:thalweg"));
        let start = line
            .and_then(|line| line.split('-').next())
            .expect("attached");
        let start = u64::from_str_radix(start, 16).expect("an address");
        let memory = format!("/proc/{}/mem", live.id());
        let memory = std::fs::File::options().write(true).open(memory);
        let memory = memory.expect("this test may write there");
        memory
            .write_all_at(bytes, start + offset)
            .expect("it is mapped");
    };
    // Another's number: what was counted is still found by the target's own, and not by that.
    const PID: u64 = 32;
    let scratch = Scratch::new();
    let mut liar = worked();
    let mut other = Live::ready(&Build::simple("dying.c").path, &[]);
    overwrite(&liar, PID, &other.pid().to_le_bytes());
    die(&mut liar, "killed");
    let message = refuse(&["detach", &other.id()]);
    assert!(message.contains("not attached"), "{message}");
    let file = scratch.join("left.thalweg");
    succeed(&["detach", "-q", &liar.id(), "-o", name(&file)]);
    assert_has_steps(&file);
    other.assert_healthy();
    // Nothing but garbage: an answer within bounds, and nobody stays behind.
    let mut vandal = worked();
    let sidecar = status(&vandal.id())["sidecar"].as_i64().expect("a sidecar");
    overwrite(&vandal, 0, &[0xff; 4096]);
    die(&mut vandal, "killed");
    let output = thalweg(&["detach", &vandal.id()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    wait_for_end(sidecar);
}
