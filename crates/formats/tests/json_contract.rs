//! The JSON that other tools rely on: fields may be added, none may go or change.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use thalweg_formats::json;
use thalweg_model::{
    Block, Counting, Creator, Ending, FuncId, Function, KernelCounts, Meta, Metric, Module,
    ModuleBlocks, Node, NodeFlags, Process, Profile, Sampling, Site, SiteId, Skipped, Target,
    Thread,
};

/// The very example of the contract, and one thread more.
fn fib() -> Profile {
    Profile {
        meta: Meta {
            timed: true,
            ..Meta::default()
        },
        modules: vec![Module {
            name: "fib".into(),
            path: "/home/me/fib".into(),
            ..Module::default()
        }],
        functions: vec![
            Function {
                name: "main".into(),
                module: 0,
                address: 0x1139,
                file: Some("fib.c".into()),
                line: 7,
                ..Function::default()
            },
            Function {
                name: "sub_1200".into(),
                address: 0x1200,
                ..Function::default()
            },
        ],
        processes: vec![Process {
            pid: 41,
            parent: None,
            command: vec!["./fib".into()],
            threads: vec![
                Thread {
                    tid: 41,
                    name: "fib".into(),
                    nodes: vec![node(None, FuncId(0))],
                    ..Thread::default()
                },
                Thread {
                    tid: 42,
                    name: "worker \"1\"\n".into(),
                    created_by: Some(Creator {
                        pid: 41,
                        tid: 41,
                        function: Some(FuncId(0)),
                    }),
                    nodes: vec![
                        Node {
                            flags: NodeFlags::ON_STACK_AT_ATTACH | NodeFlags::OPEN,
                            ..node(None, FuncId(1))
                        },
                        node(Some(0), FuncId(1)),
                    ],
                    ..Thread::default()
                },
            ],
            ..Process::default()
        }],
        skipped: vec![Skipped {
            name: "_start".into(),
            module: "fib".into(),
            address: 0x1040,
            reason: "entry code".into(),
        }],
        notes: vec![],
        switched: vec![],
        blocks: Vec::new(),
        block_counters: Vec::new(),
        cycles_of: None,
        marks: Vec::new(),
        sampled: vec![],
        enters_kernel: vec![],
        sites: vec![],
        recorded: Default::default(),
    }
}

fn node(parent: Option<u32>, function: FuncId) -> Node {
    Node {
        parent,
        function,
        calls: 1,
        self_ns: 10,
        total_ns: 900,
        wall_ns: 900,
        min: 10,
        max: 10,
        recursion: 0,
        terminal: 0,
        unwound: 0,
        untimed: 0,
        flags: NodeFlags::empty(),
        ..Node::default()
    }
}

fn text(profile: &Profile) -> String {
    let mut bytes = Vec::new();
    json::write(profile, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn parsed(profile: &Profile) -> Value {
    serde_json::from_str(&text(profile)).unwrap()
}

/// Everything in `wanted` is in `found` with the same value; objects may have more.
fn assert_contains(found: &Value, wanted: &Value, at: &str) {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            for (key, value) in wanted {
                let at = format!("{at}.{key}");
                let inner = found.get(key).unwrap_or_else(|| panic!("{at} is missing"));
                assert_contains(inner, value, &at);
            }
        }
        (Value::Array(found), Value::Array(wanted)) => {
            assert_eq!(found.len(), wanted.len(), "length of {at}");
            for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
                assert_contains(found, wanted, &format!("{at}[{index}]"));
            }
        }
        _ => assert_eq!(found, wanted, "{at}"),
    }
}

#[test]
fn the_contract_holds() {
    let mut profile = fib();
    profile.functions.truncate(1);
    profile.processes[0].threads.truncate(1);
    let contract: Value = serde_json::from_str(
        r#"{"schema":"thalweg.profile/1","clock":"ns",
            "functions":[{"id":0,"name":"main","module":"fib","address":"0x1139","file":"fib.c","line":7,"language":"native"}],
            "processes":[{"pid":41,"parent":null,"command":["./fib"],"threads":[
              {"tid":41,"name":"fib","created_by":null,
               "nodes":[{"id":0,"parent":null,"function":0,"calls":1,"self_ns":10,"total_ns":900,
                         "wall_ns":900,"min_ns":10,"max_ns":10,"recursion":0}]}]}],
            "skipped":[{"name":"_start","module":"fib","reason":"entry code"}]}"#,
    )
    .unwrap();
    assert_contains(&parsed(&profile), &contract, "profile");
}

/// Names of all fields, each with the list that it stands in: `nodes[].calls`.
fn fields(value: &Value, within: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields_) => {
            for (name, value) in fields_ {
                let path = match within {
                    "" => name.clone(),
                    within => format!("{within}.{name}"),
                };
                match value {
                    Value::Array(elements) if elements.iter().any(Value::is_object) => {
                        elements
                            .iter()
                            .for_each(|element| fields(element, &format!("{name}[]"), found));
                    }
                    Value::Object(_) if within.is_empty() => fields(value, &path, found),
                    _ => {
                        found.insert(path);
                    }
                }
            }
        }
        _ => panic!("{within} is no object"),
    }
}

/// What docs/export.md says of fields: its example, and the first column of its tables.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../../docs/export.md");
    let json = page.split("\n## json\n").nth(1).expect("a part on JSON");
    let mut documented = BTreeSet::new();
    let example: String = json
        .lines()
        .filter(|line| line.starts_with("    "))
        .collect();
    fields(
        &serde_json::from_str(&example).expect("the example is JSON"),
        "",
        &mut documented,
    );
    for row in json.lines().filter(|line| line.starts_with("| `")) {
        let cell = row.split('|').nth(1).expect("a first column");
        let mut list = "";
        for name in cell.split('`').skip(1).step_by(2) {
            match name.rsplit_once('.') {
                Some((within, _)) => {
                    list = within;
                    documented.insert(name.to_string());
                }
                None if list.is_empty() => {
                    documented.insert(name.trim_end_matches("[]").to_string());
                }
                None => {
                    documented.insert(format!("{list}.{name}"));
                }
            }
        }
    }
    documented
}

#[test]
fn the_documented_fields_are_those_that_are_written() {
    let mut profile = fib();
    let thread = &mut profile.processes[0].threads[1];
    thread.metrics.set(0, Metric::AllocCalls, 1);
    thread.kernel = Some(KernelCounts::default());
    let node = &mut thread.nodes[0];
    node.unwound = 1;
    node.untimed = 1;
    node.terminal = 1;
    node.flags |= NodeFlags::FOLDED | NodeFlags::SAMPLED;
    profile.meta.sampling = Some(Sampling::default());
    profile.meta.counting = vec![Counting {
        metric: Metric::Faults,
        period: 1,
        in_kernel: true,
        samples: 1,
        lost: 0,
        in_probes: 0,
        nobodys: 0,
        cut_short: 0,
    }];
    let targets = [Target::Direct, Target::Indirect];
    profile.sites = targets
        .map(|target| Site {
            name: "main+0x20".into(),
            file: Some("fib.c".into()),
            line: 9,
            target,
            jump: true,
            ..Site::default()
        })
        .to_vec();
    for (index, node) in (0..).zip(&mut profile.processes[0].threads[1].nodes) {
        node.site = SiteId::from_index(index);
    }
    profile.blocks = vec![ModuleBlocks {
        module: 0,
        blocks: vec![Block {
            start: 0x1139,
            bytes: 6,
            instructions: 2,
            ending: Ending::Branch(0x1150),
            executions: 5,
            not_taken: 2,
            cost: 750,
            ..Block::default()
        }],
    }];
    profile.cycles_of = Some("zen4".into());
    let mut written = BTreeSet::new();
    fields(&parsed(&profile), "", &mut written);
    assert_eq!(written, documented());
}

#[test]
fn what_is_unknown_is_null() {
    let value = parsed(&fib());
    let unnamed = &value["functions"][1];
    assert_eq!(unnamed["file"], Value::Null);
    assert_eq!(unnamed["line"], Value::Null);
    assert_eq!(value["modules"][0]["build_id"], Value::Null);
}

#[test]
fn a_thread_names_its_creator() {
    let value = parsed(&fib());
    let worker = &value["processes"][0]["threads"][1];
    assert_eq!(
        worker["created_by"],
        json!({"pid": 41, "tid": 41, "function": 0})
    );
    assert_eq!(worker["name"], "worker \"1\"\n");
    assert_eq!(worker["nodes"][1]["parent"], 0);
}

#[test]
fn flags_stand_only_where_they_are_true() {
    let value = parsed(&fib());
    let nodes = &value["processes"][0]["threads"][1]["nodes"];
    assert_eq!(nodes[0]["on_stack_at_attach"], true);
    assert_eq!(nodes[0]["open"], true);
    assert_eq!(nodes[0].get("folded"), None);
    assert_eq!(nodes[1].get("open"), None);
}

#[test]
fn large_counts_keep_every_digit() {
    let mut profile = fib();
    profile.processes[0].threads[0].nodes[0].calls = u64::MAX;
    assert!(text(&profile).contains("\"calls\":18446744073709551615,"));
}

#[test]
fn the_text_is_written_piece_by_piece() {
    struct LargestWrite(usize);
    impl std::io::Write for LargestWrite {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.max(bytes.len());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut profile = fib();
    profile.processes[0].threads[0].nodes = vec![node(None, FuncId(0)); 10_000];
    let mut out = LargestWrite(0);
    json::write(&profile, &mut out).unwrap();
    assert!(out.0 < 1000, "one write had {} bytes", out.0);
}

#[test]
fn an_error_of_the_output_keeps_its_kind() {
    struct Closed;
    impl std::io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = json::write(&fib(), Closed).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}
