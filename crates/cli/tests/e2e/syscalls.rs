//! System calls are counted to the unit, by who makes them; what is not counted is named.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, succeed, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

#[track_caller]
fn record(scratch: &Scratch, options: &[&str], line: &[&str]) -> String {
    let file = scratch.join("profile.thalweg");
    let mut run = command();
    run.args(["record", "--no-report", "-q", "--metric", "syscalls", "-o"]);
    run.arg(&file).args(options).arg("--").args(line);
    let run = run.output().expect("thalweg starts");
    assert!(run.status.success(), "{}", text(&run));
    file.to_str().expect("a plain path").to_owned()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeed(arguments)).expect("JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn word(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

/// By name of the system call.
fn counted(summary: &Value) -> BTreeMap<String, u64> {
    let rows = list(&summary["system_calls"]).iter();
    rows.map(|row| (word(&row["name"]), row["calls"].as_u64().expect("calls")))
        .collect()
}

fn uncounted(summary: &Value) -> BTreeSet<String> {
    let rows = list(&summary["uncounted_system_calls"]).iter();
    rows.map(|row| word(&row["name"])).collect()
}

#[test]
fn calls_of_a_c_program_are_counted_by_name_and_function_in_threads_and_children() {
    let scratch = Scratch::new();
    let program = Build::new("syscalls").source("syscalls.c").flags(&["-O2"]);
    let program = program.finish();
    let path = program.path.to_str().expect("a plain path");
    for options in [
        &[][..],
        &["--no-clock"],
        &["-F", "^main$"],
        &["--call-sites"],
    ] {
        let file = record(&scratch, options, &[path]);
        let summary = json(&["summary", &file, "--json"]);
        let found = counted(&summary);
        let expected = [
            ("getuid", 1110),
            ("getgid", 2220),
            ("read", 1110),
            ("getppid", 1110),
        ];
        for (name, calls) in expected {
            assert_eq!(
                found.get(name),
                Some(&calls),
                "{name} of {found:?}, {options:?}"
            );
        }
        assert!(uncounted(&summary).contains("in_a_loop"), "{summary}");
        assert!(!found.contains_key("getegid"), "{found:?}");

        let functions = json(&[
            "report", "-i", &file, "--flat", "--json", "--sort", "syscalls",
        ]);
        let of = |name: &str| {
            let mut rows = list(&functions["functions"]).iter();
            let row = rows.find(|row| row["name"] == name).expect("the function");
            ["metrics", "total_metrics"].map(|figures| row[figures]["syscall.calls"].as_u64())
        };
        assert_eq!(of("by_hand"), [Some(1110), Some(1110)]);
        assert_eq!(of("twice"), [Some(2220), Some(2220)]);
        if !options.contains(&"-F") {
            assert_eq!(of("work"), [None, Some(5 * 1110 + 2 * 3)]);
        }
    }
}

/// How often strace saw these made.
fn traced_calls(line: &[&str], scratch: &Scratch, names: &[&str]) -> BTreeMap<String, u64> {
    let file = scratch.join("strace.sum");
    let run = Command::new("strace")
        .args(["-f", "-c", "-o"])
        .arg(&file)
        .args(line)
        .output()
        .expect("strace starts: .ci/install installs it");
    assert!(run.status.success(), "{}", text(&run));
    let table = std::fs::read_to_string(&file).expect("what strace wrote");
    let rows = table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.last().filter(|name| names.contains(name))?;
        Some((name.to_string(), words[3].parse().expect("calls")))
    });
    rows.collect()
}

/// How often it depends on whether they have to wait, or on what they are asked: each is counted where it is made.
#[test]
fn locks_conditions_file_locks_select_and_fork_make_what_strace_sees() {
    const NAMES: [&str; 6] = ["futex", "fcntl", "pselect6", "clone", "getppid", "getsid"];
    let scratch = Scratch::new();
    let program = Build::new("waiting_calls").source("waiting_calls.c");
    let program = program.flags(&["-O2", "-pthread"]).finish();
    let path = program.path.to_str().expect("a plain path");
    let locked = scratch.join("locked");
    let line = [path, locked.to_str().expect("a plain path")];
    let truth = traced_calls(&line, &scratch, &NAMES);
    assert_eq!(truth.len(), NAMES.len(), "{truth:?}");
    for options in [
        &[][..],
        &["--no-clock", "-F", "^main$"],
        &["--call-sites", "--metric", "alloc"],
    ] {
        let file = record(&scratch, options, &line);
        let summary = json(&["summary", &file, "--json"]);
        let mut found = counted(&summary);
        // Numbers that there are no names for.
        assert_eq!(found.get("(number 511 or more)"), Some(&10), "{found:?}");
        found.retain(|name, _| NAMES.contains(&name.as_str()));
        assert_eq!(found, truth, "{options:?}");
        let waiting = ["pthread_cond_wait", "fcntl", "select", "_Fork", "sem_post"];
        let listed = uncounted(&summary);
        assert!(
            !waiting.iter().any(|name| listed.contains(*name)),
            "{listed:?}"
        );
        let functions = json(&["report", "-i", &file, "--flat", "--json"]);
        let mut rows = list(&functions["functions"]).iter();
        let files = rows.find(|row| row["name"] == "files");
        if let Some(files) = files {
            let below = files["total_metrics"]["syscall.calls"].as_u64();
            assert_eq!(below, Some(1650), "three a time, of 50 in 11 processes");
        }
        // A child makes one in the midst of it, while its parent goes on.
        let mut rows = list(&functions["functions"]).iter();
        let forks = rows.find(|row| row["name"] == "_Fork").expect("_Fork");
        assert_eq!(forks["metrics"]["syscall.calls"], 20, "{options:?}");
        // All of them are known by name, and by function.
        let total: u64 = counted(&summary).values().sum();
        let of_rows = list(&functions["functions"]).iter();
        let of_functions: u64 = of_rows
            .filter_map(|row| row["metrics"]["syscall.calls"].as_u64())
            .sum();
        assert_eq!(of_functions, total);
        let notes = summary["notes"].to_string();
        assert!(!notes.contains("system calls are in no figure"), "{notes}");
    }
}

/// A part of a profile, two profiles in one, and a saved one have the same figures.
/// Contexts that were cut, and those that found no room, have had their system calls all the same.
#[test]
fn no_system_call_is_lost_where_memory_is_short() {
    let scratch = Scratch::new();
    let program = Build::simple("cut_calls.c");
    let path = program.path.to_str().expect("a plain path");
    let said = program.run(&[]);
    let entered: u64 = said
        .split(' ')
        .next()
        .map_or(0, |n| n.parse().expect("a number"));
    for options in [
        &["--memory", "1M"][..],
        &["--memory", "1M", "--prune-at", "512K"],
    ] {
        let file = record(&scratch, options, &[path]);
        let summary = json(&["summary", &file, "--json"]);
        assert_eq!(
            counted(&summary).get("getppid"),
            Some(&entered),
            "{options:?}"
        );
        let flat = json(&[
            "report", "-i", &file, "--flat", "--json", "--sort", "syscalls",
        ]);
        let mut functions = list(&flat["functions"]).iter();
        let sometimes = functions
            .find(|f| f["name"] == "sometimes")
            .expect("it was called");
        let calls = &sometimes["metrics"]["syscall.calls"];
        assert_eq!(calls.as_u64(), Some(entered), "{sometimes}");
        let notes = summary["notes"].to_string();
        assert!(!notes.contains("system calls are in no figure"), "{notes}");
    }
}

#[test]
fn system_calls_that_were_counted_where_they_are_made_survive_merging_and_narrowing() {
    let scratch = Scratch::new();
    let program = Build::new("syscalls").source("syscalls.c").flags(&["-O2"]);
    let program = program.finish();
    let path = program.path.to_str().expect("a plain path");
    let file = record(&scratch, &[], &[path]);
    let both = &scratch.word("both.thalweg");
    succeed(&["merge", &file, &file, "-o", both]);
    let found = counted(&json(&["summary", both, "--json"]));
    assert_eq!(found.get("getppid"), Some(&2220), "{found:?}");
    succeed(&["merge", "--combine", &file, &file, "-o", both]);
    let found = counted(&json(&["summary", both, "--json"]));
    assert_eq!(found.get("getppid"), Some(&2220), "{found:?}");
}

/// What strace saw, by name: all that was not made by the dynamic loader, before it was patched, or in one of `uncounted`.
fn traced(
    line: &[&str],
    scratch: &Scratch,
    export: &Value,
    uncounted: &BTreeSet<String>,
) -> BTreeMap<String, u64> {
    let file = scratch.join("strace.out");
    let run = Command::new("strace")
        .args(["-f", "-k", "-o"])
        .arg(&file)
        .args(line)
        .output()
        .expect("strace starts: .ci/install installs it");
    assert!(run.status.success(), "{}", text(&run));
    let mut starts: BTreeMap<(String, u64), String> = BTreeMap::new();
    for function in list(&export["functions"]) {
        let address = word(&function["address"]);
        let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).expect("hex");
        starts.insert(
            (word(&function["module"]), address),
            word(&function["name"]),
        );
    }
    let text = std::fs::read_to_string(&file).expect("what strace wrote");
    let mut found = BTreeMap::new();
    let mut pending: Option<(String, Vec<&str>)> = None;
    for line in text.lines().chain(["1 end"]) {
        if let Some(frame) = line.strip_prefix(" > ") {
            if let Some((_, stack)) = &mut pending {
                stack.push(frame);
            }
            continue;
        }
        if let Some((name, stack)) = pending.take()
            && is_expected(&stack, &starts, uncounted)
        {
            *found.entry(name).or_default() += 1;
        }
        let call = line
            .split_once(' ')
            .map_or("", |(_, call)| call.trim_start());
        let name = match call.strip_prefix("<... ") {
            Some(resumed) => resumed.split(' ').next(),
            None if call.contains("<unfinished ...>") => None,
            None => call.split_once('(').map(|(name, _)| name),
        };
        // The stack of a process's last call is elsewhere, behind the word that it is gone.
        if name == Some("exit_group") {
            *found.entry("exit_group".to_owned()).or_default() += 1;
            continue;
        }
        pending = name.map(|name| (name.to_owned(), Vec::new()));
    }
    found
}

fn is_expected(
    stack: &[&str],
    starts: &BTreeMap<(String, u64), String>,
    uncounted: &BTreeSet<String>,
) -> bool {
    let Some(innermost) = stack.first() else {
        return false;
    };
    if innermost.contains("/ld-linux") || stack.iter().any(|f| f.contains("__libc_early_init")) {
        return false;
    }
    let (path, rest) = innermost
        .split_once('(')
        .expect("module(function) [address]");
    let address = rest.rsplit_once("[0x").expect("an address").1;
    let address = u64::from_str_radix(address.trim_end_matches(']'), 16).expect("hex");
    let module = Path::new(path.trim()).file_name().expect("a file");
    let module = module.to_string_lossy().into_owned();
    let before = starts.range(..=(module.clone(), address)).next_back();
    let function = before.filter(|((of, _), _)| *of == module);
    !function.is_some_and(|(_, name)| uncounted.contains(name))
}

#[track_caller]
fn agrees_with_strace(scratch: &Scratch, line: &[&str], least: u64) {
    let file = record(scratch, &[], line);
    let summary = json(&["summary", &file, "--json"]);
    let export = json(&["export", "-i", &file, "--format", "json"]);
    let mut truth = traced(line, scratch, &export, &uncounted(&summary));
    // Made by `__restore_rt` and `vfork`, which are not patched: a note says so.
    truth.remove("rt_sigreturn");
    truth.remove("vfork");
    let found = counted(&summary);
    assert_eq!(found, truth, "{line:?}");
    assert!(found.values().sum::<u64>() > least, "{found:?}");
    let notes = list(&summary["notes"]).iter().map(word).collect::<Vec<_>>();
    for missing in ["__restore_rt", "vfork", "ld-linux-x86-64.so.2 makes itself"] {
        assert!(notes.iter().any(|note| note.contains(missing)), "{notes:?}");
    }
}

#[test]
fn sqlite_lua_and_a_shell_with_children_make_what_strace_sees() {
    let scratch = Scratch::new();
    let folder = scratch.path().display().to_string();
    let sql = "create table t(a, b); with recursive c(x) as (select 1 union all select x+1 from c where x < 2000)
               insert into t select x, x*x from c; select sum(b) from t;";
    let shell = format!("rm -f {folder}/t.db; exec sqlite3 {folder}/t.db \"{sql}\"");
    agrees_with_strace(&scratch, &["sh", "-c", &shell], 150);
    let script = scratch.join("files.lua");
    let lua = format!(
        "for i = 1, 50 do local f = io.open('{folder}/o', 'w') f:write(('x'):rep(20000)) f:close() end os.remove('{folder}/o')"
    );
    std::fs::write(&script, lua).expect("a script");
    agrees_with_strace(
        &scratch,
        &["lua5.4", script.to_str().expect("a plain path")],
        200,
    );
    let shell =
        "for i in 1 2 3; do x=$(echo $i | cat); done; ls / > /dev/null; read y < /etc/passwd";
    agrees_with_strace(&scratch, &["bash", "-c", shell], 500);
}
