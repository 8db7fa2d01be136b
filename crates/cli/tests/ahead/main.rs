//! Copies made by `thalweg instrument`: they answer as the originals do, count as a recording does, and run unharmed where they cannot
//! count.

#[allow(dead_code, unused_imports)] // Other suites use the rest.
#[path = "../e2e/support/mod.rs"]
mod support;

use crate::support::build::targets;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command as thalweg_command, refuse, succeed, text, thalweg};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SUFFIX: &str = ".thalweg-region";

fn word(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Compiles one of the targets.
fn build(scratch: &Scratch, compiler: &str, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let program = scratch.join(name);
    let output = Command::new(compiler)
        .args(["-O1", "-g", "-pthread", "-o"])
        .arg(&program)
        .arg(targets().join(source))
        .args(flags)
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{source}: {}", text(&output));
    program
}

fn instrumented(scratch: &Scratch, program: &Path, options: &[&str]) -> PathBuf {
    let name = program.file_name().expect("a name").to_string_lossy();
    let copy = scratch.join(&format!("{name}.tw"));
    let mut arguments = vec!["instrument", word(program), "-o", word(&copy)];
    arguments.extend(options);
    succeed(&arguments);
    copy
}

fn run(scratch: &Scratch, program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    let command = command.args(arguments).current_dir(scratch.path());
    command.stdin(Stdio::null()).output().expect("it starts")
}

/// The regions that were left in a directory.
fn regions(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| word(path).ends_with(SUFFIX)).collect()
}

/// The only region that was left, as a profile; it is removed.
fn collected(scratch: &Scratch) -> PathBuf {
    let all = regions(scratch.path());
    assert_eq!(all.len(), 1, "one process, one file: {all:?}");
    let profile = scratch.join("collected.thalweg");
    let options = ["-q", "--remove", "-o", word(&profile)];
    let mut arguments = vec!["collect", word(&all[0])];
    arguments.extend(options);
    succeed(&arguments);
    assert!(!all[0].exists());
    profile
}

fn json(profile: &Path) -> Value {
    let json = succeed(&["export", "-f", "json", "-i", word(profile)]);
    serde_json::from_str(&json).expect("JSON")
}

/// Calls of each function of one module, by name and address.
fn calls(profile: &Path, module: &str) -> BTreeMap<String, u64> {
    let json = json(profile);
    let functions = json["functions"].as_array().expect("functions");
    let mut calls = BTreeMap::new();
    let list = |value: &Value, key: &str| value[key].as_array().expect("a list").clone();
    for process in list(&json, "processes") {
        for thread in list(&process, "threads") {
            for node in list(&thread, "nodes") {
                let Some(index) = node["function"].as_u64() else {
                    continue;
                };
                let function = &functions[index as usize];
                if function["module"] == module {
                    let name = format!("{} {}", function["name"], function["address"]);
                    *calls.entry(name).or_insert(0) += node["calls"].as_u64().expect("a number");
                }
            }
        }
    }
    calls.retain(|_, count| *count > 0);
    calls
}

/// Calls that were counted and not timed.
fn untimed(profile: &Path) -> u64 {
    let json = json(profile);
    let list = |value: &Value, key: &str| value[key].as_array().expect("a list").clone();
    let processes = list(&json, "processes").into_iter();
    let threads = processes.flat_map(|process| list(&process, "threads"));
    let nodes = threads.flat_map(|thread| list(&thread, "nodes"));
    nodes.filter_map(|node| node["untimed"].as_u64()).sum()
}

fn calls_of(profile: &Path, module: &str, name: &str) -> u64 {
    let start = format!("\"{name}\" ");
    let all = calls(profile, module);
    let own = all.iter().filter(|(key, _)| key.starts_with(&start));
    own.map(|(_, count)| count).sum()
}

/// What the program says of itself.
fn told(output: &Output, what: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(what));
    let number = line.and_then(|rest| rest.trim().parse().ok());
    number.unwrap_or_else(|| panic!("{what}: {text}"))
}

fn assert_counts(profile: &Path, module: &str, output: &Output) {
    for what in ["work", "step", "handler", "thread"] {
        let own = told(output, what);
        assert_eq!(calls_of(profile, module, what), own, "{what}");
    }
}

#[test]
fn every_kind_of_executable_counts_by_itself_what_it_counts_of_itself() {
    for (compiler, name, flags) in [
        ("gcc", "pie", &["-pie", "-fPIE"][..]),
        ("gcc", "fixed", &["-no-pie"]),
        ("gcc", "static", &["-static"]),
        ("gcc", "static-pie", &["-static-pie", "-fPIE"]),
        ("gcc", "stripped", &["-s"]),
        ("musl-gcc", "musl", &[]),
        ("musl-gcc", "musl-static", &["-static"]),
    ] {
        let scratch = Scratch::new();
        let program = build(&scratch, compiler, "ahead.c", name, flags);
        let copy = instrumented(&scratch, &program, &["-q"]);
        let output = run(&scratch, &copy, &[]);
        assert!(output.status.success(), "{name}: {}", text(&output));
        let plain = run(&scratch, &program, &[]);
        assert_eq!(output.stdout, plain.stdout, "{name}");
        assert!(output.stderr.is_empty(), "{name}: it says nothing");
        let profile = collected(&scratch);
        if name == "stripped" {
            let all = calls(&profile, name);
            let counted: Vec<u64> = all.values().copied().collect();
            assert!(counted.contains(&told(&output, "step")), "{all:?}");
        } else {
            assert_counts(&profile, name, &output);
        }
        let json = json(&profile);
        let processes = json["processes"].as_array().expect("processes").len();
        assert_eq!(processes, 5, "{name}: four children");
    }
}

#[test]
fn a_copy_that_counts_without_a_clock_or_by_another_mode_counts_the_same() {
    let scratch = Scratch::new();
    let program = build(&scratch, "gcc", "ahead.c", "modes", &[]);
    let copy = instrumented(&scratch, &program, &["-q", "--no-clock"]);
    let output = run(&scratch, &copy, &[]);
    assert_counts(&collected(&scratch), "modes", &output);
    let copy = instrumented(&scratch, &program, &["-q"]);
    for mode in ["counted", "sampled", "timed", "nonsense"] {
        let mut command = Command::new(&copy);
        let command = command
            .env("THALWEG_MODE", mode)
            .current_dir(scratch.path());
        let output = command.output().expect("it starts");
        let profile = collected(&scratch);
        assert_counts(&profile, "modes", &output);
        let is_all_timed = untimed(&profile) == 0;
        assert_eq!(
            is_all_timed,
            mode == "timed" || mode == "nonsense",
            "{mode}"
        );
    }
}

/// All functions that two profiles count differently.
fn differences(
    some: &BTreeMap<String, u64>,
    others: &BTreeMap<String, u64>,
) -> Vec<(String, u64, u64)> {
    let names: BTreeSet<&String> = some.keys().chain(others.keys()).collect();
    let of = |calls: &BTreeMap<String, u64>, name| calls.get(name).copied().unwrap_or(0);
    let all = names.into_iter();
    let all = all.map(|name| (name.clone(), of(some, name), of(others, name)));
    all.filter(|(_, one, other)| one != other).collect()
}

/// A file with numbers in no order.
fn numbers(scratch: &Scratch) -> PathBuf {
    let path = scratch.join("numbers");
    let lines: String = (0..5000u64)
        .map(|n| format!("{}\n", n * 7919 % 5003))
        .collect();
    fs::write(&path, lines).expect("room");
    path
}

#[test]
fn real_programs_and_exceptions_are_counted_as_a_recording_counts_them() {
    let scratch = Scratch::new();
    let exceptions = build(
        &scratch,
        "g++",
        "exceptions.cpp",
        "exceptions",
        &["-lstdc++"],
    );
    let numbers = numbers(&scratch);
    let numbers = word(&numbers);
    for (program, arguments) in [
        (exceptions.as_path(), &[][..]),
        (
            Path::new("/usr/bin/sort"),
            &["-n", "-S1M", "--parallel=1", numbers],
        ),
        (Path::new("/usr/bin/gzip"), &["-9", "-c", "-n", numbers]),
        (Path::new("/usr/bin/bc"), &["-q", "-l", numbers]),
    ] {
        let name = program.file_name().expect("a name").to_string_lossy();
        let copy = instrumented(&scratch, program, &["-q"]);
        let output = run(&scratch, &copy, arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert_eq!(output.stdout, run(&scratch, program, arguments).stdout);
        let own = collected(&scratch);
        let recorded = scratch.join("recorded.thalweg");
        let library = format!("^{name}$");
        let mut command = thalweg_command();
        let options = [
            "--no-report",
            "-q",
            "--time",
            "all",
            "--lib",
            &library,
            "-o",
        ];
        command.arg("record").args(options).arg(&recorded).arg("--");
        let command = command.arg(program).args(arguments).stdin(Stdio::null());
        assert!(command.output().expect("it starts").status.success());
        let counted = calls(&own, &name);
        assert!(counted.values().sum::<u64>() > 1000, "{counted:?}");
        assert_eq!(
            differences(&counted, &calls(&recorded, &name)),
            [],
            "{name}"
        );
    }
}

#[test]
fn interpreters_and_databases_give_the_answers_that_they_always_gave() {
    let scratch = Scratch::new();
    let lua = "local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end \
        local t = {} for i = 1, 90 do t[i] = string.format('%d', i * 7 % 31) end table.sort(t) \
        print(pcall(function() error('no') end), fib(18), table.concat(t, ' '))";
    let python = "import json, re, threading\n\
        t = [threading.Thread(target=lambda: re.sub('a+', 'b', 'aab' * 1000)) for _ in range(4)]\n\
        [x.start() for x in t]; [x.join() for x in t]\n\
        print(len(json.dumps({str(i): [i] * 3 for i in range(2000)})))\n\
        try: 1 / 0\nexcept ZeroDivisionError as e: print(e)";
    let sql = "create table t(a, b); with recursive c(x) as (values(1) union all select x + 1 \
        from c where x < 500) insert into t select x, x * x from c; select sum(b), max(a) from t;";
    for (program, arguments) in [
        ("/usr/bin/lua5.4", &["-e", lua][..]),
        ("/usr/bin/python3.11", &["-S", "-E", "-c", python]),
        ("/usr/bin/sqlite3", &[":memory:", sql]),
        ("/usr/bin/redis-server", &["--version"]),
    ] {
        let program = Path::new(program);
        let name = program.file_name().expect("a name").to_string_lossy();
        let copy = instrumented(&scratch, program, &["-q"]);
        let output = run(&scratch, &copy, arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        let plain = run(&scratch, program, arguments);
        assert_eq!(output.stdout, plain.stdout, "{name}");
        let profile = collected(&scratch);
        assert!(!calls(&profile, &name).is_empty(), "{name}");
    }
}

/// Two libraries of one source and a program that is linked with one and loads the other, again and again; prints the calls of
/// `step` in each.
const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
long one_work(long), one_count(void);
static void *thread(void *path)
{
    long sum = 0;
    for (int i = 0; i < 50; i++) {
        void *library = dlopen(path, RTLD_NOW);
        if (!library)
            return puts(dlerror()), (void *)0;
        sum += ((long (*)(long))dlsym(library, "two_work"))(i);
        sum += one_work(i);
        if (i < 49)
            dlclose(library);
    }
    return (void *)sum;
}
int main(int argc, char **argv)
{
    pthread_t threads[3];
    (void)argc;
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, thread, argv[1]);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    printf("one %ld\n", one_count());
    return 0;
}
"#;
const LIBRARY: &str = r#"
static long count;
__attribute__((noinline)) static long NAME(step)(long n) { __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED); return n * 3; }
long NAME(work)(long n) { long sum = 0; for (long i = 0; i <= n; i++) sum += NAME(step)(i ^ n); return sum; }
long NAME(count)(void) { return count; }
"#;

/// The program and its two libraries, `one` in a directory of its own.
fn with_libraries(scratch: &Scratch) -> (PathBuf, PathBuf, PathBuf) {
    fs::write(scratch.join("program.c"), PROGRAM).expect("room");
    fs::write(scratch.join("library.c"), LIBRARY).expect("room");
    let compile = |arguments: &[&str]| {
        let mut command = Command::new("gcc");
        let command = command.args(arguments).current_dir(scratch.path());
        let output = command.output().expect("gcc starts");
        assert!(output.status.success(), "{}", text(&output));
    };
    for (name, plain) in [("one", "-DNAME(x)=one_##x"), ("two", "-DNAME(x)=two_##x")] {
        let library = format!("lib{name}.so");
        let soname = format!("-Wl,-soname,{library}");
        let flags = ["-O1", "-shared", "-fPIC", plain, &soname];
        compile(&[&flags[..], &["-o", &library, "library.c"]].concat());
    }
    let link = ["-O1", "-pthread", "-o", "program", "program.c"];
    compile(&[&link[..], &["libone.so", "-Wl,-rpath,$ORIGIN"]].concat());
    let place = |name: &str| scratch.join(name);
    (place("program"), place("libone.so"), place("libtwo.so"))
}

#[test]
fn libraries_count_beside_a_program_and_by_themselves_however_often_they_are_loaded() {
    // 3 threads, 50 rounds, n + 1 steps each.
    const STEPS: u64 = 3 * 50 * 51 / 2;
    const WORKS: u64 = 3 * 50;
    for copies in ["all", "libraries", "one"] {
        let scratch = Scratch::new();
        let (program, one, two) = with_libraries(&scratch);
        for library in [&one, &two] {
            if copies != "one" || library == &one {
                let copy = instrumented(&scratch, library, &["-q"]);
                fs::rename(copy, library).expect("room");
            }
        }
        let started = match copies {
            "all" => instrumented(&scratch, &program, &["-q"]),
            _ => program.clone(),
        };
        let output = run(&scratch, &started, &[word(&two)]);
        assert!(output.status.success(), "{copies}: {}", text(&output));
        assert_eq!(told(&output, "one"), STEPS, "{copies}");
        let profile = collected(&scratch);
        let count = |library: &str, name: &str| calls_of(&profile, library, name);
        assert_eq!(count("libone.so", "one_step"), STEPS, "{copies}");
        assert_eq!(count("libone.so", "one_work"), WORKS, "{copies}");
        let expected = if copies == "one" { 0 } else { STEPS };
        assert_eq!(count("libtwo.so", "two_step"), expected, "{copies}");
        let threads = if copies == "all" { 3 } else { 0 };
        assert_eq!(count("program", "thread"), threads, "{copies}");
    }
}

#[test]
fn a_library_of_debian_is_counted_as_a_recording_counts_it() {
    let scratch = Scratch::new();
    let sql = "create table t(a, b); with recursive c(x) as (values(1) union all select x + 1 \
        from c where x < 500) insert into t select x, x * x from c; select sum(b), max(a) from t;";
    let program = Path::new("/usr/bin/sqlite3");
    let arguments = [":memory:", sql];
    let library = fs::canonicalize("/usr/lib/x86_64-linux-gnu/libsqlite3.so.0").expect("Debian's");
    let copy = instrumented(&scratch, &library, &["-q"]);
    fs::rename(copy, scratch.join("libsqlite3.so.0")).expect("room");
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", scratch.path());
    let command = command.args(arguments).current_dir(scratch.path());
    let output = command.output().expect("it starts");
    assert_eq!(output.stdout, run(&scratch, program, &arguments).stdout);
    let own = collected(&scratch);
    let recorded = scratch.join("recorded.thalweg");
    let options = [
        "--no-report",
        "-q",
        "--time",
        "all",
        "--lib",
        "^libsqlite3",
        "-o",
    ];
    let mut command = thalweg_command();
    command.arg("record").args(options).arg(&recorded).arg("--");
    let command = command.arg(program).args(arguments).stdin(Stdio::null());
    assert!(command.output().expect("it starts").status.success());
    let module = library.file_name().expect("a name").to_string_lossy();
    let counted = calls(&own, &module);
    assert!(counted.values().sum::<u64>() > 10_000, "{}", counted.len());
    assert_eq!(differences(&counted, &calls(&recorded, &module)), []);
}

#[test]
fn a_recording_of_a_copy_leaves_its_probes_to_it() {
    let scratch = Scratch::new();
    let program = build(&scratch, "gcc", "ahead.c", "twice", &[]);
    let copy = instrumented(&scratch, &program, &["-q"]);
    let recorded = scratch.join("recorded.thalweg");
    let mut command = thalweg_command();
    command
        .args(["record", "--no-report", "-q", "-o"])
        .arg(&recorded);
    let command = command.arg("--").arg(&copy).current_dir(scratch.path());
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(
        regions(scratch.path()),
        [] as [PathBuf; 0],
        "one of the two counts"
    );
    assert_eq!(calls_of(&recorded, "twice.tw", "work"), 0);
    assert!(calls(&recorded, "libc.so.6").values().sum::<u64>() > 0);
}

#[test]
fn a_program_that_is_killed_leaves_what_it_has_counted() {
    let scratch = Scratch::new();
    let program = build(&scratch, "gcc", "ahead.c", "killed", &[]);
    let copy = instrumented(&scratch, &program, &["-q"]);
    const SIGKILL: i32 = 9;
    const SIGSEGV: i32 = 11;
    for signal in [SIGKILL, SIGSEGV] {
        let output = run(&scratch, &copy, &[&signal.to_string()]);
        assert_eq!(output.status.signal(), Some(signal));
        assert_counts(&collected(&scratch), "killed", &output);
    }
}

#[test]
fn commands_for_attached_processes_show_a_copy_that_runs_and_leave_it_alone() {
    let scratch = Scratch::new();
    let program = build(&scratch, "gcc", "ahead.c", "runs", &[]);
    let copy = instrumented(&scratch, &program, &["-q"]);
    for out in ["memory", "."] {
        let out = match out {
            "memory" => "memory".to_owned(),
            _ => format!("{}/", scratch.path().display()),
        };
        let mut child = Command::new(&copy)
            .arg("wait")
            .env("THALWEG_OUT", &out)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut said = String::new();
        while !said.contains("sum") {
            assert!(stdout.read_line(&mut said).expect("text") > 0);
        }
        let pid = child.id().to_string();
        let profile = scratch.join("now.thalweg");
        succeed(&["checkpoint", &pid, "-q", "-o", word(&profile)]);
        let work = said.lines().find_map(|line| line.strip_prefix("work "));
        let own: u64 = work.and_then(|n| n.parse().ok()).expect("a number");
        assert_eq!(calls_of(&profile, "runs", "work"), own);
        assert!(succeed(&["status", &pid]).contains("calls"));
        assert!(refuse(&["detach", &pid]).contains("a part of it"));
        assert!(refuse(&["attach", &pid]).contains("already attached"));
        let files = regions(scratch.path());
        assert_eq!(files.len(), usize::from(out != "memory"));
        child
            .stdin
            .take()
            .expect("piped")
            .write_all(b"\n")
            .expect("it reads");
        assert!(child.wait().expect("it ends").success());
        files
            .iter()
            .for_each(|file| fs::remove_file(file).expect("a file"));
    }
}

/// Runs a line of a shell in which `$0` is the copy.
fn shell(scratch: &Scratch, copy: &Path, line: &str) -> Output {
    let mut command = Command::new("bash");
    let command = command.args(["-c", line]).arg(copy);
    command
        .current_dir(scratch.path())
        .output()
        .expect("bash starts")
}

#[test]
fn where_it_cannot_count_a_copy_says_nothing_and_does_what_the_original_does() {
    let scratch = Scratch::new();
    let program = build(&scratch, "gcc", "ahead.c", "quiet", &[]);
    let copy = instrumented(&scratch, &program, &["-q"]);
    let plain = run(&scratch, &program, &[]).stdout;
    for line in [
        "THALWEG_OUT=off exec $0",
        "THALWEG_OUT=/nonexistent/ exec $0",
        "THALWEG_OUT=/proc/ exec $0",
        "ulimit -v 2000000; exec $0",
        "ulimit -v 2000000; THALWEG_OUT=memory exec $0",
        "ulimit -f 1000; exec $0",
    ] {
        let output = shell(&scratch, &copy, line);
        assert!(output.status.success(), "{line}: {}", text(&output));
        assert_eq!(output.stdout, plain, "{line}");
        assert!(output.stderr.is_empty(), "{line}: {}", text(&output));
        assert_eq!(regions(scratch.path()), [] as [PathBuf; 0], "{line}");
    }
}

/// The kernel says of it what it says of a program without a loader.
#[test]
fn a_copy_that_the_loader_starts_as_a_program_counts_unless_threads_run_already() {
    let scratch = Scratch::new();
    let source = "early_thread.c";
    let program = build(&scratch, "gcc", source, "early", &["-rdynamic"]);
    let flags = ["-DLIBRARY", "-shared", "-fPIC"];
    let library = build(&scratch, "gcc", source, "libearly.so", &flags);
    let copy = instrumented(&scratch, &program, &[]);
    for (preloaded, counted) in [(None, 1), (Some(&library), 0)] {
        let mut command = Command::new("/lib64/ld-linux-x86-64.so.2");
        command.arg(&copy).current_dir(scratch.path());
        if let Some(library) = preloaded {
            command.env("LD_PRELOAD", library);
        }
        let output = command.output().expect("the loader starts");
        assert!(output.status.success(), "{preloaded:?}: {}", text(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1000\n");
        let found = regions(scratch.path());
        assert_eq!(found.len(), counted, "{preloaded:?}: {found:?}");
        for region in found {
            fs::remove_file(region).expect("a file of ours");
        }
    }
}

#[test]
fn a_planted_file_or_link_is_neither_followed_nor_changed() {
    let scratch = Scratch::new();
    let program = build(&scratch, "gcc", "ahead.c", "planted", &[]);
    let copy = instrumented(&scratch, &program, &["-q"]);
    let victim = scratch.join("victim");
    fs::write(&victim, "precious").expect("room");
    symlink(&victim, scratch.join("link")).expect("room");
    let line =
        "ln -s victim planted.$$.thalweg-region; cp victim planted.$$.1.thalweg-region; exec $0";
    let output = shell(&scratch, &copy, line);
    assert!(output.status.success());
    assert_eq!(fs::read(&victim).expect("a file"), b"precious");
    let new: Vec<PathBuf> = regions(scratch.path())
        .into_iter()
        .filter(|path| word(path).ends_with(".2.thalweg-region"))
        .collect();
    assert_eq!(new.len(), 1, "the next free name");
    let mode = fs::metadata(&new[0]).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_program_with_somebody_elses_rights_looks_at_no_variable() {
    let scratch = Scratch::new();
    let program = build(&scratch, "gcc", "ahead.c", "setuid", &[]);
    let copy = instrumented(&scratch, &program, &["-q"]);
    std::os::unix::fs::chown(&copy, Some(65534), Some(65534)).expect("root may");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("root may");
    let place = scratch.join("place");
    fs::create_dir(&place).expect("room");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).expect("root may");
    // The loader removes some variables from such a program's environment, and leaves holes behind it.
    for removed in [
        "unset LD_LIBRARY_PATH",
        "export LD_LIBRARY_PATH=/nonexistent",
        "export LD_LIBRARY_PATH=/nonexistent TMPDIR=/nonexistent MALLOC_ARENA_MAX=1",
    ] {
        let line = format!("{removed}; THALWEG_OUT={}/ exec $0", place.display());
        let output = shell(&scratch, &copy, &line);
        assert!(output.status.success(), "{}", text(&output));
        let found = regions(&place);
        let about = |path: &PathBuf| {
            let metadata = fs::metadata(path).expect("a file");
            format!("{path:?} of {}, {:o}", metadata.uid(), metadata.mode())
        };
        let told: Vec<String> = found.iter().chain([&copy]).map(about).collect();
        assert!(found.is_empty(), "{removed}: {told:?}");
    }
}

#[test]
fn a_copy_counts_in_a_container_without_capabilities_under_dockers_filter() {
    let scratch = Scratch::new();
    let confine = build(
        &scratch,
        "gcc",
        "confine_like_docker.c",
        "confine",
        &["-static"],
    );
    let place = std::env::temp_dir().join(format!("thalweg-ahead-{}", std::process::id()));
    fs::create_dir(&place).expect("room");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).expect("ours");
    for (name, flags) in [("confined", &[][..]), ("confined-static", &["-static"])] {
        let program = build(&scratch, "gcc", "ahead.c", name, flags);
        let copy = instrumented(&scratch, &program, &["-q"]);
        let there = place.join(name);
        fs::copy(&copy, &there).expect("room");
        let tool = place.join("confine");
        fs::copy(&confine, &tool).expect("room");
        let output = Command::new(&tool).arg(&there).current_dir(&place).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", text(&output));
        for region in regions(&place) {
            let profile = scratch.join("confined.thalweg");
            succeed(&[
                "collect",
                word(&region),
                "-q",
                "--remove",
                "-o",
                word(&profile),
            ]);
            assert_counts(&profile, name, &output);
            fs::remove_file(&profile).expect("just written");
            fs::write(scratch.join(&format!("{name}.seen")), "").expect("room");
        }
        assert!(scratch.join(&format!("{name}.seen")).exists(), "it counted");
    }
    fs::remove_dir_all(&place).expect("ours");
}

#[test]
fn tools_take_a_copy_for_what_it_is() {
    let scratch = Scratch::new();
    let program = build(&scratch, "gcc", "ahead.c", "tools", &[]);
    let copy = instrumented(&scratch, &program, &["-q"]);
    for tool in [
        &["readelf", "-aW"][..],
        &["objdump", "-d", "-j", ".thalweg.code"],
        &["ldd"],
        &["nm"],
    ] {
        let output = Command::new(tool[0]).args(&tool[1..]).arg(&copy).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{tool:?}: {}", text(&output));
        assert!(output.stderr.is_empty(), "{tool:?}: {}", text(&output));
    }
    // The main thread sends itself signals, before or after the others come to work.
    let script = [
        "handle SIGUSR1 nostop noprint pass",
        "break work",
        "run",
        "backtrace",
        "kill",
    ];
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx"]);
    for line in script {
        gdb.args(["-ex", line]);
    }
    let output = gdb
        .arg(&copy)
        .env("THALWEG_OUT", "memory")
        .output()
        .expect("gdb starts");
    let text = text(&output);
    assert!(text.contains("thread") && text.contains("work"), "{text}");
}

#[test]
fn what_cannot_be_instrumented_is_refused_and_nothing_is_written() {
    let scratch = Scratch::new();
    let program = build(&scratch, "gcc", "ahead.c", "plain", &[]);
    let copy = instrumented(&scratch, &program, &["-q"]);
    let object = build(&scratch, "gcc", "ahead.c", "object.o", &["-c"]);
    let bytes = fs::read(&program).expect("a file");
    let changed = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        let path = scratch.join(name);
        fs::write(&path, bytes).expect("room");
        path
    };
    let cases = [
        (copy, "instrumented already"),
        (object, "relocatable"),
        (
            changed("text", &|bytes| *bytes = b"#!/bin/sh\n".to_vec()),
            "no ELF file",
        ),
        (changed("bits", &|bytes| bytes[4] = 1), "32-bit"),
        (changed("arm", &|bytes| bytes[18] = 183), "not for x86-64"),
        (changed("short", &|bytes| bytes.truncate(3000)), "cut short"),
        (
            changed("signed", &|bytes| {
                bytes.extend(b"~Module signature appended~\n")
            }),
            "signed",
        ),
        (
            changed("packed", &|bytes| {
                bytes[40..48].fill(0);
                bytes[58..64].fill(0);
                bytes[3000..3004].copy_from_slice(b"UPX!");
            }),
            "UPX",
        ),
        (
            changed("extracting", &|bytes| bytes.extend([7; 5000])),
            "data behind",
        ),
    ];
    let out = scratch.join("out");
    for (file, why) in cases {
        let message = refuse(&["instrument", word(&file), "-o", word(&out)]);
        assert!(message.contains(why), "{why}: {message}");
        assert!(!out.exists(), "{why}");
    }
    let same = refuse(&["instrument", word(&program), "-o", word(&program)]);
    assert!(same.contains("the file itself"), "{same}");
    assert_eq!(fs::read(&program).expect("a file"), bytes);
    let nothing = thalweg(&[
        "instrument",
        word(&program),
        "-o",
        word(&out),
        "-F",
        "^nothing$",
    ]);
    assert_eq!(nothing.status.code(), Some(2));
    let names = fs::read_dir(scratch.path()).expect("a directory");
    let left = names.filter(|entry| {
        let name = entry.as_ref().expect("an entry").file_name();
        name.to_string_lossy().starts_with('.')
    });
    assert_eq!(left.count(), 0, "no half-written file");
}
