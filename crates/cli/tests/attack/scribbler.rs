//! A target that writes over the memory that thalweg has given it, while everything that reads that memory runs. No reader may
//! panic, hang or take memory without bound: it gives a result or says that the data is damaged.
//!
//! Noise in the header and in tables is the `region` driver's in `fuzz/`: whole commands that met it here survived with every
//! bound taken out, so that they kept no promise.

use crate::readers::limited;
use crate::support::build::Build;
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::succeed;
use nix::sys::signal::Signal;
use std::mem::offset_of;
use thalweg_abi as shm;

/// Address space of a reader: several times what an honest target of this size takes.
const LIMIT_KIB: u64 = 4 << 20;
/// Seconds after which a reader hangs. They take one to ten.
const TIMEOUT: &str = "120";

/// Runs thalweg with bounds on memory and time, whatever comes of it but a panic.
#[track_caller]
fn survives(mode: &str, arguments: &[&str]) -> i32 {
    let memory = format!("ulimit -v {LIMIT_KIB}");
    let output = limited(&memory, &format!("timeout -k 5 {TIMEOUT}"))
        .args(arguments)
        .env("THALWEG_NO_CALIBRATE", "1")
        .env("XDG_STATE_HOME", "/nonexistent")
        .output()
        .expect("a shell");
    let told = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(
        matches!(code, Some(0 | 2)) && !told.contains("panicked"),
        "{mode}: thalweg {} ended with {:?}: {told}",
        arguments.join(" "),
        output.status,
    );
    code.unwrap_or_default()
}

fn numbers() -> [String; 4] {
    [
        offset_of!(shm::Header, nodes_offset) as u64,
        offset_of!(shm::Header, nodes_used) as u64,
        shm::SLOTS_OFFSET,
        shm::record::STATE_OFFSET,
    ]
    .map(|number| number.to_string())
}

fn start(mode: &str, seconds: &str) -> Live {
    let numbers = numbers();
    let [nodes, used, slots, state] = numbers.each_ref().map(String::as_str);
    let program = Build::simple("scribbler.c").path;
    Live::ready(&program, &[mode, nodes, used, slots, state, seconds])
}

/// Everything that reads an attached target, then `detach`.
fn readers(mode: &str) {
    let scratch = Scratch::new();
    let file = &scratch.word("saved.thalweg");
    let mut live = start(mode, "300");
    let id = live.id();
    succeed(&[
        "attach",
        "--budget",
        "off",
        &id,
        "--rule",
        "work",
        "--call-sites",
    ]);
    assert_eq!(live.line(), "scribbling");
    for _ in 0..in_short_or_long(1, 20) {
        survives(mode, &["status", &id]);
        survives(mode, &["report", "-p", &id, "--tree"]);
        survives(mode, &["calls", "-p", &id]);
        survives(mode, &["checkpoint", &id, "-o", file]);
        survives(mode, &["threads", "-p", &id]);
        survives(mode, &["rules", "-p", &id]);
    }
    survives(mode, &["switch", &id, "--off", "^leaf$"]);
    survives(mode, &["detach", &id, "-o", file]);
    live.send(Signal::SIGKILL);
}

#[test]
fn readers_survive_indices_of_record_areas_that_are_wrong() {
    readers("rings");
}

#[test]
fn readers_survive_trees_that_lead_round() {
    readers("links");
}

/// The drain of recorded calls took indices for an order that they did not have, and panicked.
#[test]
fn a_recording_of_calls_survives_it() {
    let scratch = Scratch::new();
    let file = &scratch.word("recorded.thalweg");
    let live = start("rings", "300");
    let id = live.id();
    let options = ["record", "--budget", "off", "-p", &id, "--rule", "work"];
    let until = ["-d", "1s", "-o", file, "-q"];
    let recorded = survives("rings", &[&options[..], &until].concat());
    assert_eq!(
        recorded, 0,
        "what was counted is not lost with what was recorded"
    );
    live.send(Signal::SIGKILL);
}
