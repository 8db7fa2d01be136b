//! A program can ask for its own figures, name a piece of its code and ask for a checkpoint; and nothing happens where nobody counts.

use crate::support::build::{Build, rust_program, targets};
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, export, text};
use std::path::Path;
use std::process::{Command, Output};

fn record(program: &Path, file: &Path) -> Output {
    let run = command()
        .args(["record", "--no-report", "--metric", "alloc", "-o"])
        .arg(file)
        .arg("--")
        .arg(program)
        .output()
        .expect("thalweg starts");
    assert!(run.status.success(), "{}", text(&run));
    run
}

#[test]
fn a_c_program_reads_its_figures_while_it_is_counted() {
    let build = Build::new("self_totals").source("self_totals.c");
    let program = build.flags(&["-O2", "-fno-builtin", "-pthread"]).finish();
    // base >= base holds for two zeros.
    assert_eq!(program.run(&[]), "0 0 1 0 0 1\n0 0 0\n");
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let run = record(&program.path, &file);
    let said = String::from_utf8_lossy(&run.stdout);
    assert_eq!(said, "1 1 1 1 1 1\n1 100 100\n", "{}", text(&run));
    let profile = export(&file);
    let (thread, leaf) = profile
        .nodes_named("leaf")
        .find(|(thread, node)| {
            profile
                .path(thread, node)
                .contains(&"thalweg_region_numbers".into())
        })
        .expect("leaf below the region");
    assert_eq!((thread.tid, leaf.calls), (thread.pid, 1000));
    let checkpoint = scratch.join("profile.1.thalweg");
    assert!(checkpoint.exists(), "no checkpoint: {}", text(&run));
    let at_checkpoint = export(&checkpoint);
    let leaves: u64 = at_checkpoint
        .nodes_named("leaf")
        .map(|(_, node)| node.calls)
        .sum();
    assert_eq!(leaves, 6000);
}

#[test]
fn a_rust_program_reads_its_figures_while_it_is_counted() {
    let scratch = Scratch::new();
    let library = scratch.join("libthalweg_self.rlib");
    let made = Command::new("rustc")
        .args([
            "--edition",
            "2024",
            "-O",
            "--crate-type",
            "rlib",
            "--crate-name",
            "thalweg_self",
            "-o",
        ])
        .arg(&library)
        .arg(targets().join("../../crates/self/src/lib.rs"))
        .status();
    assert!(made.expect("rustc starts").success());
    let library = format!("thalweg_self={}", library.display());
    let program = rust_program("self_rust.rs", &["-O", "--extern", &library]);
    assert_eq!(program.run(&[]), "0 0 1\n");
    let run = record(&program.path, &scratch.join("profile.thalweg"));
    assert_eq!(
        String::from_utf8_lossy(&run.stdout),
        "1 1 1\n",
        "{}",
        text(&run)
    );
}
