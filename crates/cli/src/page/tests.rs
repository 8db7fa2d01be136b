//! Responses agree with the analysis, and no query makes them fail.

use serde_json::Value;
use thalweg_model::{Call, FuncId, Function, Metric, Module, Node, Process, Profile, Rule, Thread};

use super::*;

/// main -> a -> b -> a, and main -> b; then as many light ones below b as asked for.
fn profile(light: u32) -> Profile {
    let node = |parent, function, self_ns, total_ns, recursion| Node {
        parent,
        function,
        calls: 2,
        self_ns,
        total_ns,
        wall_ns: total_ns,
        recursion,
        ..Node::default()
    };
    let mut nodes = vec![
        node(None, FuncId(0), 10, 1000, 0),
        node(Some(0), FuncId(1), 200, 590, 0),
        node(Some(1), FuncId(2), 300, 390, 0),
        node(Some(2), FuncId(1), 90, 90, 1),
        node(Some(0), FuncId(2), 400, 400, 0),
    ];
    nodes.extend((0..light).map(|n| node(Some(4), FuncId(3 + n), 0, 0, 0)));
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

fn ask(view: &ProfileView, query: &str) -> Value {
    let response = view.response(&Query::parse(query));
    serde_json::from_slice(&response.unwrap_or_else(|e| panic!("{query}: {e}"))).unwrap()
}

fn functions_shown(river: &Value) -> Vec<i64> {
    let boxes = river["boxes"].as_array().unwrap();
    let shown = boxes.iter().filter_map(|b| b["f"].as_i64());
    shown.filter(|&f| f >= 0).collect()
}

#[test]
fn the_filter_collapses_and_the_three_states_override_it() {
    let view = ProfileView::new(profile(5), String::new());
    assert_eq!(
        functions_shown(&ask(&view, "river?brief=0&cut=1")),
        [0, 1, 2]
    );
    assert_eq!(functions_shown(&ask(&view, "river?brief=0&cut=0")).len(), 8);
    let state = |river: &Value, f: i64| {
        let boxes = river["boxes"].as_array().unwrap();
        let found = boxes.iter().find(|b| b["f"] == f).unwrap();
        (
            found["state"].as_str().unwrap().to_string(),
            found["self"].as_u64().unwrap(),
        )
    };
    let filtered = ask(&view, "river?brief=0&cut=1");
    assert_eq!(state(&filtered, 2), ("some".to_string(), 700));
    assert_eq!(state(&filtered, 0), ("all".to_string(), 10));
    let opened = ask(&view, "river?brief=0&cut=1&open=2");
    assert_eq!(functions_shown(&opened).len(), 8);
    assert_eq!(state(&opened, 2), ("all".to_string(), 700));
    // With a closed, what it called is part of it; the other calls of function 2 stay.
    let closed = ask(&view, "river?brief=0&cut=1&closed=1");
    assert_eq!(state(&closed, 1), ("closed".to_string(), 590));
    assert_eq!(state(&closed, 2), ("some".to_string(), 400));
}

#[test]
fn a_virtual_root_is_the_whole_of_every_response() {
    let view = ProfileView::new(profile(0), String::new());
    assert_eq!(ask(&view, "river?root=1")["whole"], 590);
    let functions = ask(&view, "functions?root=1");
    assert_eq!(functions["time"], 590);
    assert_eq!(functions["function"], serde_json::json!([1, 2]));
    assert_eq!(ask(&view, "tree?root=1")["whole"], 590);
    assert_eq!(ask(&view, "function?f=2&root=1")["total"], 390);
}

#[test]
fn what_has_no_name_of_its_own_stands_with_its_module_in_the_river() {
    let mut profile = profile(0);
    profile.functions[1].name = "<module>".into();
    profile.functions[2].name = "<listcomp> of others".into();
    let view = ProfileView::new(profile, String::new());
    let river = ask(&view, "river?brief=0&cut=0");
    let boxes = river["boxes"].as_array().unwrap();
    let label = |f: i64| &boxes.iter().find(|b| b["f"] == f).unwrap()["label"];
    assert_eq!(label(1), "<module> prog");
    assert_eq!(label(2), "<listcomp> of others");
}

#[test]
fn a_query_is_answered_once_whatever_its_spelling() {
    let view = ProfileView::new(profile(3), String::new());
    let kept = |query: &str| view.kept_response(&Query::parse(query)).unwrap();
    let first = kept("river?brief=0&cut=1");
    assert_eq!(
        *first,
        view.response(&Query::parse("river?brief=0&cut=1")).unwrap()
    );
    assert!(std::sync::Arc::ptr_eq(&first, &kept("river?cut=1&brief=0")));
    assert!(!std::sync::Arc::ptr_eq(
        &first,
        &kept("river?cut=2&brief=0")
    ));
    assert!(view.kept_response(&Query::parse("river?cut=x")).is_err());
}

#[test]
fn the_tree_gives_the_heaviest_contexts_first() {
    let view = ProfileView::new(profile(50), String::new());
    let rows = ask(&view, "tree?limit=3");
    assert_eq!(rows["id"], serde_json::json!([0, 1, 4]));
    assert_eq!(rows["parent"], serde_json::json!([-1, 0, 0]));
    assert_eq!(rows["children"], serde_json::json!([2, 1, 50]));
    assert_eq!(ask(&view, "tree?at=4")["id"].as_array().unwrap().len(), 51);
}

#[test]
fn top_down_is_the_same_layout_turned() {
    let view = ProfileView::new(profile(0), String::new());
    let (right, down) = (ask(&view, "river"), ask(&view, "river?dir=down"));
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
    let view = ProfileView::new(profile(0), String::new());
    for query in [
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
        "functions?metric=alloc.bytes",
        "calls?list=some",
        "calls?sort=luck",
        "calls?where=nonsense",
        "calls?q=(",
        "calls?from=-1",
        "callline?px=x",
        "calldurations?where=nonsense",
        "call",
        "call?id=7",
    ] {
        assert!(
            view.response(&Query::parse(query)).is_err(),
            "{query} was answered"
        );
    }
}

#[test]
fn an_empty_profile_and_absurd_figures_have_answers() {
    let mut absurd = profile(3);
    for node in &mut absurd.processes[0].threads[0].nodes {
        (node.calls, node.self_ns, node.total_ns, node.wall_ns) =
            (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
    }
    for profile in [Profile::default(), absurd] {
        let view = ProfileView::new(profile, String::new());
        for query in [
            "meta",
            "functions",
            "river",
            "river?cut=0&width=adaptive",
            "tree",
            "tree?metric=calls",
            "threads",
            "summary",
            "river?metric=wall",
        ] {
            ask(&view, query);
        }
    }
}

/// Two requests of function 1, each of which made two chosen calls of function 2; of the second one in the other.
fn recorded() -> Profile {
    let call = |id, parent, function, entry, exit| Call {
        id,
        parent,
        function,
        rule: (function == FuncId(2)).then_some(0),
        pid: 1,
        tid: 1,
        request: if id < 4 { 1 } else { 2 },
        entry_ns: entry,
        exit_ns: exit,
        ..Call::default()
    };
    let mut profile = profile(0);
    profile.recorded.rules.push(Rule {
        text: "every".into(),
        kept: 4,
    });
    profile.recorded.calls = vec![
        call(1, None, FuncId(1), 0, 100),
        call(2, Some(0), FuncId(2), 10, 30),
        call(3, Some(0), FuncId(2), 40, 90),
        call(4, None, FuncId(1), 200, 300),
        call(5, Some(3), FuncId(2), 210, 290),
        call(6, Some(4), FuncId(2), 220, 221),
    ];
    profile
}

#[test]
fn recorded_calls_are_found_by_what_they_are_and_what_is_below_them() {
    let view = ProfileView::new(recorded(), String::new());
    let ids = |query: &str| -> Vec<u64> {
        let page = ask(&view, query);
        let rows = page["rows"].as_array().unwrap();
        rows.iter().map(|row| row["id"].as_u64().unwrap()).collect()
    };
    assert_eq!(ids("calls"), [1, 4]);
    assert_eq!(ids("calls?list=chosen"), [2, 3, 5, 6]);
    assert_eq!(ids("calls?list=chosen&sort=-total"), [5, 3, 2, 6]);
    // A request is shown for what any call of it is.
    assert_eq!(ids("calls?where=duration+%3C+0.01us"), [4]);
    assert_eq!(ids("calls?list=chosen&t0=50&t1=215"), [3, 5]);
    assert_eq!(ids("calls?list=chosen&from=3"), [6]);
    assert_eq!(ids("calls?list=chosen&root=0"), [0; 0]);
    let tree = ask(&view, "call?id=5");
    let rows = tree["rows"].as_array().unwrap();
    let levels: Vec<_> = rows.iter().map(|r| (&r["id"], &r["level"])).collect();
    let wanted = [[4, 0], [5, 1], [6, 2]].map(|[id, level]| (Value::from(id), Value::from(level)));
    assert!(
        levels
            .iter()
            .zip(&wanted)
            .all(|(a, b)| (a.0, a.1) == (&b.0, &b.1))
    );
    assert_eq!((rows.len(), &tree["at"]), (3, &Value::from(1)));
    assert_eq!(ask(&view, "callplace?list=chosen&id=5")["place"], 2);
}

#[test]
fn a_time_line_has_one_mark_a_pixel_and_leaves_no_call_out() {
    let view = ProfileView::new(recorded(), String::new());
    let counts = |query: &str| -> Vec<u64> {
        let line = ask(&view, query);
        let counts = line["count"].as_array().unwrap();
        counts.iter().map(|n| n.as_u64().unwrap()).collect()
    };
    assert_eq!(counts("callline?list=chosen&px=1000"), [1, 1, 1, 1]);
    assert_eq!(counts("callline?list=chosen&px=1"), [4]);
    assert_eq!(counts("callline?list=chosen&t0=0&t1=100"), [1, 1]);
    ask(&view, "callline?t0=18446744073709551615&t1=0&px=0");
}

#[test]
fn a_metric_stands_in_the_place_of_time() {
    let mut profile = profile(2);
    profile.meta.metrics = vec![Metric::AllocBytes];
    let thread = &mut profile.processes[0].threads[0];
    thread.metrics.set(2, Metric::AllocBytes, 70);
    thread.metrics.set(4, Metric::AllocBytes, 30);
    let view = ProfileView::new(profile, String::new());
    let functions = ask(&view, "functions?metric=alloc.bytes");
    assert_eq!(functions["self"], serde_json::json!([0, 0, 100, 0, 0]));
    assert_eq!(functions["total"], serde_json::json!([100, 70, 100, 0, 0]));
    assert_eq!(ask(&view, "functions")["metrics"]["alloc.bytes"][2], 100);
    assert_eq!(ask(&view, "river?metric=alloc.bytes")["whole"], 100);
    assert_eq!(ask(&view, "tree?metric=alloc.bytes")["whole"], 100);
    assert_eq!(ask(&view, "functions")["time"], 1000);
}

#[test]
fn no_name_leaves_the_text_of_a_page() {
    let mut hostile = profile(0);
    hostile.meta.command = vec!["</title><script>alert(1)</script>".into()];
    let mut page = Vec::new();
    write_html(&ProfileView::new(hostile, String::new()), &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(!page.contains("alert(1)</script>"));
    assert_eq!(page.matches("<script").count(), 2);
}
