//! What is allocated is counted to the byte, by who asks for it, in every thread, and what is freed is known to be somebody's.

use crate::support::build::{Build, Program, targets};
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const METRICS: [&str; 6] = [
    "alloc.calls",
    "alloc.bytes",
    "free.calls",
    "free.bytes",
    "live.bytes",
    "live.objects",
];

struct Recorded {
    _scratch: Scratch,
    file: String,
    stdout: Vec<u8>,
}

#[track_caller]
fn record(options: &[&str], program: &Path, arguments: &[&str]) -> Recorded {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let run = command()
        .args(["record", "--no-report", "-q", "-o"])
        .arg(&file)
        .args(options)
        .arg("--")
        .arg(program)
        .args(arguments)
        .output()
        .expect("thalweg starts");
    assert!(run.status.success(), "{}", text(&run));
    Recorded {
        _scratch: scratch,
        file: file.to_str().expect("a plain path").to_owned(),
        stdout: run.stdout,
    }
}

fn json(recorded: &Recorded) -> Value {
    let text = succeed(&["export", "-i", &recorded.file, "--format", "json"]);
    serde_json::from_str(&text).expect("JSON")
}

/// A metric of each function that has any, by name, over all threads and contexts.
fn by_function(profile: &Value, metric: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for process in profile["processes"].as_array().expect("processes") {
        // What starts the program with other libraries is not part of it.
        if process["command"][0] == "env" {
            continue;
        }
        for thread in process["threads"].as_array().expect("threads") {
            for node in thread["nodes"].as_array().expect("nodes") {
                let value = node["metrics"][metric].as_u64().unwrap_or(0);
                let function = node["function"].as_u64().expect("a function") as usize;
                let name = profile["functions"][function]["name"].as_str();
                let name = name.expect("a name").split('(').next().unwrap_or_default();
                *sums.entry(name.to_owned()).or_default() += value;
            }
        }
    }
    sums
}

fn total(profile: &Value, metric: &str) -> u64 {
    by_function(profile, metric).values().sum()
}

/// The program prints what each of its functions did: see `allocs.c`.
#[track_caller]
fn check_against_itself(recorded: &Recorded) {
    let profile = json(recorded);
    let found: Vec<_> = METRICS
        .iter()
        .map(|metric| by_function(&profile, metric))
        .collect();
    let output = String::from_utf8_lossy(&recorded.stdout);
    let mut lines = 0;
    for line in output.lines() {
        let mut words = line.split(' ');
        let name = words.next().expect("a name");
        let truth: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        let counted: Vec<u64> = found
            .iter()
            .map(|metric| metric.get(name).copied().unwrap_or(0))
            .collect();
        assert_eq!(counted, truth, "{name}: {METRICS:?}");
        lines += 1;
    }
    assert!(lines > 0, "the program printed nothing");
}

fn c_program() -> Program {
    let build = Build::new("allocs").source("allocs.c");
    build.flags(&["-O2", "-fno-builtin", "-pthread"]).finish()
}

const ALLOC: [&str; 2] = ["--metric", "alloc"];

#[test]
fn every_function_of_a_c_program_allocates_what_it_says() {
    let program = c_program();
    let recorded = record(&ALLOC, &program.path, &["copies"]);
    check_against_itself(&recorded);
    let profile = json(&recorded);
    let mapped = |metric| by_function(&profile, metric)["map_and_unmap"];
    assert_eq!((mapped("map.calls"), mapped("map.bytes")), (2, 11 * 4096));
    assert_eq!(
        (mapped("unmap.calls"), mapped("unmap.bytes")),
        (2, 10 * 4096)
    );
    let remapped = |metric| by_function(&profile, metric)["remap"];
    assert_eq!(
        (remapped("map.calls"), remapped("map.bytes")),
        (3, (4 + 1000 + 6) * 4096)
    );
    assert_eq!(
        (remapped("unmap.calls"), remapped("unmap.bytes")),
        (3, (4 + 1000 + 6) * 4096)
    );
}

#[test]
fn a_fork_childs_allocations_are_counted_as_its_parents_are() {
    let program = c_program();
    check_against_itself(&record(&ALLOC, &program.path, &["fork"]));
}

/// Allocators that are part of the program, and one that its linker chose.
#[test]
fn allocators_that_are_linked_into_the_program_are_followed() {
    let check = |name: &str, link_flags: &[&str], more: Option<&str>| {
        let mut build = Build::new(name).source("allocs.c");
        build = build.flags(&["-O2", "-fno-builtin", "-pthread"]);
        for flag in link_flags {
            build = build.link_flag(flag);
        }
        if let Some(source) = more {
            build = build.source(source);
        }
        check_against_itself(&record(&ALLOC, &build.finish().path, &[]));
    };
    let jemalloc = ["-l:libjemalloc.a", "-lm", "-lstdc++"];
    check("allocs_jemalloc", &jemalloc, None);
    check("allocs_mimalloc", &["-lmimalloc"], None);
    check("allocs_static", &["-static"], None);
    check("allocs_own", &[], Some("own_malloc.c"));
}

#[test]
fn a_musl_program_allocates_what_it_says_and_where_its_library_is_left_alone_a_note_says_so() {
    let musl = |name: &str, flags: &[&str]| {
        let build = Build::new(name).compiler("musl-gcc").source("allocs.c");
        let flags = [&["-O2", "-fno-builtin"], flags].concat();
        let program = build.flags(&flags).finish();
        record(&ALLOC, &program.path, &[])
    };
    check_against_itself(&musl("allocs_musl_static", &["-static"]));
    let profile = json(&musl("allocs_musl", &[]));
    let notes = profile["notes"].to_string();
    assert!(
        notes.contains("cannot be followed") && notes.contains(" malloc, "),
        "{notes}"
    );
}

#[test]
fn the_same_without_a_clock_and_with_call_sites() {
    let program = c_program();
    let options = [&ALLOC[..], &["--no-clock", "--call-sites"]].concat();
    check_against_itself(&record(&options, &program.path, &[]));
}

#[test]
fn allocators_are_followed_whatever_is_filtered() {
    let program = c_program();
    let options = [&ALLOC[..], &["--lib", "^allocs"]].concat();
    check_against_itself(&record(&options, &program.path, &[]));
}

#[test]
fn every_form_of_new_and_delete_counts_once_and_one_that_throws_not_at_all() {
    let build = Build::new("allocs_cpp").compiler("g++");
    let program = build
        .source("allocs_cpp.cpp")
        .flags(&["-O2", "-fno-builtin"])
        .finish();
    check_against_itself(&record(&ALLOC, &program.path, &[]));
}

/// The same program gets its memory from others' libraries: the figures are its own.
#[test]
fn other_allocators_are_followed_as_the_c_librarys_is() {
    let program = c_program();
    let program = program.path.to_str().expect("a plain path");
    for library in [
        "libjemalloc.so.2",
        "libtcmalloc_minimal.so.4",
        "libmimalloc.so.2.0",
    ] {
        let preload = format!("LD_PRELOAD={library}");
        check_against_itself(&record(&ALLOC, Path::new("env"), &[&preload, program]));
    }
}

#[test]
fn allocations_are_counted_while_calls_are_recorded() {
    let program = c_program();
    let options = [&ALLOC[..], &["--rule", "^(plain|resize)$"]].concat();
    check_against_itself(&record(&options, &program.path, &[]));
}

/// A library that counts what a program allocates, and says so when it ends.
fn shim(scratch: &Scratch) -> PathBuf {
    let library = scratch.join("shim.so");
    let made = Command::new("gcc")
        .args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(targets().join("alloc_shim.c"))
        .args(["-ldl", "-pthread"])
        .status();
    assert!(made.expect("gcc starts").success());
    library
}

/// Blocks, bytes, frees of a run of a program without thalweg.
fn truth(program: &str, arguments: &[&str], library: &Path, scratch: &Scratch) -> [u64; 3] {
    let report = scratch.join("truth");
    let run = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library)
        .env("ALLOC_SHIM", &report)
        .output();
    assert!(run.expect("it starts").status.success());
    let text = std::fs::read_to_string(&report).expect("the shim wrote");
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map(|word| word.parse().expect("a number"))
        .collect();
    numbers.try_into().expect("three numbers")
}

/// Real programs do the same in every run, but for what thalweg cannot see: what the loader allocates before anything is
/// patched, by its own means.
#[test]
fn a_real_interpreter_allocates_what_a_counting_library_says() {
    let scratch = Scratch::new();
    let library = shim(&scratch);
    let script = targets().join("real/work.lua");
    let script = script.to_str().expect("a plain path");
    let [allocs, bytes, frees] = truth("lua5.4", &[script], &library, &scratch);
    let recorded = record(&ALLOC, Path::new("/usr/bin/lua5.4"), &[script]);
    let profile = json(&recorded);
    let near = |found: u64, truth: u64| {
        // Addresses, which differ from run to run, are in what it prints and hashes.
        assert!(
            found.abs_diff(truth) as f64 <= truth as f64 * 0.002 + 64.0,
            "{found} instead of {truth}"
        );
    };
    near(total(&profile, "alloc.calls"), allocs);
    near(total(&profile, "alloc.bytes"), bytes);
    near(total(&profile, "free.calls"), frees);
    assert_eq!(
        total(&profile, "alloc.bytes") - total(&profile, "free.bytes"),
        total(&profile, "live.bytes")
    );
}

#[test]
fn reports_sort_by_what_is_allocated_and_say_when_nothing_is_known_of_it() {
    let program = c_program();
    let recorded = record(&ALLOC, &program.path, &[]);
    let flat = succeed(&[
        "report",
        "-i",
        &recorded.file,
        "--flat",
        "--sort",
        "alloc",
        "-n",
        "1",
    ]);
    let row = flat.lines().nth(1).expect("a row");
    assert!(row.contains("zeroed") && row.contains("38.3 MiB"), "{flat}");
    let plain = record(&[], &program.path, &[]);
    let said = refuse(&["report", "-i", &plain.file, "--flat", "--sort", "alloc"]);
    assert!(said.contains("--metric alloc"), "{said}");
}

#[test]
fn any_metric_takes_the_place_of_time_in_tables_pictures_exports_and_comparisons() {
    let program = c_program();
    let recorded = record(&ALLOC, &program.path, &[]);
    let file = recorded.file.as_str();
    let profile = json(&recorded);
    let flat = succeed(&[
        "report",
        "-i",
        file,
        "--flat",
        "--by",
        "alloc.bytes",
        "--json",
    ]);
    let flat: Value = serde_json::from_str(&flat).expect("JSON");
    let truth = by_function(&profile, "alloc.bytes");
    for row in flat["functions"].as_array().expect("functions") {
        let name = row["name"].as_str().expect("a name");
        if let Some(bytes) = truth.get(name).filter(|_| row["module"] == "allocs") {
            assert_eq!(row["self"].as_u64(), Some(*bytes), "{name}");
        }
    }
    // All of it is below the threads' first function and main.
    let tree = succeed(&[
        "report",
        "-i",
        file,
        "--tree",
        "--by",
        "live.objects",
        "--min-percent",
        "0",
    ]);
    assert!(
        tree.contains("tail_alloc") && tree.contains(" 60 "),
        "{tree}"
    );
    let folded = succeed(&[
        "export",
        "-i",
        file,
        "--format",
        "folded",
        "--all",
        "--by",
        "live.bytes",
    ]);
    let lines = folded.lines().map(|line| line.rsplit(' ').next());
    let live: u64 = lines
        .map(|n| n.expect("a number").parse::<u64>().expect("a number"))
        .sum();
    assert_eq!(live, total(&profile, "live.bytes"));
    let picture = succeed(&[
        "graph",
        "-i",
        file,
        "--by",
        "alloc.bytes",
        "--format",
        "svg",
    ]);
    assert!(
        picture.contains("zeroed") && picture.contains("bytes"),
        "{picture}"
    );
    let plain = record(&ALLOC, Path::new("/bin/true"), &[]);
    let changed = succeed(&["diff", &plain.file, file, "--by", "alloc.bytes", "-n", "1"]);
    assert!(
        changed.contains("zeroed") && changed.contains("+38.3 MiB"),
        "{changed}"
    );
    let said = refuse(&["report", "-i", file, "--flat", "--by", "nonsense"]);
    assert!(said.contains("alloc.bytes"), "{said}");
}
