//! `thalweg` alone: how to begin.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

const TEXT: &str = "\
thalweg counts and times every call of a running native program.

  thalweg record -- COMMAND       run a program and see where its time goes
  thalweg record -p PID -d 10s    the same of a process that runs already
  thalweg top -p PID              what it does right now
  thalweg serve                   look at the recording in a browser
  thalweg report --tree           or here, as a tree of calls

Try it on something that every machine has:

  thalweg record -- ls -lR /usr/share

'thalweg help' lists all commands, 'thalweg COMMAND --help' tells about one.
";

pub fn run() -> anyhow::Result<ExitCode> {
    io::stdout()
        .write_all(TEXT.as_bytes())
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
