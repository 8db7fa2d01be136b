//! Patched copies of programs run as the originals do, with probes that spoil everything a probe may spoil.

mod common;

use common::{Variant, write_patched};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path =
            std::env::temp_dir().join(format!("thalweg-patch-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .output()
        .expect("the program starts")
}

#[track_caller]
fn same(original: &Path, copy: &Path, arguments: &[&str], variant: Variant) {
    write_patched(original, copy, variant);
    let (want, got) = (run(original, arguments), run(copy, arguments));
    let text = |o: &Output| String::from_utf8_lossy(&o.stdout).into_owned();
    assert_eq!(
        (got.status.code(), text(&got)),
        (want.status.code(), text(&want)),
        "{} seed {} percent {:?}",
        original.display(),
        variant.seed,
        variant.percent
    );
}

/// Calls, loops to the entry, switches, tail calls, tiny functions, flags across calls, recursion, variadic calls,
/// structures and x87 values returned, function pointers, setjmp, signals, threads.
const SOURCE: &str = include_str!("programs/many.c");

#[test]
fn c_programs_of_all_kinds_run_patched() {
    let scratch = Scratch::new("c");
    let source = scratch.0.join("many.c");
    std::fs::write(&source, SOURCE).unwrap();
    let mut built = 0;
    for compiler in ["gcc", "clang"] {
        for options in [
            "-O0",
            "-O1",
            "-O2",
            "-O3",
            "-Os",
            "-O2 -fcf-protection=full",
            "-O2 -mfunction-return=thunk",
            "-O2 -mindirect-branch=thunk",
            "-O2 -fno-asynchronous-unwind-tables",
            "-O2 -fno-align-functions",
            "-O2 -fomit-frame-pointer -mno-red-zone",
            "-Os -fno-omit-frame-pointer",
        ] {
            let program = scratch.0.join(format!("many-{built}"));
            let status = Command::new(compiler)
                .args(options.split(' '))
                .args(["-static", "-no-pie", "-w", "-pthread", "-o"])
                .arg(&program)
                .arg(&source)
                .stderr(std::process::Stdio::null())
                .status();
            if !status.is_ok_and(|s| s.success()) {
                continue;
            }
            built += 1;
            let copy = program.with_extension("patched");
            same(&program, &copy, &[], Variant::default());
            same(
                &program,
                &copy,
                &[],
                Variant {
                    seed: built,
                    ..Variant::default()
                },
            );
        }
    }
    assert!(built >= 8, "only {built} variants could be compiled");
}

#[test]
fn a_program_runs_after_any_share_of_the_patches() {
    let scratch = Scratch::new("share");
    let (source, program) = (scratch.0.join("many.c"), scratch.0.join("many"));
    std::fs::write(&source, SOURCE).unwrap();
    let status = Command::new("gcc")
        .args([
            "-Os",
            "-fno-align-functions",
            "-static",
            "-no-pie",
            "-w",
            "-pthread",
            "-o",
        ])
        .args([&program, &source])
        .status()
        .expect("gcc runs");
    assert!(status.success());
    let copy = scratch.0.join("copy");
    for percent in [1, 10, 25, 40, 50, 60, 75, 90, 99] {
        same(
            &program,
            &copy,
            &[],
            Variant {
                percent: Some(percent),
                ..Variant::default()
            },
        );
    }
}

#[test]
fn a_big_interpreter_runs_patched() {
    let python = Path::new("/usr/bin/python3.11");
    if !python.exists() {
        return eprintln!("no {} here: not tested", python.display());
    }
    let script = "import json, re, hashlib\n\
        d = [{'k%d' % i: [j / 7 for j in range(i)]} for i in range(60)]\n\
        s = json.dumps(d)\n\
        assert json.loads(s) == d\n\
        print(hashlib.md5(s.encode()).hexdigest(), len(re.findall(r'(\\d+)\\.(\\d)', s)))\n\
        def f(n):\n  return n if n < 2 else f(n - 1) + f(n - 2)\n\
        print(f(15), sum(i * i for i in range(1000)))\n\
        try:\n  [][1]\nexcept IndexError as e:\n  print(e)\n";
    let scratch = Scratch::new("python");
    let copy = scratch.0.join("python");
    for seed in [0, 7, 8] {
        same(
            python,
            &copy,
            &["-S", "-I", "-c", script],
            Variant {
                seed,
                ..Variant::default()
            },
        );
    }
}
