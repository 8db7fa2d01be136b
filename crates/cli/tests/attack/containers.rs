//! Targets in PID namespaces: they know themselves by numbers that are somebody else's here. Each process is counted as what it is, and nobody
//! else is ever touched.

use crate::support::build::{Build, Program, copy_program};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::{assert_patched, assert_restored, executable_mappings};
use crate::support::thalweg::{command, succeed, text};
use crate::support::watched::Recording;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use thalweg_model::{End, Process, Profile, read_file};

fn contained() -> Program {
    Build::simple("contained.c")
}

/// A command that is killed if it takes for ever, which is how one that waits for a stranger ends.
fn bounded(words: &[&Path]) -> Command {
    let mut command = crate::support::thalweg::bounded();
    command.args(words);
    command
}

fn thalweg() -> PathBuf {
    PathBuf::from(command().get_program())
}

fn calls(profile: &Profile, process: &Process, name: &str) -> u64 {
    let nodes = process.threads.iter().flat_map(|thread| &thread.nodes);
    let of = nodes.filter(|node| profile.functions[node.function].name == name);
    of.map(|node| node.calls).sum()
}

/// The lines, in whatever order the processes came to write them.
fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// All processes of `contained DEPTH`, with what each of them did, and nobody else.
#[track_caller]
fn assert_is_whole(profile: &Profile, depth: usize) {
    let found: Vec<(u32, Option<u32>, End)> = profile
        .processes
        .iter()
        .map(|process| (process.pid, process.parent, process.end))
        .collect();
    let with = |name: &str, count: u64| {
        let processes = profile.processes.iter();
        let these = processes.filter(|process| calls(profile, process, name) == count);
        these.count()
    };
    // The first and one in each namespace go on; the other one calls once, and becomes another program.
    assert_eq!(with("inside", 100), depth + 1, "{found:?}");
    assert_eq!(with("inside", 1), depth, "{found:?}");
    assert_eq!(with("as_another_program", 7), depth, "{found:?}");
    assert_eq!(found.len(), 3 * depth + 1, "{found:?}");
    for process in &profile.processes {
        let expected = match calls(profile, process, "inside") {
            1 => End::Replaced,
            0 => End::Exited(5),
            _ if process.parent.is_none() => End::Exited(0),
            _ => End::Exited(3),
        };
        assert_eq!(process.end, expected, "{}: {found:?}", process.pid);
    }
    let said = |words: &str| profile.notes.iter().any(|note| note.contains(words));
    assert!(
        !said("joined late") && !said("not followed"),
        "{:?}",
        profile.notes
    );
}

#[track_caller]
fn assert_recorded(before: &[&Path], thalweg: &Path, program: &Path, file: &Path, depth: usize) {
    let depth_word = depth.to_string();
    let run = [program, Path::new(&depth_word)];
    let plain = bounded(&[before, &run].concat()).output().expect("starts");
    assert!(plain.status.success(), "{}", text(&plain));
    let record = ["record", "--no-report", "-q", "-o"].map(Path::new);
    let words = [before, &[thalweg], &record, &[file, Path::new("--")], &run].concat();
    let ours = bounded(&words).output().expect("starts");
    assert_eq!(ours.status.code(), plain.status.code(), "{}", text(&ours));
    assert_eq!(lines(&ours), lines(&plain), "{}", text(&ours));
    assert_is_whole(&read_file(file).expect("a profile"), depth);
}

#[test]
fn processes_in_namespaces_of_their_own_are_counted_and_nobody_else_is_touched() {
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    // Where the first process has children, which are no strays of ours: a stranger has the number that ours have inside.
    let script = scratch.join("first.sh");
    std::fs::write(&script, "sleep 300 & sleep 300 & \"$@\"; exit $?\n").expect("written");
    let apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let before: Vec<&Path> = apart.into_iter().chain(["bash"]).map(Path::new).collect();
    let before = [&before[..], &[&script]].concat();
    for depth in [1, 2] {
        assert_recorded(&before, &thalweg(), &contained().path, &file, depth);
    }
}

/// Without rights, in user namespaces.
#[test]
fn so_they_are_for_a_user_without_rights() {
    let place = std::env::temp_dir().join(format!("thalweg-attack-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::set_permissions(&place, PermissionsExt::from_mode(0o777)).expect("ours");
    let (ours, program) = (place.join("thalweg"), place.join("contained"));
    copy_program(&thalweg(), &ours);
    copy_program(&contained().path, &program);
    let who = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ]
    .map(Path::new);
    let file = place.join("out.thalweg");
    for depth in [1, 2] {
        assert_recorded(&who, &ours, &program, &file, depth);
    }
    std::fs::remove_dir_all(&place).expect("ours");
}

/// In a namespace of its own, and its number here.
fn live_container(depth: &str) -> (Live, u32) {
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    inside.arg(contained().path).args([depth, "live"]);
    let mut live = Live::spawn(&mut inside);
    assert_eq!(live.line(), "ready");
    let id = first_child(live.pid());
    (live, id)
}

#[track_caller]
fn finish(mut live: Live) {
    live.tell("go");
    let (_, status) = live.wait(Duration::from_secs(100));
    assert!(status.success(), "{status}");
}

#[test]
fn a_container_is_recorded_from_outside() {
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let (live, id) = live_container("2");
    let recording = Recording::of_process(id, &file, &["--follow", "--no-report", "-q"]);
    finish(live);
    recording.end();
    let profile = read_file(&file).expect("a profile");
    assert_eq!(profile.processes[0].pid, id);
    let with = |name: &str, count: u64| {
        let processes = profile.processes.iter();
        let these = processes.filter(|process| calls(&profile, process, name) == count);
        these.count()
    };
    assert_eq!(with("inside", 100), 3);
    assert_eq!(with("as_another_program", 7), 2);
    assert_eq!(profile.processes.len(), 7);
}

#[test]
fn a_container_is_attached_and_detached_from_outside() {
    let (live, id) = live_container("1");
    let before = executable_mappings(id);
    succeed(&["attach", "--budget", "off", &id.to_string()]);
    assert_patched(&before, &executable_mappings(id));
    succeed(&["detach", &id.to_string()]);
    assert_restored(&before, &executable_mappings(id));
    finish(live);
}

fn first_child(pid: u32) -> u32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).expect("it lives");
    let first = children.split_whitespace().next();
    first.and_then(|word| word.parse().ok()).expect("a child")
}

/// What users of containers type.
#[test]
fn a_shell_in_a_container_does_what_it_does_alone() {
    let script = "echo $$; (echo sub); ls -d /proc/1; for i in 1 2 3; do true; done; /bin/true; exec /bin/echo end";
    let words = [
        "unshare",
        "-Ur",
        "-p",
        "-f",
        "--mount-proc",
        "sh",
        "-c",
        script,
    ]
    .map(Path::new);
    let plain = bounded(&words).output().expect("starts");
    assert!(plain.status.success(), "{}", text(&plain));
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let thalweg = thalweg();
    let record = [
        &*thalweg,
        Path::new("record"),
        Path::new("-q"),
        Path::new("-o"),
        &*file,
    ];
    let words = [&record[..], &[Path::new("--")], &words].concat();
    let ours = bounded(&words).output().expect("starts");
    assert!(ours.status.success(), "{}", text(&ours));
    let said = String::from_utf8_lossy(&ours.stdout);
    let plain = String::from_utf8_lossy(&plain.stdout);
    assert!(said.starts_with(&*plain), "{said} instead of {plain}");
    let profile = read_file(&file).expect("a profile");
    let commands: Vec<&str> = profile
        .processes
        .iter()
        .filter_map(|process| process.command.first().map(String::as_str))
        .collect();
    for name in ["unshare", "sh", "ls", "/bin/true", "/bin/echo"] {
        assert!(commands.contains(&name), "{name} is not in {commands:?}");
    }
}
