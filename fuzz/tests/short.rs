//! The short run of every driver: the same inputs each time.

use thalweg_fuzz::{TARGETS, corpus, has_go_table, is_understood, named};

const SEED: u64 = 16;

fn run(name: &str) {
    let target = named(name).expect("a target");
    corpus::bound_memory().expect("a bound");
    let inputs = corpus::files(&corpus::folder(target)).expect("a corpus");
    let count = corpus::run(target, &inputs, SEED, |count| count < target.inputs);
    count.expect("nothing is found");
}

macro_rules! short {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })*

        #[test]
        fn all_targets_are_run() {
            let run = [$(stringify!($name)),*];
            let all: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(all, run);
        }
    };
}

short! {
    profile pprof callgrind folded perf chrome rules bytecode values elf dwarf unwind pclntab ledger region
}

/// Mutations of what is refused at once would find nothing.
#[test]
fn seeds_are_understood() {
    let seeds = |name: &str| {
        let target = named(name).expect("a target");
        corpus::files(&corpus::folder(target)).expect("a corpus")
    };
    assert!(seeds("region").iter().all(|seed| is_understood(seed)));
    assert!(seeds("pclntab").iter().all(|seed| has_go_table(seed)));
}
