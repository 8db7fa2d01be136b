//! Code that is loaded and unloaded while a target is attached: counted from its first instruction, exact, and clean afterwards.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::{assert_restored, compare};
use crate::support::thalweg::{command, export, record, record_path, succeed, text, thalweg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn loading() -> Program {
    Build::new("loading")
        .source("loading.c")
        .flag("-O2")
        .link_flag("-ldl")
        .finish()
}

/// The library that it loads.
fn plug() -> Program {
    Build::new("plug")
        .source("plug.c")
        .flags(&["-O2", "-fPIC", "-shared"])
        .finish()
}

fn path_of(program: &Program) -> &str {
    program.path.to_str().expect("UTF-8")
}

/// Rounds of open, a hundred calls, close.
#[track_caller]
fn assert_counted(how: &str, rounds: u64) {
    let plug = plug();
    let run = record(
        &["--quiet"],
        &loading(),
        &[path_of(&plug), &rounds.to_string(), how],
    );
    let calls = run.profile.calls_by_name();
    let count = |name: &str| calls.get(name).copied().unwrap_or(0);
    for (name, expected) in [
        ("plug_work", 100 * rounds),
        ("plug_step", 100 * rounds),
        ("plug_leaf", 102 * rounds),
        ("chosen_slow", 100 * rounds),
        ("plug_begin", rounds),
        ("plug_end", rounds),
    ] {
        assert_eq!(count(name), expected, "{name}, loaded {how}");
    }
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    let busy = said.split_whitespace().nth(1).expect("busy N sum M");
    assert_eq!(
        count("busy").to_string(),
        busy,
        "threads that worked meanwhile"
    );
    let named = |name: &str| {
        let functions = run.profile.functions.iter();
        functions.filter(|f| f.name == name).count()
    };
    assert_eq!(named("plug_work"), 1, "one function, however often loaded");
}

#[test]
fn a_library_opened_and_closed_in_a_loop_is_counted_exactly() {
    assert_counted("now", 50);
    assert_counted("lazy", 5);
}

#[test]
fn a_library_in_a_namespace_of_its_own_is_counted_exactly() {
    assert_counted("space", 3);
}

#[test]
fn a_library_opened_by_fork_children_is_counted_exactly() {
    assert_counted("fork", 5);
}

/// `record -p`, once it says on its own that it has attached.
fn record_process(live: &Live, before: &crate::support::text::TextMap, file: &Path) -> Child {
    let child = command()
        .args([
            "record",
            "--budget",
            "off",
            "--quiet",
            "-p",
            &live.id(),
            "-o",
        ])
        .arg(file)
        .stdin(Stdio::null())
        .spawn()
        .expect("thalweg starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_served(live) {
        assert!(Instant::now() < deadline, "record does not attach");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!compare(before, &live.text()).0.is_empty(), "not patched");
    child
}

fn is_served(live: &Live) -> bool {
    let output = command()
        .args(["status", "--json", &live.id()])
        .output()
        .expect("thalweg starts");
    String::from_utf8_lossy(&output.stdout).contains("\"served\": true")
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).expect("thalweg lives");
}

#[test]
fn a_library_opened_after_attaching_is_counted_and_left_clean() {
    let plug = plug();
    let mut live = Live::ready(&loading().path, &[path_of(&plug), "-"]);
    let scratch = Scratch::new();
    let file = scratch.join("p.thalweg");
    // The loader maps the library at the same place every time.
    live.ask("open");
    let opened = live.text();
    live.ask("close");
    let before = live.text();
    let mut recording = record_process(&live, &before, &file);
    live.ask("open");
    live.ask("call 50");
    live.ask("close");
    live.ask("open");
    live.ask("call 7");
    signal(&recording, Signal::SIGINT);
    assert!(recording.wait().expect("thalweg ends").success());
    assert_restored(&opened, &live.text());
    let calls = export(&file).calls_by_name();
    assert_eq!(calls["plug_work"], 57);
    assert_eq!(calls["plug_begin"], 2);
    assert_eq!(live.ask("call 3"), "done");
    live.assert_healthy();
}

/// The address range of a library's code, and its offset in the file.
fn place_of(library: &Path, live: &Live) -> (u64, u64, u64) {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", live.id())).expect("target lives");
    let name = library.to_str().expect("UTF-8");
    let line = maps
        .lines()
        .find(|line| line.ends_with(name) && line.contains(" r-xp "));
    let line = line.unwrap_or_else(|| panic!("no {name}: {maps}"));
    let mut fields = line.split(' ');
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
    let range = fields.next().expect("start-end perms offset");
    let (start, end) = range.split_once('-').expect("start-end");
    let offset = fields.nth(1).expect("start-end perms offset");
    (hex(start), hex(end), hex(offset))
}

/// A library whose code in the file is the patched code that the process has now: what would be taken for ours by its bytes.
fn disguised(library: &Path, live: &Live, to: &Path) {
    let (start, end, offset) = place_of(library, live);
    let mut file = std::fs::read(library).expect("library");
    let memory = File::open(format!("/proc/{}/mem", live.id())).expect("target lives");
    let len = (end - start).min(file.len() as u64 - offset) as usize;
    let code = &mut file[offset as usize..][..len];
    memory.read_exact_at(code, start).expect("code is mapped");
    std::fs::write(to, file).expect("scratch is writable");
}

#[test]
fn what_lies_where_a_closed_library_was_is_not_written_to() {
    let plug = plug();
    let scratch = Scratch::new();
    let other = scratch.join("other.so");
    let mut live = Live::ready(&loading().path, &[path_of(&plug), "-"]);
    live.ask("open");
    let place = place_of(&plug.path, &live);
    succeed(&["attach", "--budget", "off", "--quiet", &live.id()]);
    disguised(&plug.path, &live, &other);
    live.ask("close");
    live.ask(&format!("open {}", other.display()));
    assert_eq!(place_of(&other, &live), place, "not put to the test");
    let status = succeed(&["status", &live.id()]);
    assert!(
        status.contains("not counted") && status.contains("other.so"),
        "{status}"
    );
    let before = live.text();
    succeed(&["detach", "--quiet", &live.id()]);
    let (changed, _) = compare(&before, &live.text());
    let hit = changed.iter().find(|name| name.contains("other.so"));
    assert!(hit.is_none(), "bytes of another library changed: {hit:?}");
    live.assert_healthy();
    live.send(Signal::SIGKILL);
}

/// On a busy machine a thread may be given no time to stop in: that is no fault, and is tried again.
#[track_caller]
fn patiently(live: &Live, arguments: &[&str]) {
    for _ in 0..10 {
        let output = thalweg(arguments);
        if output.status.success() {
            return;
        }
        assert!(text(&output).contains("did not stop"), "{}", text(&output));
        if arguments[0] == "record" {
            thalweg(&["detach", "--quiet", &live.id()]);
        }
    }
    panic!("{arguments:?}: its threads never stop");
}

#[test]
fn a_process_that_loads_all_the_time_is_attached_to_and_left_clean() {
    let plug = plug();
    let mut live = Live::start(&loading().path, &[path_of(&plug), "100000000"]);
    std::thread::sleep(Duration::from_millis(100));
    let but_for_plug = |live: &Live| {
        let mut text = live.text();
        text.retain(|name, _| !name.contains("plug"));
        text
    };
    let before = but_for_plug(&live);
    let scratch = Scratch::new();
    let file = scratch.join("p.thalweg");
    let output = file.to_str().expect("UTF-8");
    for _ in 0..2 {
        patiently(&live, &["attach", "--budget", "off", "--quiet", &live.id()]);
        patiently(&live, &["detach", "--quiet", &live.id()]);
        let id = live.id();
        let record = [
            "record", "--budget", "off", "--quiet", "-d", "300ms", "-p", &id, "-o", output,
        ];
        patiently(&live, &record);
        assert_restored(&before, &but_for_plug(&live));
        live.assert_healthy();
    }
    assert!(export(&file).calls_by_name().contains_key("plug_work"));
    live.send(Signal::SIGKILL);
}

#[test]
fn a_target_goes_on_without_its_controller() {
    let plug = plug();
    let mut live = Live::ready(&loading().path, &[path_of(&plug), "-"]);
    let scratch = Scratch::new();
    live.ask("open");
    let opened = live.text();
    live.ask("close");
    let before = live.text();
    let mut recording = record_process(&live, &before, &scratch.join("p.thalweg"));
    live.ask("open");
    live.ask("call 5");
    signal(&recording, Signal::SIGKILL);
    recording.wait().expect("thalweg ends");
    // Waits at the gate until it has lost its patience.
    live.ask("close");
    live.ask("open");
    assert_eq!(live.ask("call 5"), "done");
    succeed(&["detach", "--quiet", &live.id()]);
    assert_restored(&opened, &live.text());
    assert_eq!(live.ask("call 5"), "done");
    live.assert_healthy();
}

#[test]
fn extension_modules_of_python_are_counted() {
    let script = "import sqlite3, json, _json\n\
        db = sqlite3.connect(':memory:')\n\
        print(sum(db.execute('select 6*7').fetchone()[0] for _ in range(50)), json.dumps([1, 'a']))";
    let run = record_path(&["--quiet"], Path::new("/usr/bin/python3"), &["-c", script]);
    assert_eq!(run.stdout, b"2100 [1, \"a\"]\n");
    let calls = run.profile.calls_by_name();
    assert_eq!(calls.get("PyInit__sqlite3"), Some(&1));
    assert_eq!(calls.get("sqlite3_open_v2"), Some(&1));
    assert!(calls.get("sqlite3_step").is_some_and(|n| *n >= 50));
}
