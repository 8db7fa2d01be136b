//! What thalweg does to a program is not the program's: stops and waits for the profiler are told by themselves, and are in
//! no function's elapsed or waited time.

use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, succeed, text};
use serde_json::Value;
use std::process::Stdio;

struct Recorded {
    json: Value,
    summary: String,
    head: Value,
}

fn recorded(arguments: &[&str], scratch: &Scratch) -> Recorded {
    let file = scratch.join("profile.thalweg");
    let file = file.to_str().unwrap();
    let output = command()
        .args(["record", "--no-report", "--quiet", "-o", file, "--"])
        .args(arguments)
        .current_dir(scratch.path())
        .stdin(Stdio::null())
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    let json = |text: String| serde_json::from_str(&text).expect("JSON");
    Recorded {
        json: json(succeed(&[
            "export", "--raw", "-i", file, "--format", "json",
        ])),
        summary: succeed(&["report", file]),
        head: json(succeed(&["report", "--json", file])),
    }
}

impl Recorded {
    fn stopped(&self, what: &str) -> u64 {
        let stopped = &self.json["meta"]["stopped_by_thalweg"];
        assert_eq!(*stopped, self.head["stopped_by_thalweg"]);
        stopped[what].as_u64().expect(what)
    }

    fn processes(&self) -> &[Value] {
        self.json["processes"].as_array().expect("processes")
    }

    /// What threads of a process waited in a function and all that it called.
    fn waited(&self, process: &Value, function: &str) -> u64 {
        let functions = &self.json["functions"];
        let threads = process["threads"].as_array().expect("threads");
        let nodes = threads.iter().flat_map(|t| t["nodes"].as_array().unwrap());
        nodes
            .filter(|node| {
                let number = node["function"].as_u64().unwrap() as usize;
                functions[number]["name"] == function
            })
            .map(|node| node["wall_ns"].as_u64().unwrap() - node["total_ns"].as_u64().unwrap())
            .sum()
    }
}

fn program(process: &Value) -> &str {
    let path = process["command"][0].as_str().unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default()
}

fn lived(process: &Value) -> u64 {
    process["end_ns"].as_u64().unwrap() - process["start_ns"].as_u64().unwrap()
}

#[test]
fn a_parent_does_not_wait_for_the_analysis_of_its_child() {
    let scratch = Scratch::new();
    std::fs::write(scratch.join("x.c"), "int main(void) { return 0; }\n").unwrap();
    // A shell that reads what a command writes, which itself waits for another: three who wait.
    let run = recorded(
        &["sh", "-c", "said=$(gcc -c x.c -o x.o); echo $said"],
        &scratch,
    );
    let stopped = run.stopped("ns");
    assert!(
        run.stopped("stops") >= 4,
        "the shell, gcc, cc1 and as stood"
    );
    assert!(run.stopped("longest_ns") <= stopped);
    assert!(run.summary.contains("stopped    by thalweg: "));
    let compiler = |process: &&Value| ["cc1", "as"].contains(&program(process));
    let lives: u64 = run.processes().iter().filter(compiler).map(lived).sum();
    assert!(lives > 0);
    let mut waits = 0;
    for process in run.processes() {
        if program(process) == "gcc" {
            let waited = run.waited(process, "wait4");
            // They lived for as long as it waits. What they stood before is no part of that; half of it is left for the
            // scheduler's part, which grows with it.
            assert!(
                waited < lives + stopped / 2,
                "gcc waited {waited} ns for what ran {lives} ns and stood {stopped} ns"
            );
            waits += waited;
        }
        let became = run.waited(process, "execve");
        assert!(became < stopped / 2, "{became} ns in execve");
    }
    assert!(waits > 0, "gcc does wait");
    let shell = run.processes().iter().find(|p| program(p) == "sh").unwrap();
    let waited = run.waited(shell, "read");
    let all: u64 = run.processes().iter().skip(1).map(lived).sum();
    assert!(
        waited < all + stopped / 2,
        "the shell waited {waited} ns for what ran {all} ns and stood {stopped} ns"
    );
}

#[test]
fn a_thread_that_loads_code_does_not_wait_for_its_analysis() {
    let scratch = Scratch::new();
    let run = recorded(&["python3.11", "-c", "import _ssl"], &scratch);
    assert!(run.stopped("gates") >= 1, "libssl and libcrypto are loaded");
    let gated = run.stopped("gates_ns");
    assert!(run.stopped("longest_gate_ns") <= gated);
    let process = &run.processes()[0];
    let waited = run.waited(process, "dlopen");
    assert!(
        waited < gated / 2,
        "it waited {waited} ns, and {gated} ns for thalweg"
    );
}
