//! Programs as Debian ships them, stripped: the same output, exact counts of what has a name, attach under load.

use crate::support::build::{run, targets};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{command, export, record_path, record_with_input, succeed, text};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn real(name: &str) -> String {
    targets()
        .join("real")
        .join(name)
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

fn program(name: &str) -> PathBuf {
    let path = Path::new("/usr/bin").join(name);
    assert!(
        path.exists(),
        "{} is missing: install what .ci/run installs",
        path.display()
    );
    path
}

/// Calls of a module's exported functions as callgrind counts them.
fn exported_calls(
    program: &Path,
    arguments: &[&str],
    input: &str,
    module: &str,
) -> BTreeMap<String, u64> {
    let scratch = Scratch::new();
    let out = scratch.join("callgrind.out");
    let stdin = scratch.join("stdin");
    std::fs::write(&stdin, input).expect("input");
    run(Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--compress-strings=no",
            "--compress-pos=no",
            "--demangle=no",
            "-q",
        ])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(arguments)
        .env("PYTHONHASHSEED", "0")
        .stdin(std::fs::File::open(&stdin).expect("input")));
    let written = std::fs::read_to_string(&out).expect("callgrind writes its file");
    crate::support::callgrind::calls_of_module(&written, module)
}

/// Exported functions of a file: their counts can be compared by name.
fn exported(file: &Path) -> Vec<String> {
    run(Command::new("nm").args(["-D", "--defined-only"]).arg(file))
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let (kind, name) = (fields.next()?, fields.next()?);
            (kind == "T").then(|| {
                name.split('@')
                    .next()
                    .expect("split gives one part")
                    .to_owned()
            })
        })
        .collect()
}

/// Thalweg's counts of the exported functions equal callgrind's.
#[track_caller]
fn exported_counts_agree(program: &Path, arguments: &[&str], input: &str, file: &Path) {
    let module = file.file_name().expect("name").to_str().expect("UTF-8");
    let reference = exported_calls(program, arguments, input, module);
    let recorded = record_with_input(&["--no-report", "-q"], program, arguments, input.as_bytes());
    assert!(recorded.status.success(), "{}", recorded.stderr);
    let ours = recorded.profile.calls_by_name();
    let skipped = recorded
        .profile
        .skipped
        .iter()
        .filter(|skipped| skipped.module == module);
    let skipped: BTreeSet<&str> = skipped.map(|skipped| skipped.name.as_str()).collect();
    let mut compared = 0;
    let mut wrong = Vec::new();
    for name in exported(file) {
        let (a, b) = (
            ours.get(&name).copied().unwrap_or(0),
            reference.get(&name).copied().unwrap_or(0),
        );
        if a + b > 0 && !skipped.contains(name.as_str()) {
            compared += 1;
            if a != b {
                wrong.push(format!("{name}: thalweg {a}, callgrind {b}"));
            }
        }
    }
    assert!(
        compared > 20,
        "only {compared} exported functions were called"
    );
    assert!(
        wrong.is_empty(),
        "{} of {compared} differ: {wrong:#?}",
        wrong.len()
    );
}

#[test]
fn lua() {
    let (lua, script) = (program("lua5.4"), real("work.lua"));
    let plain = run(Command::new(&lua).arg(&script));
    let recorded = record_path(&["-q"], &lua, &[&script]);
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), plain);
    assert!(
        recorded.profile.total_calls() > 50_000,
        "{}",
        recorded.profile.total_calls()
    );
}

#[test]
fn lua_counts_agree_with_callgrind() {
    // luaL_* and lua_* are called by the interpreter and its libraries as often in every run.
    exported_counts_agree(
        &program("lua5.4"),
        &[&real("work.lua")],
        "",
        &program("lua5.4"),
    );
}

#[test]
fn sqlite() {
    let sqlite = program("sqlite3");
    let script = std::fs::read_to_string(real("work.sql")).expect("script");
    let plain = run(Command::new(&sqlite)
        .arg(":memory:")
        .stdin(std::fs::File::open(real("work.sql")).expect("script")));
    let recorded = record_with_input(&["-q"], &sqlite, &[":memory:"], script.as_bytes());
    assert!(recorded.status.success(), "{}", recorded.stderr);
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), plain);
    assert!(recorded.profile.total_calls() > 100_000);
}

#[test]
fn python() {
    let (python, script) = (program("python3.11"), real("work.py"));
    let plain = run(Command::new(&python).arg(&script));
    let recorded = record_path(&["-q"], &python, &[&script]);
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), plain);
    assert!(
        recorded.profile.total_calls() > 500_000,
        "{}",
        recorded.profile.total_calls()
    );
}

#[test]
fn the_readme_command() {
    let plain = run(Command::new("ls").args(["-lR", "/usr/share/doc/bash"]));
    let recorded = record_path(&[], Path::new("ls"), &["-lR", "/usr/share/doc/bash"]);
    assert_eq!(String::from_utf8_lossy(&recorded.stdout), plain);
}

#[test]
fn other_programs_print_what_they_print() {
    for line in [
        "git --version",
        "sort /etc/passwd",
        "gzip -c /bin/ls",
        "awk BEGIN{for(i=0;i<1000;i++)s+=i*i;print(s)}",
        "perl -e print(join(q(,),map{$_*2}1..50))",
        "bash -c for((i=0;i<300;i++));do:;done;echo\t$((i*7))",
        "sed s/a/b/g /etc/passwd",
        "gcc --version",
        "openssl dgst -sha256 /bin/ls",
    ] {
        let mut words = line.split(' ');
        let name = words.next().expect("a word");
        if !Path::new("/usr/bin").join(name).exists() {
            continue;
        }
        let arguments: Vec<&str> = words.collect();
        let plain = Command::new(name)
            .args(&arguments)
            .stdin(Stdio::null())
            .output()
            .expect("starts");
        let recorded = record_with_input(&["-q"], Path::new(name), &arguments, b"");
        assert_eq!(
            recorded.status.code(),
            plain.status.code(),
            "{line}: {}",
            recorded.stderr
        );
        assert!(
            recorded.stdout == plain.stdout,
            "{line} prints something else under thalweg"
        );
        assert!(recorded.profile.total_calls() > 0, "{line}");
    }
}

#[test]
fn redis_under_load() {
    let scratch = Scratch::new();
    let port = (20000 + std::process::id() % 20000).to_string();
    let mut server = Command::new(program("redis-server"));
    server
        .args(["--port", &port, "--save", "", "--daemonize", "no"])
        .current_dir(scratch.path());
    let mut server = Live::spawn(&mut server);
    let ping = || {
        Command::new("redis-cli")
            .args(["-p", &port, "ping"])
            .output()
            .is_ok_and(|o| o.stdout.starts_with(b"PONG"))
    };
    let up = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        ping()
    });
    assert!(up, "redis-server does not answer");
    let before = server.text();
    let mut load = Command::new("redis-benchmark")
        .args([
            "-p",
            &port,
            "-n",
            "2000000",
            "-c",
            "20",
            "-t",
            "set,get,lpush",
            "-q",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-benchmark");
    std::thread::sleep(Duration::from_millis(200));
    let file = scratch.join("redis.thalweg");
    for _ in 0..3 {
        let output = command()
            .args([
                "record",
                "--budget",
                "off",
                "-p",
                &server.id(),
                "-d",
                "1s",
                "--no-report",
                "-o",
            ])
            .arg(&file)
            .output()
            .expect("thalweg starts");
        assert!(output.status.success(), "{}", text(&output));
        assert_restored(&before, &server.text());
        assert!(ping(), "redis answers after the detach");
    }
    let profile = export(&file);
    assert!(profile.total_calls() > 1_000, "{}", profile.total_calls());
    succeed(&["attach", "--budget", "off", &server.id()]);
    assert!(ping(), "redis answers while attached");
    succeed(&["detach", &server.id()]);
    load.kill().expect("load ends");
    load.wait().expect("load ends");
    assert!(ping());
    server.assert_healthy();
}
