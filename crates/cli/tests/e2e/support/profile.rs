//! Reads what `thalweg export --format json` writes, by the contract that other tools rely on.

use super::build::Program;
use super::counts::{Context, Forest};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone)]
pub struct Function {
    pub name: String,
    pub module: String,
    pub address: u64,
}

#[derive(Debug, Clone)]
pub struct Node {
    pub parent: Option<usize>,
    pub function: usize,
    pub calls: u64,
    pub base: u64,
    pub cum: u64,
    pub elapsed: u64,
    pub min: u64,
    pub max: u64,
    pub recursion: u64,
    pub unwound: u64,
    pub on_stack_at_attach: bool,
    pub folded: bool,
    /// There were at least so many calls.
    pub at_least: bool,
}

#[derive(Debug, Clone)]
pub struct Thread {
    pub pid: u64,
    pub tid: u64,
    pub name: String,
    pub created_by: Option<Creator>,
    pub start: u64,
    pub end: u64,
    /// How many threads the account stands for.
    pub threads: u64,
    pub nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Creator {
    pub pid: u64,
    pub tid: u64,
    pub function: Option<usize>,
}

#[derive(Debug, Clone)]
pub struct Profile {
    pub functions: Vec<Function>,
    pub threads: Vec<Thread>,
    pub skipped: Vec<Skipped>,
    #[allow(dead_code)] // The attack suite reads it.
    pub notes: Vec<String>,
    pub memory_bytes: u64,
    pub pruned_contexts: u64,
    pub pruned_calls: u64,
}

#[derive(Debug, Clone)]
pub struct Skipped {
    pub name: String,
    pub module: String,
    pub address: u64,
    pub reason: String,
}

impl Profile {
    pub fn parse(text: &str) -> Profile {
        let json: Value =
            serde_json::from_str(text).unwrap_or_else(|e| panic!("export is not JSON: {e}"));
        assert_eq!(json["schema"], "thalweg.profile/1");
        assert_eq!(json["clock"], "ns");
        let functions = list(&json["functions"])
            .iter()
            .enumerate()
            .map(|(at, f)| function(at, f))
            .collect::<Vec<_>>();
        let mut threads = Vec::new();
        for process in list(&json["processes"]) {
            for item in list(&process["threads"]) {
                threads.push(thread(item, number(&process["pid"]), functions.len()));
            }
        }
        let skipped = list(&json["skipped"]).iter().map(skipped).collect();
        Profile {
            functions,
            threads,
            skipped,
            notes: list(&json["notes"])
                .iter()
                .map(|note| note.to_string())
                .collect(),
            memory_bytes: number(&json["meta"]["memory_bytes"]),
            pruned_contexts: number(&json["meta"]["pruned_contexts"]),
            pruned_calls: number(&json["meta"]["pruned_calls"]),
        }
    }

    /// All threads' trees, with the names of the program's own functions.
    pub fn forest(&self, program: &Program) -> Forest {
        let mut forest = Forest::default();
        let names: Vec<Option<String>> = self
            .functions
            .iter()
            .map(|f| {
                program
                    .modules
                    .get(&f.module)
                    .and_then(|m| m.get(&f.address))
                    .cloned()
            })
            .collect();
        for thread in &self.threads {
            let first = forest.nodes.len();
            for node in &thread.nodes {
                forest.nodes.push(Context {
                    parent: node.parent.map(|parent| first + parent),
                    name: names[node.function].clone(),
                    calls: node.calls,
                });
            }
        }
        forest
    }

    /// Calls by the name that thalweg gives, over all threads.
    pub fn calls_by_name(&self) -> BTreeMap<String, u64> {
        let mut calls = BTreeMap::new();
        for node in self.threads.iter().flat_map(|t| &t.nodes) {
            *calls
                .entry(self.functions[node.function].name.clone())
                .or_default() += node.calls;
        }
        calls.retain(|_, count| *count > 0);
        calls
    }

    pub fn modules_called(&self) -> BTreeSet<String> {
        let nodes = self.threads.iter().flat_map(|t| &t.nodes);
        nodes
            .filter(|n| n.calls > 0)
            .map(|n| self.functions[n.function].module.clone())
            .collect()
    }

    pub fn total_calls(&self) -> u64 {
        self.threads
            .iter()
            .flat_map(|t| &t.nodes)
            .map(|n| n.calls)
            .sum()
    }

    /// (thread, node) of every context that ends in a function of this name.
    pub fn nodes_named<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = (&'a Thread, &'a Node)> {
        self.threads
            .iter()
            .flat_map(|t| t.nodes.iter().map(move |n| (t, n)))
            .filter(move |(_, n)| self.functions[n.function].name == name)
    }

    /// Names from a thread's outermost function down to this node.
    pub fn path(&self, thread: &Thread, node: &Node) -> Vec<String> {
        let mut path = vec![self.functions[node.function].name.clone()];
        let mut at = node.parent;
        while let Some(parent) = at {
            path.push(self.functions[thread.nodes[parent].function].name.clone());
            at = thread.nodes[parent].parent;
        }
        path.reverse();
        path
    }

    /// The profile of the process that was started or attached to, without its children.
    pub fn without_children(mut self) -> Profile {
        let first = self.threads.first().map(|thread| thread.pid);
        self.threads.retain(|thread| Some(thread.pid) == first);
        self
    }

    /// The program's own functions that are not in the profile's sight, and complaints: only a lack of room is an excuse,
    /// and among functions that are not cramped by nature, for no more than one in a hundred.
    pub fn left_out(&self, program: &Program) -> (BTreeSet<String>, String) {
        let mut names = BTreeSet::new();
        let mut complaints = String::new();
        let mut without_room = Vec::new();
        for skipped in &self.skipped {
            let own = program.modules.get(&skipped.module);
            if let Some(name) = own.and_then(|own| own.get(&skipped.address)) {
                let complaint = format!("  skipped: {name}, {}\n", skipped.reason);
                if !skipped.reason.contains("no room") {
                    complaints += &complaint;
                } else if !program.cramped.contains(name) {
                    print!("{complaint}");
                    without_room.push(complaint);
                }
                names.insert(name.clone());
            }
        }
        if without_room.len() * 100 > program.functions().len() {
            complaints.extend(without_room);
        }
        (names, complaints)
    }
}

fn skipped(json: &Value) -> Skipped {
    Skipped {
        name: string(&json["name"]),
        module: string(&json["module"]),
        address: hexadecimal(&json["address"]),
        reason: string(&json["reason"]),
    }
}

fn function(at: usize, json: &Value) -> Function {
    assert_eq!(
        number(&json["id"]),
        at as u64,
        "function ids count up from 0"
    );
    Function {
        name: string(&json["name"]),
        module: string(&json["module"]),
        address: hexadecimal(&json["address"]),
    }
}

fn thread(json: &Value, pid: u64, functions: usize) -> Thread {
    let mut nodes = Vec::new();
    for (at, item) in list(&json["nodes"]).iter().enumerate() {
        assert_eq!(number(&item["id"]), at as u64, "node ids count up from 0");
        let parent = item["parent"].as_u64().map(|parent| parent as usize);
        assert!(
            parent.is_none_or(|parent| parent < at),
            "a node's parent comes before it"
        );
        let function = number(&item["function"]) as usize;
        assert!(
            function < functions,
            "node {at} names function {function} of {functions}"
        );
        nodes.push(Node {
            parent,
            function,
            calls: number(&item["calls"]),
            base: number(&item["self_ns"]),
            cum: number(&item["total_ns"]),
            elapsed: number(&item["wall_ns"]),
            min: number(&item["min_ns"]),
            max: number(&item["max_ns"]),
            recursion: number(&item["recursion"]),
            unwound: item["unwound"].as_u64().unwrap_or(0),
            on_stack_at_attach: item["on_stack_at_attach"].as_bool().unwrap_or(false),
            folded: item["folded"].as_bool().unwrap_or(false),
            at_least: item["calls_at_least"].as_bool().unwrap_or(false),
        });
    }
    Thread {
        pid,
        tid: number(&json["tid"]),
        name: string(&json["name"]),
        created_by: json["created_by"].as_object().map(|creator| Creator {
            pid: number(&creator["pid"]),
            tid: number(&creator["tid"]),
            function: creator["function"]
                .as_u64()
                .map(|function| function as usize),
        }),
        start: number(&json["start_ns"]),
        end: number(&json["end_ns"]),
        threads: number(&json["threads"]),
        nodes,
    }
}

fn list(json: &Value) -> &Vec<Value> {
    json.as_array()
        .unwrap_or_else(|| panic!("expected a list, found {json}"))
}

fn string(json: &Value) -> String {
    json.as_str()
        .unwrap_or_else(|| panic!("expected text, found {json}"))
        .to_owned()
}

fn number(json: &Value) -> u64 {
    json.as_u64()
        .unwrap_or_else(|| panic!("expected a count, found {json}"))
}

fn hexadecimal(json: &Value) -> u64 {
    let text = string(json);
    let digits = text
        .strip_prefix("0x")
        .unwrap_or_else(|| panic!("expected 0x..., found {text}"));
    u64::from_str_radix(digits, 16).expect("hexadecimal digits")
}
