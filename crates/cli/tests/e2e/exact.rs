//! Calls per function, per pair and per context equal those of both references, to the unit, whatever compiler,
//! level and kind of executable; and the program prints what it prints without us.

use crate::support::PARTS;
use crate::support::build::{Build, Program, kinds_of_executables, rust_program};
use crate::support::callgrind::{Callgrind, SIGNAL_HANDLERS, callgrind};
use crate::support::counts::{Forest, assert_same, differences};
use crate::support::instrumented::instrumented;
use crate::support::thalweg::{Recorded, record};
use std::collections::BTreeSet;

/// Leaves are counted at their entry alone in the first two, with and without frames that are timed around them. In the last one every function
/// goes from mode to mode all the time.
const WAYS: [&[&str]; 4] = [&[], &["--no-clock"], &["--time", "all"], &["--restless"]];

fn recorded(program: &Program, arguments: &[&str]) -> Recorded {
    recorded_by(&[], program, arguments)
}

fn recorded_by(way: &[&str], program: &Program, arguments: &[&str]) -> Recorded {
    let recorded = record(&[&["--no-report", "-q"], way].concat(), program, arguments);
    assert_eq!(
        String::from_utf8_lossy(&recorded.stdout),
        program.run(arguments),
        "the target's output changes under thalweg"
    );
    recorded
}

/// Differences to callgrind on the same binary and functions that should not have been skipped; empty when all is well.
fn compare_with_callgrind(program: &Program, arguments: &[&str]) -> String {
    let reference = callgrind(program, arguments);
    let compare = |way: &&[&str]| compare_way(way, program, arguments, reference.clone());
    WAYS.iter().map(compare).collect()
}

fn compare_way(
    way: &[&str],
    program: &Program,
    arguments: &[&str],
    mut reference: Callgrind,
) -> String {
    let recorded = recorded_by(way, program, arguments);
    let (left_out, mut complaints) = recorded.profile.left_out(program);
    let mut keep = program.functions();
    keep.retain(|name| !SIGNAL_HANDLERS.contains(&name.as_str()) && !left_out.contains(name));
    // What a skipped function calls seems to be called by that function's caller.
    let disturbed: BTreeSet<String> = reference
        .pairs
        .keys()
        .filter(|(caller, _)| left_out.contains(caller))
        .map(|(_, callee)| callee.clone())
        .collect();
    let comparable =
        |(a, b): &(String, String)| keep.contains(a) && keep.contains(b) && !disturbed.contains(b);
    reference.calls.retain(|name, _| keep.contains(name));
    reference.pairs.retain(|pair, _| comparable(pair));
    assert!(
        !reference.calls.is_empty() && !reference.pairs.is_empty(),
        "callgrind saw nothing"
    );
    let forest = recorded.profile.forest(program);
    let mut pairs = forest.direct_pairs(&keep);
    pairs.retain(|pair, _| comparable(pair));
    complaints += &differences(
        ("thalweg", &forest.calls(&keep)),
        ("callgrind", &reference.calls),
    );
    complaints + &differences(("thalweg", &pairs), ("callgrind", &reference.pairs))
}

#[track_caller]
fn exact_by_callgrind(program: &Program, arguments: &[&str]) {
    let differences = compare_with_callgrind(program, arguments);
    assert!(
        differences.is_empty(),
        "{}: {differences}",
        program.path.display()
    );
}

/// Every context of the target's own C functions equals that of the instrumented build.
#[track_caller]
fn exact_by_instrumentation(build: &Build, arguments: &[&str]) {
    let program = build.finish();
    let reference = instrumented(&build.instrumented().finish(), arguments);
    for way in WAYS {
        same_as_instrumented(
            &recorded_by(way, &program, arguments),
            &program,
            &reference.forest,
        );
    }
}

fn same_as_instrumented(recorded: &Recorded, program: &Program, reference: &Forest) {
    let ours = recorded.profile.forest(program);
    let (left_out, complaints) = recorded.profile.left_out(program);
    assert!(complaints.is_empty(), "{complaints}");
    let keep = &program.compiled - &left_out;
    let keep = &keep;
    assert_same(
        "calls",
        ("thalweg", &ours.calls(keep)),
        ("instrumented", &reference.calls(keep)),
    );
    assert_same(
        "contexts",
        ("thalweg", &ours.paths(keep)),
        ("instrumented", &reference.paths(keep)),
    );
}

fn sources(name: &str, files: &[&str]) -> Build {
    files
        .iter()
        .fold(Build::new(name), |build, file| build.source(file))
}

#[track_caller]
fn contexts_at_both_levels(name: &str, files: &[&str]) {
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O2"] {
            println!("{name} {compiler} {level}");
            exact_by_instrumentation(&sources(name, files).compiler(compiler).flag(level), &[]);
        }
    }
}

#[test]
fn contexts_of_recursion() {
    contexts_at_both_levels("recursion", &["recursion.c"]);
}

#[test]
fn contexts_of_tail_calls() {
    contexts_at_both_levels("tail", &["tail.c", "tail_lib.c"]);
}

#[test]
fn contexts_of_switches() {
    contexts_at_both_levels("interp", &["interp.c"]);
}

#[test]
fn contexts_of_calling_conventions() {
    contexts_at_both_levels("abi", &["abi.c"]);
    contexts_at_both_levels("avx", &["avx.c"]);
}

#[test]
fn contexts_of_longjmp() {
    contexts_at_both_levels("jumps", &["jumps.c"]);
}

#[test]
fn contexts_of_callbacks_from_libc() {
    contexts_at_both_levels("callbacks", &["callbacks.c"]);
}

#[test]
fn contexts_of_threads() {
    contexts_at_both_levels("threads", &["threads.c"]);
    let build = sources("threads", &["threads.c"]).flag("-O2");
    exact_by_instrumentation(&build, &["8"]);
}

#[test]
fn contexts_of_assembler_callers() {
    contexts_at_both_levels("regs", &["regs.c", "regs_asm.S"]);
    contexts_at_both_levels("tiny", &["tiny.c", "tiny_asm.S"]);
}

/// clang's instrumentation does not run when an exception passes, so only gcc's is a reference here.
#[test]
fn contexts_of_exceptions() {
    for level in ["-O0", "-O2"] {
        let build = sources("exceptions", &["exceptions.cpp"])
            .compiler("g++")
            .flag(level);
        exact_by_instrumentation(&build, &[]);
    }
    let program = sources("exceptions", &["exceptions.cpp"])
        .compiler("clang++")
        .flag("-O2")
        .finish();
    let forest = recorded(&program, &[]).profile.forest(&program);
    let calls = forest.calls(&program.functions());
    assert_eq!(
        (
            calls["_Z7throweri"],
            calls["_Z7catcheri"],
            calls["_Z11after_catchi"]
        ),
        (60, 60, 60)
    );
}

#[test]
fn tail_calls_into_a_shared_library_and_back() {
    for compiler in ["gcc", "clang"] {
        for binding in ["-Wl,-z,lazy", "-Wl,-z,now", "-fno-plt"] {
            let library = Build::new("tail")
                .source("tail_lib.c")
                .flag("-O2")
                .compiler(compiler);
            let build = sources("tail", &["tail.c"])
                .compiler(compiler)
                .flags(&["-O2", binding])
                .shared(library);
            println!("{compiler} {binding}");
            exact_by_callgrind(&build.finish(), &[]);
            exact_by_instrumentation(&build, &[]);
        }
    }
}

#[test]
fn loops_that_jump_back_to_the_entry_are_one_call() {
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O1", "-O2", "-O3", "-Os"] {
            let program = sources("loops", &["loops.c", "loops_asm.S"])
                .compiler(compiler)
                .flag(level)
                .finish();
            println!("{compiler} {level}");
            exact_by_callgrind(&program, &[]);
            let calls = recorded(&program, &[])
                .profile
                .forest(&program)
                .calls(&program.functions());
            for name in [
                "asm_loop",
                "asm_loop_far",
                "asm_red_zone_loop",
                "asm_loop_with_call",
                "asm_loop_prefix",
            ] {
                assert_eq!(calls[name], 100, "{name} {compiler} {level}");
            }
        }
    }
}

#[test]
fn a_million_frames() {
    let program = Build::simple("deep.c");
    let forest = recorded(&program, &["1000000"]).profile.forest(&program);
    let keep = program.functions();
    let (calls, pairs) = (forest.calls(&keep), forest.direct_pairs(&keep));
    assert_eq!(calls["dive"], 1_000_001);
    assert_eq!(calls["down_a"], 250_001);
    assert_eq!(calls["down_b"], 250_000);
    assert_eq!(calls["surface"], 1);
    let pair = |a: &str, b: &str| pairs[&(a.to_owned(), b.to_owned())];
    assert_eq!(pair("diver", "dive"), 1);
    assert_eq!(pair("dive", "dive"), 1_000_000);
    assert_eq!(pair("down_a", "down_b"), 250_000);
    assert_eq!(
        pair("diver", "surface"),
        1,
        "the stack is level again after the dive"
    );
}

#[test]
fn wide_vector_registers_survive() {
    // Not compared with callgrind, which has no 512-bit registers: the program checks itself.
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O2"] {
            let program = sources("avx", &["avx.c"])
                .compiler(compiler)
                .flag(level)
                .finish();
            recorded(&program, &["512"]);
        }
    }
}

#[test]
fn unwinders_see_the_stack_as_it_was_made() {
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O2"] {
            let build = sources("unwinding", &["unwinding.c"])
                .compiler(compiler)
                .flags(&[level, "-rdynamic"]);
            exact_by_callgrind(&build.finish(), &[]);
        }
    }
}

#[test]
fn children_by_fork_vfork_and_spawn_do_their_work() {
    let program = Build::simple("forking.c");
    let profile = recorded(&program, &[]).profile;
    // fib(12), five times fib(11) and fib(13) are the parent's; fib(15) and a thread's fib(10) are each child's.
    let activations = |n: u64| (0..n).fold((1u64, 1u64), |(a, b), _| (b, a + b + 1)).0;
    // Those that became other programs have calls of their own there, and none of the target's functions here.
    let children: BTreeSet<u64> = profile
        .nodes_named("child")
        .map(|(thread, _)| thread.pid)
        .collect();
    let parent = profile
        .clone()
        .without_children()
        .forest(&program)
        .calls(&program.functions());
    assert_eq!(parent["main"], 1);
    assert_eq!(parent["status_of"], 7);
    assert_eq!(
        parent["fib"],
        activations(12) + 5 * activations(11) + activations(13)
    );
    assert_eq!(
        children.len(),
        5,
        "five forked children, each with accounts of its own"
    );
    for pid in children {
        let mut child = profile.clone();
        child.threads.retain(|thread| thread.pid == pid);
        let calls = child.forest(&program).calls(&program.functions());
        assert_eq!(calls["child"], 1);
        assert_eq!(
            calls["fib"],
            activations(15) + activations(10),
            "child {pid}"
        );
    }
}

#[test]
fn rust_programs() {
    for flags in [
        &["-Copt-level=0"][..],
        &["-Copt-level=3"],
        &[
            "-Copt-level=3",
            "-Cpanic=unwind",
            "-Crelocation-model=static",
        ],
    ] {
        let program = rust_program("rusty.rs", flags);
        let recorded = recorded(&program, &[]);
        let (left_out, complaints) = recorded.profile.left_out(&program);
        assert!(complaints.is_empty(), "{complaints}");
        let reference = callgrind(&program, &[]);
        let keep = &program.functions() - &left_out;
        let forest = recorded.profile.forest(&program);
        // Callees of what is left out are their caller's callers' here.
        let through = |callee: &String| {
            let mut callers = reference.pairs.keys().filter(|(_, b)| b == callee);
            callers.any(|(a, _)| left_out.contains(a))
        };
        // A landing pad looks like a call to callgrind, from outside of the program's own functions: pairs are exact.
        let mut pairs = reference.pairs.clone();
        pairs.retain(|(a, b), _| keep.contains(a) && keep.contains(b) && !through(b));
        let mut ours = forest.direct_pairs(&keep);
        ours.retain(|(_, b), _| !through(b));
        assert_same("pairs", ("thalweg", &ours), ("callgrind", &pairs));
        let names = recorded.profile.calls_by_name();
        assert_eq!(
            names.get("rusty::fails_on"),
            Some(&60),
            "Rust names are demangled"
        );
    }
}

#[test]
fn cpp_names_are_demangled() {
    let program = sources("exceptions", &["exceptions.cpp"])
        .compiler("g++")
        .flag("-O2")
        .finish();
    let names = recorded(&program, &[]).profile.calls_by_name();
    assert_eq!(
        names.get("thrower(int)"),
        Some(&60),
        "{:?}",
        names.keys().collect::<Vec<_>>()
    );
    assert_eq!(names.get("Left::run(int)"), Some(&60));
}

#[track_caller]
fn matrix(compiler: &str, level: &str) {
    let mut wrong = String::new();
    for (kind, build) in kinds_of_executables(compiler, level) {
        println!("{compiler} {level} {kind}");
        let differences = compare_with_callgrind(&build.finish(), &[]);
        if !differences.is_empty() {
            wrong += &format!("{compiler} {level} {kind}: {differences}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Not by callgrind, which takes the second return of musl's `sigsetjmp` for calls.
#[test]
fn programs_on_musl() {
    let build = Build::all_parts().compiler("musl-gcc").flag("-O2");
    exact_by_instrumentation(&build.link_flag("-static"), &[]);
    // Its loader is its C library, too, and is left alone: what that calls back has no caller there.
    for (part, files) in PARTS.iter().filter(|(part, _)| *part != "callbacks") {
        let build = sources(part, files).compiler("musl-gcc").flag("-O2");
        exact_by_instrumentation(&build, &[]);
    }
}

macro_rules! matrix {
    ($($name:ident: $compiler:literal $level:literal;)*) => {
        $(#[test]
        fn $name() {
            matrix($compiler, $level);
        })*
    };
}

matrix! {
    every_kind_of_executable_gcc_o0: "gcc" "-O0";
    every_kind_of_executable_gcc_o1: "gcc" "-O1";
    every_kind_of_executable_gcc_o2: "gcc" "-O2";
    every_kind_of_executable_gcc_o3: "gcc" "-O3";
    every_kind_of_executable_gcc_os: "gcc" "-Os";
    every_kind_of_executable_clang_o0: "clang" "-O0";
    every_kind_of_executable_clang_o1: "clang" "-O1";
    every_kind_of_executable_clang_o2: "clang" "-O2";
    every_kind_of_executable_clang_o3: "clang" "-O3";
    every_kind_of_executable_clang_os: "clang" "-Os";
}
