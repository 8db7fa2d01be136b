//! What is found out about a file is kept for the next run, and changes nothing but the time that takes.

use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, text};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, SystemTime};

const PROGRAMS: [&str; 3] = ["lua5.4", "sqlite3", "python3.11"];

/// Runs thalweg with its cache below `base`.
fn thalweg(base: &Path, arguments: &[&str]) -> Output {
    let mut command = command();
    command.env("XDG_CACHE_HOME", base).args(arguments);
    command.output().expect("thalweg starts")
}

#[track_caller]
fn succeed(base: &Path, arguments: &[&str]) -> String {
    let output = thalweg(base, arguments);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn entries(base: &Path) -> Vec<PathBuf> {
    let Ok(files) = std::fs::read_dir(base.join("thalweg")) else {
        return Vec::new();
    };
    let mut files: Vec<_> = files.map(|file| file.expect("entry").path()).collect();
    files.sort();
    files
}

fn program(name: &str) -> String {
    ["/usr/bin", "/bin"]
        .map(|directory| format!("{directory}/{name}"))
        .into_iter()
        .find(|path| Path::new(path).exists())
        .unwrap_or_else(|| panic!("{name} is not installed"))
}

#[test]
fn plans_are_the_same_with_and_without_the_cache() {
    let scratch = Scratch::new();
    let nowhere = scratch.join("off");
    for name in PROGRAMS {
        let program = program(name);
        let arguments = ["probe", program.as_str(), "--json", "--skipped"];
        let mut off = command();
        off.env("XDG_CACHE_HOME", &nowhere)
            .env("THALWEG_CACHE", "off");
        let off = off.args(arguments).output().expect("thalweg starts");
        assert!(off.status.success(), "{}", text(&off));
        let first = succeed(scratch.path(), &arguments);
        let second = succeed(scratch.path(), &arguments);
        assert!(!first.is_empty());
        assert_eq!(String::from_utf8_lossy(&off.stdout), first, "{name}");
        assert_eq!(first, second, "{name}");
    }
    assert!(!nowhere.exists(), "off means off");
    assert_eq!(entries(scratch.path()).len(), PROGRAMS.len());
}

#[test]
fn counts_are_the_same_from_the_cache_and_entries_are_seen_to_be_used() {
    let scratch = Scratch::new();
    let lua = program("lua5.4");
    let counts = || {
        let file = &scratch.word("profile.thalweg");
        let script = "local t = {} for i = 1, 1000 do t[i] = tostring(i) end";
        // Samples find functions that are not counted, now and then.
        let options = ["record", "--samples", "0", "-q", "-o", file];
        succeed(
            scratch.path(),
            &[&options[..], &["--", &lua, "-e", script]].concat(),
        );
        let json = succeed(scratch.path(), &["export", "-i", file, "--format", "json"]);
        let profile: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let functions = |key: &str| profile[key].as_array().map_or(0, Vec::len);
        (functions("functions"), functions("skipped"))
    };
    let first = counts();
    let made = entries(scratch.path());
    assert!(made.len() >= 2, "the program and its libc: {made:?}");
    let long_ago = SystemTime::now() - Duration::from_secs(100_000);
    for entry in &made {
        let file = std::fs::File::options().write(true).open(entry);
        file.and_then(|file| file.set_modified(long_ago))
            .expect("own file");
    }
    assert_eq!(counts(), first);
    assert_eq!(entries(scratch.path()), made, "nothing was analysed again");
    for entry in &made {
        let used = entry.metadata().and_then(|meta| meta.modified());
        assert!(used.expect("time") > long_ago, "not used: {entry:?}");
    }
}

#[test]
fn what_is_kept_is_shown_and_cleared() {
    let scratch = Scratch::new();
    let lua = program("lua5.4");
    succeed(scratch.path(), &["probe", &lua]);
    let shown = succeed(scratch.path(), &["cache"]);
    assert!(shown.contains(&lua) && shown.contains("1 files"), "{shown}");
    let json = succeed(scratch.path(), &["cache", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["entries"][0]["file"], lua.as_str());
    succeed(scratch.path(), &["cache", "--clear"]);
    assert!(entries(scratch.path()).is_empty());
}

#[test]
fn a_directory_that_others_could_write_to_is_not_used() {
    let lua = program("lua5.4");
    let probe = ["probe", lua.as_str()];
    let writable = Scratch::new();
    let directory = writable.join("thalweg");
    std::fs::create_dir(&directory).expect("made");
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o777)).expect("own");
    succeed(writable.path(), &probe);
    assert!(entries(writable.path()).is_empty());

    let linked = Scratch::new();
    let elsewhere = linked.join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("made");
    symlink(&elsewhere, linked.join("thalweg")).expect("linked");
    succeed(linked.path(), &probe);
    assert!(entries(linked.path()).is_empty());
    let refused = thalweg(linked.path(), &["cache", "--clear"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));

    let foreign = Scratch::new();
    let directory = foreign.join("thalweg");
    std::fs::create_dir(&directory).expect("made");
    // Only root can give a directory away.
    if std::os::unix::fs::chown(&directory, Some(65_534), None).is_ok() {
        succeed(foreign.path(), &probe);
        assert!(entries(foreign.path()).is_empty());
    }
}

#[test]
fn a_file_in_the_place_of_an_entry_is_not_followed_and_damage_is_mended() {
    let scratch = Scratch::new();
    let lua = program("lua5.4");
    let probe = ["probe", lua.as_str(), "--json"];
    let right = succeed(scratch.path(), &probe);
    let entry = entries(scratch.path()).remove(0);
    let whole = std::fs::read(&entry).expect("read");
    for damaged in [&whole[..whole.len() / 2], &[][..]] {
        std::fs::write(&entry, damaged).expect("own file");
        assert_eq!(succeed(scratch.path(), &probe), right);
        assert_eq!(std::fs::read(&entry).expect("read"), whole, "made anew");
    }
    let victim = scratch.join("victim");
    std::fs::write(&victim, "precious").expect("written");
    std::fs::remove_file(&entry).expect("removed");
    symlink(&victim, &entry).expect("linked");
    assert_eq!(succeed(scratch.path(), &probe), right);
    assert_eq!(std::fs::read(&victim).expect("read"), b"precious");
}

#[test]
fn many_writers_at_once_leave_whole_entries() {
    let scratch = Scratch::new();
    let lua = program("lua5.4");
    let probe = ["probe", lua.as_str(), "--json"];
    let all: Vec<String> = std::thread::scope(|scope| {
        let one = || succeed(scratch.path(), &probe);
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(one)).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("ran"))
            .collect()
    });
    assert!(all.iter().all(|output| *output == all[0]));
    assert_eq!(entries(scratch.path()).len(), 1);
    assert_eq!(succeed(scratch.path(), &probe), all[0]);
}
