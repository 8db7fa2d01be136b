//! The first reference: callgrind on the very same binary. It gives calls per function and per
//! caller-callee pair.
//!
//! What callgrind sees differently by nature is put right here and nowhere else:
//! - a jump into `f.cold` looks like a call of another function: fragments are folded into their function;
//! - a jump to a function's own first instruction counts as a call of it: where the function's code holds no
//!   call of itself, such pairs are loops and are left out;
//! - a return through `__x86_return_thunk` looks like a call of the thunk, which is no function of the target's;
//! - an exception's landing pad looks like a call from the unwinder: pairs whose caller is not the
//!   target's own are not compared, and `calls` counts only what the target's own code and libc's callbacks did;
//! - the kernel's call of a signal handler is no call to it: see `SIGNAL_HANDLERS`.

use super::build::{Program, run, without_cold};
use super::counts::{Calls, Pairs};
use super::scratch::Scratch;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

/// Functions of the targets that only the kernel calls, and callgrind therefore never.
pub const SIGNAL_HANDLERS: &[&str] = &["handler", "on_signal"];

#[derive(Clone, Debug)]
pub struct Callgrind {
    pub calls: Calls,
    pub pairs: Pairs,
    pub stdout: String,
}

/// A function as callgrind writes it: object file and name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Site {
    object: String,
    name: String,
}

pub fn callgrind(program: &Program, arguments: &[&str]) -> Callgrind {
    let scratch = Scratch::new();
    let out = scratch.join("callgrind.out");
    let stdout = run(Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--compress-strings=no",
            "--compress-pos=no",
            "--demangle=no",
            "-q",
        ])
        .arg("--max-stackframe=2000000000")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(&program.with_symbols)
        .args(arguments));
    let text = fs::read_to_string(&out).expect("callgrind writes its file");
    let edges = parse(&text);
    assert!(!edges.is_empty(), "callgrind saw no call at all");
    reduce(program, &edges, stdout)
}

/// Sums `calls=` lines per (caller, callee).
fn parse(text: &str) -> BTreeMap<(Site, Site), u64> {
    let mut edges = BTreeMap::new();
    let mut object = String::new();
    let mut function = None;
    let mut callee_object: Option<String> = None;
    let mut callee = None;
    for line in text.lines() {
        // fl=, fi=, fe=, cfl=, cfi= name files: inlined code changes them, the function stays the same.
        if let Some(name) = line.strip_prefix("ob=") {
            object = name.to_owned();
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = Some(Site {
                object: object.clone(),
                name: name.to_owned(),
            });
        } else if let Some(name) = line.strip_prefix("cob=") {
            callee_object = Some(name.to_owned());
        } else if let Some(name) = line.strip_prefix("cfn=") {
            let object = callee_object.take().unwrap_or_else(|| object.clone());
            callee = Some(Site {
                object,
                name: name.to_owned(),
            });
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let count: u64 = rest
                .split_whitespace()
                .next()
                .and_then(|n| n.parse().ok())
                .expect("calls=COUNT");
            let caller = function.clone().expect("fn= comes before calls=");
            let callee = callee.take().expect("cfn= comes before calls=");
            *edges.entry((caller, callee)).or_default() += count;
        }
    }
    edges
}

fn reduce(program: &Program, edges: &BTreeMap<(Site, Site), u64>, stdout: String) -> Callgrind {
    let own = |site: &Site| {
        let module = site
            .object
            .rsplit('/')
            .next()
            .expect("rsplit gives one part");
        let name = without_recursion_level(without_cold(&site.name));
        program
            .modules
            .get(module)
            .and_then(|_| program.canonical.get(name))
            .cloned()
    };
    let recursive = real_self_calls(program);
    let mut calls = Calls::new();
    let mut pairs = Pairs::new();
    for ((caller, callee), count) in edges {
        let Some(name) = own(callee) else { continue };
        let from = own(caller);
        let into_fragment = callee.name.contains(".cold");
        let back_from_fragment = caller.name.contains(".cold") && from.as_ref() == Some(&name);
        let loops = from.as_ref() == Some(&name) && !recursive.contains(&name);
        if into_fragment || loops || (back_from_fragment && !recursive.contains(&name)) {
            continue;
        }
        *calls.entry(name.clone()).or_default() += count;
        if let Some(from) = from {
            *pairs.entry((from, name)).or_default() += count;
        }
    }
    Callgrind {
        calls,
        pairs,
        stdout,
    }
}

/// Recursion by way of functions without a name gets a suffix: f'2 is f, one level down.
fn without_recursion_level(name: &str) -> &str {
    match name.rsplit_once('\'') {
        Some((base, level)) if !level.is_empty() && level.bytes().all(|b| b.is_ascii_digit()) => {
            base
        }
        _ => name,
    }
}

/// Functions whose code holds a direct call of themselves, or an indirect call (which may be one).
fn real_self_calls(program: &Program) -> BTreeSet<String> {
    let mut objdump = Command::new("objdump");
    objdump
        .args(["-d", "--no-show-raw-insn"])
        .arg(&program.with_symbols)
        .args(&program.libraries);
    let listing = run(&mut objdump);
    let mut found = BTreeSet::new();
    let mut inside = String::new();
    for line in listing.lines() {
        if let Some((_, rest)) = line.split_once(" <")
            && let Some(name) = rest.strip_suffix(">:")
        {
            inside = without_cold(name).to_owned();
        } else if let Some((_, target)) = line.split_once("call ") {
            let direct = target
                .split_once('<')
                .and_then(|(_, name)| name.strip_suffix('>'));
            let direct = direct.map(|name| name.strip_suffix("@plt").unwrap_or(name));
            if target.trim_start().starts_with('*') || direct == Some(inside.as_str()) {
                found.insert(program.canonical.get(&inside).unwrap_or(&inside).clone());
            }
        }
    }
    found
}

#[test]
fn parser_sums_calls_over_inlined_files_objects_and_recursion_levels() {
    let text = "\
ob=/x/prog\nfl=a.c\nfn=main\n16 5\ncfn=work\ncalls=3 12\n17 30\nfi=inline.h\n3 4\n\
cob=/lib/libc.so.6\ncfi=???\ncfn=qsort\ncalls=1 0\n9 9\nfe=a.c\ncfn=work\ncalls=2 12\n18 20\n\
\nfn=work\n12 1\ncfn=work'2\ncalls=4 12\n13 1\n\
\nob=/lib/libc.so.6\nfn=qsort\n0 1\ncob=/x/prog\ncfn=work\ncalls=7 12\n0 3\n";
    let edges = parse(text);
    let site = |object: &str, name: &str| Site {
        object: object.into(),
        name: name.into(),
    };
    assert_eq!(
        edges[&(site("/x/prog", "main"), site("/x/prog", "work"))],
        5
    );
    assert_eq!(
        edges[&(site("/x/prog", "main"), site("/lib/libc.so.6", "qsort"))],
        1
    );
    assert_eq!(
        edges[&(site("/lib/libc.so.6", "qsort"), site("/x/prog", "work"))],
        7
    );
    assert_eq!(
        edges[&(site("/x/prog", "work"), site("/x/prog", "work'2"))],
        4
    );
    assert_eq!(without_recursion_level("work'2"), "work");
}

/// Calls of every function of one module (a file name); loops and fragments are as callgrind sees them.
pub fn calls_of_module(text: &str, module: &str) -> Calls {
    let mut calls = Calls::new();
    for ((_, callee), count) in parse(text) {
        if callee.object.rsplit('/').next() == Some(module) {
            let name = without_recursion_level(&callee.name).to_owned();
            *calls.entry(name).or_default() += count;
        }
    }
    calls
}
