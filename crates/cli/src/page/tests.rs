//! Answers agree with the analysis, and no question makes them fail.

use serde_json::Value;
use thalweg_model::{Function, Module, Node, Process, Profile, Thread};

use super::*;

/// main -> a -> b -> a, and main -> b; then as many light ones below b as asked for.
fn profile(light: u32) -> Profile {
    let node = |parent, function, base, cum, recursion| Node {
        parent,
        function,
        calls: 2,
        base,
        cum,
        elapsed: cum,
        recursion,
        ..Node::default()
    };
    let mut nodes = vec![
        node(None, 0, 10, 1000, 0),
        node(Some(0), 1, 200, 590, 0),
        node(Some(1), 2, 300, 390, 0),
        node(Some(2), 1, 90, 90, 1),
        node(Some(0), 2, 400, 400, 0),
    ];
    nodes.extend((0..light).map(|n| node(Some(4), 3 + n, 0, 0, 0)));
    let names = ["main", "a", "<script>alert(1)</script>"].map(String::from);
    let names = names
        .into_iter()
        .chain((0..light).map(|n| format!("light{n}")));
    Profile {
        meta: thalweg_model::Meta {
            timed: true,
            duration_ns: 1000,
            ..Default::default()
        },
        modules: vec![Module {
            name: "prog".into(),
            ..Module::default()
        }],
        functions: names
            .map(|name| Function {
                name,
                ..Function::default()
            })
            .collect(),
        processes: vec![Process {
            pid: 1,
            threads: vec![Thread {
                tid: 1,
                nodes,
                ..Thread::default()
            }],
            ..Process::default()
        }],
        ..Profile::default()
    }
}

fn ask(subject: &Subject, question: &str) -> Value {
    let answer = subject.answer(&Question::parse(question));
    serde_json::from_slice(&answer.unwrap_or_else(|e| panic!("{question}: {e}"))).unwrap()
}

fn functions_shown(river: &Value) -> Vec<i64> {
    let boxes = river["boxes"].as_array().unwrap();
    let shown = boxes.iter().filter_map(|b| b["f"].as_i64());
    shown.filter(|&f| f >= 0).collect()
}

#[test]
fn the_filter_collapses_and_the_three_states_override_it() {
    let subject = Subject::new(profile(5), String::new());
    assert_eq!(
        functions_shown(&ask(&subject, "river?brief=0&cut=1")),
        [0, 1, 2]
    );
    assert_eq!(
        functions_shown(&ask(&subject, "river?brief=0&cut=0")).len(),
        8
    );
    let state = |river: &Value, f: i64| {
        let boxes = river["boxes"].as_array().unwrap();
        let found = boxes.iter().find(|b| b["f"] == f).unwrap();
        (
            found["state"].as_str().unwrap().to_string(),
            found["own"].as_u64().unwrap(),
        )
    };
    let filtered = ask(&subject, "river?brief=0&cut=1");
    assert_eq!(state(&filtered, 2), ("some".to_string(), 700));
    assert_eq!(state(&filtered, 0), ("all".to_string(), 10));
    let opened = ask(&subject, "river?brief=0&cut=1&open=2");
    assert_eq!(functions_shown(&opened).len(), 8);
    assert_eq!(state(&opened, 2), ("all".to_string(), 700));
    // With a closed, what it called is part of it; the other calls of function 2 stay.
    let closed = ask(&subject, "river?brief=0&cut=1&closed=1");
    assert_eq!(state(&closed, 1), ("closed".to_string(), 590));
    assert_eq!(state(&closed, 2), ("some".to_string(), 400));
}

#[test]
fn a_virtual_root_is_the_whole_of_every_answer() {
    let subject = Subject::new(profile(0), String::new());
    assert_eq!(ask(&subject, "river?root=1")["whole"], 590);
    let functions = ask(&subject, "functions?root=1");
    assert_eq!(functions["time"], 590);
    assert_eq!(functions["function"], serde_json::json!([1, 2]));
    assert_eq!(ask(&subject, "tree?root=1")["whole"], 590);
    assert_eq!(ask(&subject, "function?f=2&root=1")["cum"], 390);
}

#[test]
fn the_tree_gives_the_heaviest_contexts_first() {
    let subject = Subject::new(profile(50), String::new());
    let rows = ask(&subject, "tree?limit=3");
    assert_eq!(rows["id"], serde_json::json!([0, 1, 4]));
    assert_eq!(rows["parent"], serde_json::json!([-1, 0, 0]));
    assert_eq!(rows["children"], serde_json::json!([2, 1, 50]));
    assert_eq!(
        ask(&subject, "tree?at=4")["id"].as_array().unwrap().len(),
        51
    );
}

#[test]
fn top_down_is_the_same_layout_turned() {
    let subject = Subject::new(profile(0), String::new());
    let (right, down) = (ask(&subject, "river"), ask(&subject, "river?dir=down"));
    assert_eq!(right["boxes"].as_array().unwrap().len(), 4);
    for river in [&right, &down] {
        for arc in river["arcs"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|a| a["kind"] == 0)
        {
            let at: Vec<f64> = arc["at"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_f64().unwrap())
                .collect();
            let along = if river["down"] == true { 1 } else { 0 };
            assert!(at[along] < at[at.len() - 2 + along], "{arc}");
        }
    }
}

#[test]
fn questions_that_make_no_sense_are_refused() {
    let subject = Subject::new(profile(0), String::new());
    for question in [
        "",
        "nothing",
        "river?cut=-1",
        "river?cut=nan",
        "river?cut=101",
        "river?root=99",
        "river?root=-1",
        "river?width=thick",
        "river?closed=1,x",
        "function",
        "function?f=4294967296",
        "tree?at=99",
        "river?threads=7",
        "river?metric=luck",
        "compare",
        "source?f=0",
        "river?names=-3",
    ] {
        assert!(
            subject.answer(&Question::parse(question)).is_err(),
            "{question} was answered"
        );
    }
}

#[test]
fn an_empty_profile_and_absurd_figures_have_answers() {
    let mut absurd = profile(3);
    for node in &mut absurd.processes[0].threads[0].nodes {
        (node.calls, node.base, node.cum, node.elapsed) = (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
    }
    for profile in [Profile::default(), absurd] {
        let subject = Subject::new(profile, String::new());
        for question in [
            "meta",
            "functions",
            "river",
            "river?cut=0&width=adaptive",
            "tree",
            "tree?metric=calls",
            "threads",
            "summary",
            "river?metric=elapsed",
        ] {
            ask(&subject, question);
        }
    }
}

#[test]
fn no_name_leaves_the_text_of_a_page() {
    let mut hostile = profile(0);
    hostile.meta.command = vec!["</title><script>alert(1)</script>".into()];
    let mut page = Vec::new();
    write_html(&Subject::new(hostile, String::new()), &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(!page.contains("alert(1)</script>"));
    assert_eq!(page.matches("<script").count(), 2);
}
