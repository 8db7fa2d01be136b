//! The two references against each other, with no thalweg in between: a comparison that cannot tell right from
//! wrong here could not there.

use crate::support::build::{Build, kinds_of_executables};
use crate::support::callgrind::{SIGNAL_HANDLERS, callgrind};
use crate::support::counts::{Pairs, assert_same, differences};
use crate::support::instrumented::instrumented;
use crate::support::long;
use crate::support::many::many_functions;
use std::collections::BTreeSet;

fn check(build: &Build) {
    let program = build.finish();
    let reference = callgrind(&program, &[]);
    let contexts = instrumented(&build.instrumented().finish(), &[]);
    assert_eq!(reference.stdout, contexts.stdout);
    let keep: BTreeSet<String> = program
        .compiled
        .iter()
        .filter(|name| !SIGNAL_HANDLERS.contains(&name.as_str()))
        .cloned()
        .collect();
    let mut calls = reference.calls;
    calls.retain(|name, _| keep.contains(name));
    assert_same(
        "calls",
        ("callgrind", &calls),
        ("instrumented", &contexts.forest.calls(&keep)),
    );
    let mut pairs = reference.pairs;
    pairs.retain(|(a, b), _| keep.contains(a) && keep.contains(b));
    assert_same(
        "pairs",
        ("callgrind", &pairs),
        ("instrumented", &contexts.forest.direct_pairs(&keep)),
    );
}

fn target(name: &str, sources: &[&str]) -> Build {
    let mut build = Build::new(name);
    for source in sources {
        build = build.source(source);
    }
    build
}

fn both_levels_and_compilers(build: Build) {
    for compiler in ["gcc", "clang"] {
        for level in ["-O0", "-O2"] {
            println!("{compiler} {level}");
            check(&build.clone().compiler(compiler).flag(level));
        }
    }
}

#[test]
fn references_agree_on_recursion() {
    both_levels_and_compilers(target("recursion", &["recursion.c"]));
}

#[test]
fn references_agree_on_tail_calls() {
    both_levels_and_compilers(target("tail", &["tail.c", "tail_lib.c"]));
}

#[test]
fn references_agree_on_tail_calls_into_a_library() {
    let library = Build::new("tail").source("tail_lib.c").flag("-O2");
    both_levels_and_compilers(target("tail", &["tail.c"]).shared(library));
}

#[test]
fn references_agree_on_switches() {
    both_levels_and_compilers(target("interp", &["interp.c"]));
}

#[test]
fn references_agree_on_calling_conventions() {
    both_levels_and_compilers(target("abi", &["abi.c"]));
    both_levels_and_compilers(target("avx", &["avx.c"]));
}

#[test]
fn references_agree_on_threads() {
    both_levels_and_compilers(target("threads", &["threads.c"]));
}

#[test]
fn references_agree_on_longjmp() {
    both_levels_and_compilers(target("jumps", &["jumps.c"]));
}

#[test]
fn references_agree_on_callbacks_from_libc() {
    for compiler in ["gcc", "clang"] {
        let build = Build::new("callbacks")
            .source("callbacks.c")
            .compiler(compiler)
            .flag("-O2");
        let program = build.finish();
        let reference = callgrind(&program, &[]);
        let contexts = instrumented(&build.instrumented().finish(), &[]);
        let keep = &program.compiled;
        let mut calls = contexts.forest.calls(keep);
        calls.retain(|name, _| !SIGNAL_HANDLERS.contains(&name.as_str()));
        assert_same(
            "calls",
            ("callgrind", &reference.calls),
            ("instrumented", &calls),
        );
        // libc stands between main and its callbacks (less where bsearch is inlined): callgrind sees it, the
        // instrumentation does not.
        let below = |mut pairs: Pairs| {
            pairs.retain(|(caller, _), _| caller != "main");
            pairs
        };
        let pairs = (
            below(reference.pairs),
            below(contexts.forest.direct_pairs(keep)),
        );
        assert_same("pairs", ("callgrind", &pairs.0), ("instrumented", &pairs.1));
    }
}

#[test]
fn callgrind_agrees_with_what_the_assembler_targets_do() {
    for compiler in ["gcc", "clang"] {
        let loops = Build::new("loops")
            .source("loops.c")
            .source("loops_asm.S")
            .compiler(compiler)
            .flag("-O2")
            .finish();
        let calls = callgrind(&loops, &[]).calls;
        for name in [
            "asm_loop",
            "asm_loop_far",
            "asm_red_zone_loop",
            "asm_loop_with_call",
            "asm_loop_prefix",
        ] {
            assert_eq!(calls[name], 100, "{name}");
        }
        assert_eq!(calls["loop_helper"], 5050);
        let tiny = Build::new("tiny")
            .source("tiny.c")
            .source("tiny_asm.S")
            .compiler(compiler)
            .flag("-O2")
            .finish();
        let reference = callgrind(&tiny, &[]);
        for name in [
            "padded1", "padded2", "padded3", "padded5", "packed1", "packed2", "packed6", "jump2",
            "jump5",
        ] {
            assert_eq!(
                reference.pairs[&("main".to_owned(), name.to_owned())],
                300,
                "{name}"
            );
        }
        assert_eq!(
            reference.pairs[&("jump2".to_owned(), "padded6".to_owned())],
            300
        );
        assert_eq!(reference.calls["padded6"], 600);
        let regs = Build::new("regs")
            .source("regs.c")
            .source("regs_asm.S")
            .compiler(compiler)
            .flag("-O2")
            .finish();
        let reference = callgrind(&regs, &[]);
        assert_eq!(reference.calls["touch_rax"], 400);
        assert_eq!(
            reference.pairs[&("red_zone_over_tail".to_owned(), "c_target".to_owned())],
            100
        );
    }
}

#[test]
fn instrumentation_keeps_contexts_straight_over_exceptions() {
    let build = Build::new("exceptions")
        .source("exceptions.cpp")
        .compiler("g++")
        .flag("-O2");
    let contexts = instrumented(&build.instrumented().finish(), &[]);
    let program = build.finish();
    let paths = contexts.forest.paths(&program.compiled);
    let calls = contexts.forest.calls(&program.compiled);
    assert_eq!(calls["_Z7throweri"], 60);
    assert_eq!(calls["_ZN5GuardD1Ev"], 180);
    let caught: Vec<String> = ["main", "_Z7catcheri", "_Z11after_catchi"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(paths[&caught], 45, "{paths:#?}");
}

/// Fragments, return thunks and libc's own functions in one file with the target's do not disturb the comparison.
#[test]
fn references_agree_on_every_kind_of_executable() {
    for compiler in ["gcc", "clang"] {
        for (kind, build) in kinds_of_executables(compiler, "-O2") {
            // What differs between the others is nothing that a reference could see.
            if !long() && !["static-pie", "return-thunk"].contains(&kind) {
                continue;
            }
            println!("{compiler} {kind}");
            let program = build.finish();
            let reference = callgrind(&program, &[]);
            let contexts = instrumented(&build.instrumented().finish(), &[]);
            let mut keep = program.compiled;
            keep.retain(|name| !SIGNAL_HANDLERS.contains(&name.as_str()));
            let mut calls = reference.calls;
            calls.retain(|name, _| keep.contains(name));
            assert_same(
                "calls",
                ("callgrind", &calls),
                ("instrumented", &contexts.forest.calls(&keep)),
            );
        }
    }
}

#[test]
fn a_wrong_count_is_found_and_named() {
    let right = [("a", 3), ("b", 5)]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
    let wrong = [("a", 3), ("b", 6), ("c", 1)]
        .map(|(name, count)| (name.to_owned(), count))
        .into();
    assert_eq!(differences(("ours", &right), ("theirs", &right)), "");
    let text = differences(("ours", &wrong), ("theirs", &right));
    assert!(
        text.contains("2 of 2 differ") && text.contains("\"b\"") && text.contains("\"c\""),
        "{text}"
    );
}

#[test]
fn a_program_of_ten_thousand_functions_can_be_made() {
    let program = many_functions(10_000);
    assert!(program.functions().len() > 10_000);
}
