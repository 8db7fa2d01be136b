//! Programs on a runtime of their own: the JVM, and tokio.

use crate::batch::{Batch, printed};
use crate::cycles::Generates;
use crate::support::build::{run, targets};
use crate::support::scratch::{self, Scratch};
use std::process::Command;

#[test]
fn java() {
    let scratch = Scratch::new();
    run(Command::new("javac")
        .arg("-d")
        .arg(scratch.path())
        .arg(targets().join("real/Work.java")));
    let classes = scratch.path().to_str().expect("UTF-8");
    let java = std::fs::canonicalize("/usr/bin/java").expect("java is installed");
    let java = java.to_str().expect("UTF-8");
    let arguments = |amount: u32| {
        let rounds = (amount * 100).to_string();
        [java, "-cp", classes, "Work", &rounds]
            .map(str::to_owned)
            .to_vec()
    };
    Batch {
        program: "java",
        generates: Generates::Code,
        arguments: &arguments,
        answer: &printed,
        long: 100,
        rate: None,
        child: None,
    }
    .try_out();
}

#[test]
fn tokio() {
    // Beside the tests' other files: a second run compiles nothing.
    let target = scratch::root().join("tokio");
    run(Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--manifest-path"])
        .arg(targets().join("real/tokio/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target));
    let program = target.join("release/tokio-target");
    let arguments = |amount: u32| {
        let rounds = (amount * 300).to_string();
        vec![program.to_str().expect("UTF-8").to_owned(), rounds]
    };
    Batch {
        program: "tokio",
        generates: Generates::Nothing,
        arguments: &arguments,
        answer: &printed,
        long: 40,
        rate: None,
        child: None,
    }
    .try_out();
}
