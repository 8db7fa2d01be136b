//! Short functions that call nothing are counted at their entry alone, and in the contexts in which they are; longer ones as all others.

use crate::support::build::{Build, run};
use crate::support::counts::{Paths, assert_same};
use crate::support::thalweg::record;
use std::process::Command;

/// All that is called in the main thread, path and calls; then what the others add.
const MAIN: &[(&str, u64)] = &[
    ("main", 1),
    ("main>leaf", 100),
    ("main>branching", 100),
    ("main>jumps", 100),
    ("main>jumps>leaf", 100),
    ("main>jumps_twice", 100),
    ("main>jumps_twice>jumps", 100),
    ("main>jumps_twice>jumps>leaf", 100),
    ("main>jumps_by_pointer", 100),
    ("main>jumps_by_pointer>leaf", 100),
    ("main>calls_jumps", 100),
    ("main>calls_jumps>jumps_twice", 100),
    ("main>calls_jumps>jumps_twice>jumps", 100),
    ("main>calls_jumps>jumps_twice>jumps>leaf", 100),
    ("main>calls_jumps>leaf", 100),
    ("main>jumped_out", 100),
    ("main>jumped_out>leaf", 100),
    ("main>looping", 100),
    ("main>chooses", 100),
    ("main>jumps_to_loop", 100),
    ("main>jumps_to_loop>looping", 100),
    ("main>interrupted", 300),
    ("main>interrupted>on_signal", 200),
    ("main>interrupted>on_signal>leaf", 200),
    ("main>interrupted>quiet", 100),
];
const OTHERS: &[(&str, u64)] = &[
    ("first", 10),
    ("worker", 10),
    ("worker>leaf", 10),
    ("child", 5),
    ("child>leaf", 50),
];

const NAMES: &[&str] = &[
    "main",
    "leaf",
    "branching",
    "jumps",
    "jumps_twice",
    "jumps_by_pointer",
    "calls_jumps",
    "jumped_out",
    "looping",
    "chooses",
    "jumps_to_loop",
    "interrupted",
    "on_signal",
    "quiet",
    "first",
    "worker",
    "child",
];

fn paths(of: &[(&str, u64)]) -> Paths {
    of.iter()
        .map(|(path, calls)| (path.split('>').map(str::to_owned).collect(), *calls))
        .collect()
}

/// With all functions patched, and with the target's own alone: then a leaf is the first event of some threads and processes.
#[test]
fn leaves_are_counted_in_their_contexts_however_they_are_reached() {
    let own = format!("^({}|deep)$", NAMES.join("|"));
    for level in ["-O1", "-O2"] {
        // At -O1 gcc makes no tail jumps: the contexts are the same.
        let program = Build::new("leaves")
            .source("leaves.c")
            .flag(level)
            .flag("-pthread");
        let program = program.finish();
        let alone = run(&mut Command::new(&program.path));
        for way in [
            &["--no-clock"][..],
            &[],
            &["--time", "all"],
            &["--call-sites"],
        ] {
            for chosen in [&[][..], &["-F", &own]] {
                let options = [&["--no-report", "-q", "--follow"][..], way, chosen].concat();
                let recorded = record(&options, &program, &[]);
                let what = format!("{level} {}", options.join(" "));
                assert_eq!(String::from_utf8_lossy(&recorded.stdout), alone, "{what}");
                let profile = &recorded.profile;
                let mut found = Paths::new();
                for thread in &profile.threads {
                    for node in thread.nodes.iter().filter(|node| node.calls > 0) {
                        let path = profile.path(thread, node);
                        let known = |name: &&String| NAMES.contains(&name.as_str());
                        if path.last().as_ref().is_some_and(known) {
                            // What stood on the stack at a fork is no call of the child's.
                            let forked = path.iter().position(|name| name == "child");
                            let kept = path.iter().skip(forked.unwrap_or(0)).filter(known);
                            *found.entry(kept.cloned().collect()).or_default() += node.calls;
                        }
                    }
                }
                let expected = [MAIN, OTHERS].concat();
                assert_same(
                    &what,
                    ("thalweg", &found),
                    ("the program", &paths(&expected)),
                );
                let unwound = |name| {
                    profile
                        .nodes_named(name)
                        .map(|(_, node)| node.unwound)
                        .sum()
                };
                let unwound: Vec<u64> = ["deep", "jumps", "jumps_twice"].map(unwound).into();
                assert_eq!(unwound, [800, 0, 0], "{what}");
            }
        }
    }
}
