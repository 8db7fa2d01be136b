//! Each report of one small profile against a file: `golden/<name>.txt`.
//!
//! After a wanted change: `THALWEG_BLESS=1 cargo test -p thalweg golden`, then read the difference.

use std::io;
use std::path::Path;

use serde_json::Value;
use thalweg_instrument::filter::Filter;
use thalweg_model::{
    Creator, Function, Meta, Module, Node, NodeFlags, Process, Profile, Skipped, Thread,
};

use thalweg_views::flat::{Callers, Flat};
use thalweg_views::summary::Summary;
use thalweg_views::tree::Tree;
use thalweg_views::{SortKey, write_json};

use super::*;

mod samples;
mod views;

const PAPER: Style = Style {
    width: None,
    colour: false,
};

const MAIN: FuncId = FuncId(0);
const FIB: FuncId = FuncId(1);
const EVEN: FuncId = FuncId(2);
const ODD: FuncId = FuncId(3);
const WRITE: FuncId = FuncId(4);
const WORKER: FuncId = FuncId(5);
const INSERT: FuncId = FuncId(6);
const WAIT: FuncId = FuncId(7);

/// Direct and mutual recursion, two threads, one of them attached to in the middle, folded calls, a long C++ name.
fn sample() -> Profile {
    let function = |name: &str, module, address| Function {
        name: name.into(),
        module,
        address,
        ..Function::default()
    };
    let node = |parent, function, calls, self_ns, total_ns, recursion| Node {
        parent,
        function,
        calls,
        self_ns,
        total_ns,
        wall_ns: total_ns,
        min: self_ns / calls.max(1) / 2,
        max: self_ns / calls.max(1) * 2,
        recursion,
        terminal: 0,
        unwound: 0,
        untimed: 0,
        flags: NodeFlags::empty(),
        site: None,
    };
    let mut worker_root = node(None, WORKER, 0, 300_000, 30_800_000, 0);
    worker_root.flags = NodeFlags::ON_STACK_AT_ATTACH | NodeFlags::OPEN;
    let mut waiting = node(Some(0), WAIT, 3, 30_000_000, 30_000_000, 0);
    waiting.flags = NodeFlags::OPEN;
    let mut folded = node(None, INSERT, 1_234_567, 400_000, 400_000, 0);
    folded.flags = NodeFlags::FOLDED;
    Profile {
        meta: Meta {
            version: "0.1.0".into(),
            created_unix_ns: 0,
            duration_ns: 1_204_500_000,
            timed: true,
            attached: true,
            command: ["./demo", "--name", "two words"].map(String::from).to_vec(),
            clock_hz: 2.8e9,
            overhead_ns_per_call: 23.4,
            memory_bytes: 12 << 20,
            memory_limit: 256 << 20,
            ..Meta::default()
        },
        modules: vec![
            Module {
                name: "demo".into(),
                path: "/opt/demo".into(),
                build_id: "0badcafe".into(),
                functions_total: 9,
                functions_patched: 8,
            },
            Module {
                name: "libc.so.6".into(),
                path: "/lib/libc.so.6".into(),
                build_id: String::new(),
                functions_total: 3000,
                functions_patched: 2990,
            },
        ],
        functions: vec![
            function("main", 0, 0x1139),
            function("fib", 0, 0x1200),
            function("is_even", 0, 0x1300),
            function("is_odd", 0, 0x1340),
            function("write", 1, 0xf1000),
            function("worker", 0, 0x1400),
            function(
                "std::_Rb_tree<std::string, std::pair<std::string const, int>, std::less<std::string> >::_M_insert_unique",
                0,
                0x1500,
            ),
            function("__futex_abstimed_wait_cancelable64", 1, 0x88000),
            function("never_called", 0, 0x1600),
        ],
        processes: vec![Process {
            pid: 41,
            parent: Some(1),
            command: ["./demo", "--name", "two words"].map(String::from).to_vec(),
            threads: vec![
                Thread {
                    tid: 41,
                    name: "demo".into(),
                    created_by: None,
                    start_ns: 0,
                    end_ns: 1_204_500_000,
                    nodes: vec![
                        node(None, MAIN, 1, 1_000_000, 61_000_000, 0),
                        node(Some(0), FIB, 10, 5_000_000, 45_000_000, 0),
                        node(Some(1), FIB, 20, 10_000_000, 40_000_000, 1),
                        node(Some(2), FIB, 34, 30_000_000, 30_000_000, 2),
                        node(Some(0), EVEN, 5, 2_000_000, 10_000_000, 0),
                        node(Some(4), ODD, 5, 3_000_000, 8_000_000, 0),
                        node(Some(5), EVEN, 4, 5_000_000, 5_000_000, 1),
                        node(Some(0), WRITE, 1_000, 5_000_000, 5_000_000, 0),
                    ],
                    folded_calls: 0,
                    ..Thread::default()
                },
                Thread {
                    tid: 57,
                    name: "pool-1".into(),
                    created_by: Some(Creator {
                        pid: 41,
                        tid: 41,
                        function: Some(MAIN),
                    }),
                    start_ns: 500,
                    end_ns: 1_204_500_000,
                    nodes: vec![
                        worker_root,
                        waiting,
                        node(Some(0), INSERT, 7, 500_000, 500_000, 0),
                        folded,
                    ],
                    folded_calls: 1_234_567,
                    ..Thread::default()
                },
            ],
            ..Process::default()
        }],
        skipped: vec![Skipped {
            name: "_start".into(),
            module: "demo".into(),
            address: 0x1040,
            reason: "entry code".into(),
        }],
        sites: vec![],
        recorded: Default::default(),
        switched: vec![],
        blocks: vec![],
        block_counters: vec![],
        cycles_of: None,
        sampled: vec![],
        enters_kernel: vec![],
        marks: Vec::new(),
        notes: vec!["thread 58 ended before it could be read".into()],
    }
}

fn untimed() -> Profile {
    let mut profile = sample();
    profile.meta.timed = false;
    profile.meta.attached = false;
    for thread in &mut profile.processes[0].threads {
        for node in &mut thread.nodes {
            (
                node.self_ns,
                node.total_ns,
                node.wall_ns,
                node.min,
                node.max,
            ) = (0, 0, 0, 0, 0);
        }
    }
    profile
}

fn text(print: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    let mut out = Vec::new();
    print(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn by(profile: &Profile, sort: SortKey) -> Selection {
    Selection::new(profile, Some(sort), SortKey::SelfTime).unwrap()
}

fn named(patterns: &[&str]) -> Filter {
    let patterns: Vec<String> = patterns.iter().map(|p| p.to_string()).collect();
    Filter::new(&patterns, &[], &[], &[]).unwrap()
}

fn assert_golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/report/golden")
        .join(format!("{name}.txt"));
    if std::env::var_os("THALWEG_BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} differs; found:\n{found}\nwanted:\n{wanted}",
        path.display()
    );
}

/// What `report` shows to those who did not ask for anything special.
fn print_summary(profile: &Profile, out: &mut impl io::Write, style: Style) -> io::Result<()> {
    let selection = Selection::by(SortKey::usual(profile)).at_most(HOTTEST_FUNCTIONS);
    print_summary_of(profile, &selection, &Columns::default(), out, style)
}

#[test]
fn golden_summary() {
    let profile = sample();
    assert_golden("summary", &text(|out| print_summary(&profile, out, PAPER)));
}

#[test]
fn golden_summary_on_a_narrow_terminal() {
    let profile = sample();
    let terminal = Style {
        width: Some(80),
        colour: false,
    };
    let found = text(|out| print_summary(&profile, out, terminal));
    assert_golden("summary_narrow", &found);
}

#[test]
fn golden_summary_without_a_clock() {
    let profile = untimed();
    let found = text(|out| print_summary(&profile, out, PAPER));
    assert_golden("summary_no_clock", &found);
    assert!(
        !found.contains(" ns\n") && !found.contains("0 ns "),
        "{found}"
    );
}

#[test]
fn golden_flat_by_calls() {
    let profile = sample();
    let selection = by(&profile, SortKey::Calls);
    let found = text(|out| print_flat(&profile, &selection, &Columns::default(), out, PAPER));
    assert_golden("flat_calls", &found);
}

#[test]
fn golden_flat_limited() {
    let profile = sample();
    let mut selection = by(&profile, SortKey::Total);
    selection.limit = Some(2);
    let found = text(|out| print_flat(&profile, &selection, &Columns::default(), out, PAPER));
    assert_golden("flat_cum_2", &found);
}

#[test]
fn golden_tree() {
    let profile = sample();
    let selection = by(&profile, SortKey::Total);
    let found = text(|out| print_tree(&profile, &selection, out, PAPER));
    assert_golden("tree_cum", &found);
}

#[test]
fn golden_tree_pruned() {
    let profile = sample();
    let mut selection = by(&profile, SortKey::Total);
    prune_for_reading(&mut selection);
    selection.min_percent = Some(10.0);
    let found = text(|out| print_tree(&profile, &selection, out, PAPER));
    assert_golden("tree_10_percent", &found);
}

#[test]
fn golden_tree_of_one_name() {
    let profile = sample();
    let mut selection = by(&profile, SortKey::Total);
    selection.functions = kept_functions(&profile, &named(&["^is_odd$"]));
    let found = text(|out| print_tree(&profile, &selection, out, PAPER));
    assert_golden("tree_is_odd", &found);
}

#[test]
fn golden_tree_without_a_clock() {
    let profile = untimed();
    let selection = by(&profile, SortKey::Calls);
    let found = text(|out| print_tree(&profile, &selection, out, PAPER));
    assert_golden("tree_no_clock", &found);
}

#[test]
fn golden_json() {
    let profile = sample();
    let mut selection = by(&profile, SortKey::SelfTime);
    selection.limit = Some(2);
    let summary = text(|out| {
        write_json(
            None,
            &Summary::new(&profile, &selection, Callers::Listed),
            out,
        )
    });
    let flat = text(|out| write_json(None, &Flat::new(&profile, &selection, Callers::Listed), out));
    let tree = text(|out| write_json(None, &Tree::new(&profile, &selection), out));
    let mut all = String::new();
    for report in [summary, flat, tree] {
        let value: Value = serde_json::from_str(&report).unwrap();
        all.push_str(&serde_json::to_string_pretty(&value).unwrap());
        all.push('\n');
    }
    assert_golden("json", &all);
}

#[test]
fn times_cannot_order_what_was_not_timed() {
    let profile = untimed();
    for key in [
        SortKey::SelfTime,
        SortKey::Total,
        SortKey::Min,
        SortKey::Max,
    ] {
        let error = Selection::new(&profile, Some(key), SortKey::SelfTime).unwrap_err();
        assert!(error.to_string().contains("--no-clock"), "{error}");
    }
    let default = Selection::new(&profile, None, SortKey::SelfTime).unwrap();
    assert_eq!(default.sort, SortKey::Calls);
}

#[test]
fn an_empty_profile_is_reported_in_words() {
    let found = text(|out| print_summary(&Profile::default(), out, PAPER));
    assert!(found.contains("No call was seen"), "{found}");
    let selection = Selection::new(&Profile::default(), None, SortKey::SelfTime).unwrap();
    text(|out| {
        print_flat(
            &Profile::default(),
            &selection,
            &Columns::default(),
            out,
            PAPER,
        )
    });
    text(|out| print_tree(&Profile::default(), &selection, out, PAPER));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    let profile = sample();
    let terminal = Style {
        width: Some(110),
        colour: false,
    };
    let selection = by(&profile, SortKey::SelfTime);
    let flat = text(|out| print_flat(&profile, &selection, &Columns::default(), out, terminal));
    let tree = text(|out| print_tree(&profile, &selection, out, terminal));
    for line in flat.lines().chain(tree.lines()) {
        assert!(line.chars().count() <= 110, "{line}");
    }
    assert!(flat.contains('\u{2026}') && tree.contains('\u{2026}'));
}

#[test]
fn colour_changes_nothing_but_colour() {
    let profile = sample();
    let painted = Style {
        width: None,
        colour: true,
    };
    let plain = text(|out| print_summary(&profile, out, PAPER));
    let coloured = text(|out| print_summary(&profile, out, painted));
    assert!(coloured.contains("\x1b[1m"));
    let stripped = regex::Regex::new("\x1b\\[[0-9;]*m")
        .unwrap()
        .replace_all(&coloured, "")
        .into_owned();
    assert_eq!(stripped, plain);
}

#[test]
fn a_path_of_a_million_levels_fits_on_a_screen() {
    let mut profile = sample();
    let thread = &mut profile.processes[0].threads[0];
    thread.nodes = (0..1_000_000u32)
        .map(|index| Node {
            parent: index.checked_sub(1),
            function: if index < 500_000 {
                FIB
            } else {
                FuncId(index % 4)
            },
            calls: 1,
            self_ns: 1,
            total_ns: u64::from(1_000_000 - index) + 1_000_000_000,
            ..Node::default()
        })
        .collect();
    let found = text(|out| print_summary(&profile, out, PAPER));
    assert!(found.contains("fib (500,000 levels)"), "{found}");
    assert!(found.lines().count() < 80, "{}", found.lines().count());
    let path = found.split_once("Hottest path").unwrap().1;
    assert!(path.lines().all(|line| line.len() < 100), "{path}");
}
