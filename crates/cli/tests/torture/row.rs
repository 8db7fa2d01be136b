//! What one program's trial comes to: a line of the table in `docs/torture.md`.

use crate::support::scratch;
use crate::support::thalweg::{command, text};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// What a profile of a launched program says.
pub struct Launched {
    pub patched: u64,
    pub functions: u64,
    pub calls: u64,
}

impl Launched {
    #[track_caller]
    pub fn read(file: &Path) -> Launched {
        let output = command()
            .args(["export", "--format", "json", "-i"])
            .arg(file)
            .output()
            .expect("thalweg starts");
        assert!(output.status.success(), "export: {}", text(&output));
        let profile: Value = serde_json::from_slice(&output.stdout).expect("export writes JSON");
        let sum = |field: &str| {
            let modules = profile["modules"].as_array().expect("modules");
            modules.iter().filter_map(|m| m[field].as_u64()).sum()
        };
        let list =
            |value: &Value, field: &str| value[field].as_array().cloned().unwrap_or_default();
        let processes = list(&profile, "processes");
        let threads = processes.iter().flat_map(|p| list(p, "threads"));
        let nodes = threads.flat_map(|t| list(&t, "nodes"));
        Launched {
            patched: sum("functions_patched"),
            functions: sum("functions_total"),
            calls: nodes.filter_map(|n| n["calls"].as_u64()).sum(),
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
