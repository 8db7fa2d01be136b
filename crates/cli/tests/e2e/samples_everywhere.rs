//! Samples find code wherever it is: in libraries that were loaded meanwhile, in the kernel, in handlers of signals, in parts that stand apart, on
//! threads that were there before, and on goroutines.

use crate::goroutines;
use crate::samples::{
    all_stacks, assert_due, is_likely, once, record, record_program, sampled, samples_of, sampling,
    spell, stacks, threads,
};
use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::succeed;
use std::path::Path;
use thalweg_model::{Profile, SampleNode, read_file};

fn function<'a>(profile: &'a Profile, node: &SampleNode) -> &'a str {
    &profile.functions[node.function].name
}

#[test]
fn time_in_the_kernel_is_its_callers() {
    let (said, profile) = record(&["--samples", "1999"], &["kernel", "400"]);
    let forbidden = |note: &String| note.contains("while threads were in the kernel");
    if profile.notes.iter().any(forbidden) {
        return;
    }
    let seen = samples_of(&profile, "in_the_kernel");
    assert_due(seen, &spell(&said, "in_the_kernel"), &sampling(&profile));
}

#[test]
fn a_handlers_stack_goes_on_in_whom_the_signal_interrupted() {
    let (said, profile) = record(&["--samples", "1999"], &["signals", "60"]);
    let mut handled = 0;
    for (stack, samples) in all_stacks(&profile) {
        if stack.contains(&"handler") {
            let interrupted = stack.iter().position(|name| *name == "interrupted");
            let handler = stack.iter().position(|name| *name == "handler");
            assert!(interrupted < handler, "{samples} samples: {stack:?}");
            assert!(interrupted.is_some(), "{samples} samples: {stack:?}");
            handled += samples;
        }
    }
    let all = sampling(&profile);
    assert_due(handled, &spell(&said, "handler"), &all);
    assert!(all.cut_short * 100 < all.samples, "{all:?}");
}

#[test]
fn the_cold_part_of_a_function_is_the_function() {
    let program = sampled();
    assert!(
        program.functions().contains("in_two_parts"),
        "the compiler has kept it"
    );
    let (_, profile) = record(&["--samples", "1999"], &["cold", "1200000000"]);
    let all: u64 = all_stacks(&profile).values().sum();
    let seen = samples_of(&profile, "in_two_parts");
    assert!(all > 100 && seen * 10 > all * 9, "{seen} of {all}");
    let apart = all_stacks(&profile)
        .keys()
        .flatten()
        .any(|name| name.contains(".cold"));
    assert!(!apart, "{:?}", all_stacks(&profile));
    let node = threads(&profile)
        .flat_map(|thread| &thread.samples)
        .max_by_key(|node| node.own)
        .expect("samples");
    assert!(node.counted && function(&profile, node) == "in_two_parts");
}

#[test]
fn a_library_that_is_loaded_meanwhile_is_seen_and_counted() {
    let plug = Build::new("sampling_plug")
        .source("sampling_plug.c")
        .flags(&["-O2", "-fPIC", "-shared"])
        .finish();
    let library = plug.path.to_str().expect("UTF-8");
    for (options, counted) in [
        (&["--samples", "1999"][..], true),
        (&["--samples", "1999", "-N", "plug"][..], false),
        (&["--samples", "1999", "--no-lib", "plug"][..], false),
    ] {
        let (said, profile) = record(options, &["loads", "300", library]);
        let seen = samples_of(&profile, "sampling_plug");
        assert_due(seen, &spell(&said, "sampling_plug"), &sampling(&profile));
        for (stack, samples) in all_stacks(&profile) {
            let Some(at) = stack.iter().position(|name| *name == "sampling_plug") else {
                continue;
            };
            let below = &stack[at + 1..];
            assert!(
                stack[..at].contains(&"main"),
                "{samples} samples: {stack:?}"
            );
            assert!(
                below.is_empty() || below == ["plug_deeper"],
                "{samples} samples: {stack:?}"
            );
        }
        let mut nodes = threads(&profile).flat_map(|thread| &thread.samples);
        let all_are =
            nodes.all(|node| node.counted == counted || !function(&profile, node).contains("plug"));
        assert!(all_are, "counted: {counted}");
    }
}

/// The C library's unwind information ends where `clone` enters the kernel. How many samples a run has is the machine's business: a
/// thread lives for less than a period. One of some dozen is in `clone`, and without unwind information none ever would be.
#[test]
fn whoever_makes_a_thread_is_seen() {
    let (mut samples, mut cut_short) = (0, 0);
    let seen = once(|| {
        let (_, profile) = record(&["--samples", "9999"], &["makes", "8000"]);
        let all = sampling(&profile);
        samples += all.samples;
        cut_short += all.cut_short;
        let made = all_stacks(&profile).into_keys();
        let mut made = made.filter(|stack| stack.last().is_some_and(|name| name.contains("clone")));
        made.any(|stack| stack.contains(&"main"))
    });
    assert!(seen, "nobody in clone among {samples} samples");
    assert!(cut_short * 8 <= samples, "{cut_short} of {samples}");
}

#[test]
fn threads_that_were_there_before_are_seen_and_those_that_were_not_chosen_are_not() {
    let live = Live::ready(&sampled().path, &["several", "3"]);
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let output = file.to_str().expect("UTF-8");
    let id = live.id();
    let record = [
        "record",
        "-q",
        "-d",
        "600ms",
        "--samples",
        "1999",
        "--budget",
        "off",
        "-p",
        &id,
        "-o",
        output,
    ];
    let lasting = |profile: &Profile| -> Vec<u32> {
        let all = threads(profile).filter(|thread| {
            let stacks = stacks(profile, thread);
            stacks.keys().any(|stack| stack.contains(&"lasting"))
        });
        let mut all: Vec<u32> = all.map(|thread| thread.tid).collect();
        all.sort_unstable();
        all
    };
    succeed(&record);
    let profile = read_file(&file).expect("a profile");
    let others: Vec<u32> = live
        .threads()
        .into_iter()
        .filter(|tid| *tid != live.pid())
        .collect();
    assert_eq!(lasting(&profile), others);
    let first = threads(&profile).find(|thread| thread.tid == live.pid());
    let first = stacks(&profile, first.expect("the first thread"));
    assert!(
        first.keys().all(|stack| stack.contains(&"bottom")),
        "{first:?}"
    );
    let chosen = others[1].to_string();
    succeed(&[&record[..], &["-t", &chosen]].concat());
    let profile = read_file(&file).expect("a profile");
    assert_eq!(lasting(&profile), [others[1]]);
    assert_eq!(samples_of(&profile, "bottom"), 0);
}

/// Goroutines: who called what is told by Go's own tables, whether it is counted or not.
#[test]
fn samples_at_goroutines_have_the_right_callers() {
    let program = goroutines::program(Path::new("go"), "gosamples.go", "gosamples", &[]);
    let check = |options: &[&str]| -> (Profile, u64) {
        let (_, profile) = record_program(&program, options, &[]);
        let all = sampling(&profile);
        assert!(all.cut_short * 20 < all.samples, "{all:?}");
        let (mut deep, mut shallow) = (0, 0);
        for (stack, samples) in all_stacks(&profile) {
            let Some(work) = stack.iter().position(|name| *name == "main.work") else {
                continue;
            };
            // What starts goroutines, and what the compiler puts before the function that one is of.
            let runs = |name: &&&str| **name == "runtime.goexit" || name.starts_with("main.main.");
            let started = stack[..work].iter().take_while(runs).count();
            assert!(
                started > 0 && stack[started - 1].starts_with("main.main."),
                "{stack:?}"
            );
            match &stack[started..work] {
                ["main.shallow"] => shallow += samples,
                steps => {
                    assert_eq!(steps, ["main.deeper"; 31], "{samples} samples");
                    deep += samples;
                }
            }
            let leaf = stack.iter().position(|name| *name == "main.leaf");
            assert!(leaf.is_none_or(|at| at == work + 1), "{stack:?}");
        }
        // By the length of the loops.
        assert!(
            is_likely(deep, deep + shallow, 0.75),
            "{deep} samples at deep stacks, {shallow} at others"
        );
        (profile, deep + shallow)
    };
    // Everything counted, which no samples are lost for but those at probes; then without the function that all the time is in.
    check(&["--samples", "1999"]);
    let (mut profile, all) = check(&["--samples", "1999", "-N", "^main.leaf$"]);
    let counted = |node: &SampleNode| node.counted && function(&profile, node) == "main.leaf";
    let is_counted = threads(&profile).any(|thread| thread.samples.iter().any(counted));
    assert!(!is_counted);
    let seen = samples_of(&profile, "main.leaf") as f64 / all as f64;
    assert!(seen > 0.5, "{seen} of {all}");
    assert!(thalweg_analysis::attribute_samples(&mut profile));
    let rows = thalweg_analysis::flat(&profile);
    let of = |name: &str| {
        let named = |f: u32| profile.functions[f as usize].name == name;
        let row = rows.iter().find(|row| named(row.function.0));
        row.map_or(0, |row| row.total_ns) as f64
    };
    let shown = of("main.leaf") / of("main.work");
    assert!(
        (shown - seen).abs() < 0.1,
        "seen by {seen} of the samples, shown with {shown} of its caller's time"
    );
}
