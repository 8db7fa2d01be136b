//! What one program's trial comes to: a line of the table in `docs/torture.md`.

use crate::support::scratch;
use crate::support::thalweg::command;
use serde::Deserialize;
use std::fs::OpenOptions;
use std::io::{BufReader, Write};
use std::path::Path;
use std::process::Stdio;

/// What a profile of a launched program says.
pub struct Launched {
    pub patched: u64,
    pub functions: u64,
    pub calls: u64,
}

/// The part of an export that is wanted: that of millions of contexts does not fit into memory as a whole.
#[derive(Deserialize)]
struct Export {
    modules: Vec<Module>,
    processes: Vec<Process>,
}

#[derive(Deserialize)]
struct Module {
    functions_patched: u64,
    functions_total: u64,
}

#[derive(Deserialize)]
struct Process {
    threads: Vec<Thread>,
}

#[derive(Deserialize)]
struct Thread {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    calls: u64,
}

impl Launched {
    #[track_caller]
    pub fn read(file: &Path) -> Launched {
        let mut export = command()
            .args(["export", "--format", "json", "-i"])
            .arg(file)
            .stdout(Stdio::piped())
            .spawn()
            .expect("thalweg starts");
        let json = BufReader::new(export.stdout.take().expect("a pipe"));
        let profile: Export = serde_json::from_reader(json).expect("export writes JSON");
        assert!(export.wait().expect("it ends").success(), "export fails");
        let threads = profile.processes.iter().flat_map(|p| &p.threads);
        Launched {
            patched: profile.modules.iter().map(|m| m.functions_patched).sum(),
            functions: profile.modules.iter().map(|m| m.functions_total).sum(),
            calls: threads.flat_map(|t| &t.nodes).map(|n| n.calls).sum(),
        }
    }
}

pub struct Row<'a> {
    pub program: &'a str,
    pub launched: &'a Launched,
    pub cycles: u32,
    /// Processor time of the program in a launched run by that in a plain one beside it.
    pub slowdown: f64,
}

impl Row<'_> {
    /// Prints the line, and adds it to the file from which the table in the documentation is made.
    pub fn write(&self) {
        assert!(
            self.launched.calls > 0,
            "{}: no call was counted",
            self.program
        );
        let line = format!(
            "| {} | yes, {} calls | {} | {:.1} | {} of {} |\n",
            self.program,
            self.launched.calls,
            self.cycles,
            self.slowdown,
            self.launched.patched,
            self.launched.functions
        );
        print!("{line}");
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(scratch::root().join("torture.md"))
            .expect("a place for the table");
        file.write_all(line.as_bytes())
            .expect("the table is written");
    }
}
