//! What the graph shows and what it leaves out; the picture is the same every time.

mod support;

use support::{profile, tree};
use thalweg_analysis::{Choice, FlowGraph, flow_graph};
use thalweg_formats::graph::{Style, draw, png, svg};
use thalweg_model::{FuncId, Process, Profile, Thread};

fn edge(graph: &FlowGraph, from: &str, to: &str, profile: &Profile) -> Option<(u64, u64)> {
    let name = |node: usize| match graph.nodes[node].function {
        Some(function) => profile.functions[function].name.as_str(),
        None => "START",
    };
    let found = graph
        .edges
        .iter()
        .find(|edge| name(edge.from) == from && name(edge.to) == to)?;
    Some((found.calls, found.time))
}

#[test]
fn each_arc_carries_the_time_of_its_own_calls_and_no_average() {
    // Ten calls by easy took 1,000 ns, one call by hard took 120,600.
    let profile = profile();
    let graph = flow_graph(&profile, &Choice::default());
    assert_eq!(edge(&graph, "easy", "work", &profile), Some((10, 1_000)));
    assert_eq!(edge(&graph, "hard", "work", &profile), Some((4, 120_600)));
    assert_eq!(edge(&graph, "START", "main", &profile), Some((1, 121_755)));
}

#[test]
fn what_is_below_the_cutoff_is_collapsed_into_its_callers_and_nothing_is_lost() {
    let profile = profile();
    let all = flow_graph(
        &profile,
        &Choice {
            cutoff: Some(0.0),
            root: None,
            ..Choice::default()
        },
    );
    let few = flow_graph(
        &profile,
        &Choice {
            cutoff: Some(0.1),
            root: None,
            ..Choice::default()
        },
    );
    assert!(few.nodes.len() < all.nodes.len());
    let sum = |graph: &FlowGraph| -> u64 { graph.nodes.iter().map(|node| node.self_time).sum() };
    assert_eq!(sum(&few), sum(&all));
    assert_eq!(sum(&few), few.whole);
    // easy is not shown; main takes its place as the caller of work.
    assert_eq!(edge(&few, "main", "work", &profile), Some((10, 1_000)));
}

#[test]
fn a_virtual_root_is_the_whole() {
    let profile = profile();
    let hard = 2;
    let below = flow_graph(
        &profile,
        &Choice {
            cutoff: Some(0.0),
            root: Some(FuncId(hard)),
            ..Choice::default()
        },
    );
    assert_eq!(below.nodes[0].function, Some(FuncId(hard)));
    assert_eq!(below.whole, 120_650);
    assert_eq!(below.share(below.nodes[0].total), 1.0);
    assert_eq!(edge(&below, "hard", "work", &profile), Some((4, 120_600)));
    assert_eq!(edge(&below, "main", "hard", &profile), None);
}

#[test]
fn about_thirty_functions_are_shown_unless_told_otherwise() {
    let mut profile = profile();
    let function = profile.functions[0].clone();
    profile.functions = vec![function; 500];
    let mut contexts = vec![(None, 0, 1, 1)];
    contexts.extend((1..500).map(|index| (Some(0), index, 1, 1_000 + u64::from(index))));
    profile.processes = vec![Process {
        threads: vec![Thread {
            nodes: tree(&contexts),
            ..Thread::default()
        }],
        ..Process::default()
    }];
    let graph = flow_graph(&profile, &Choice::default());
    assert!(
        (28..=32).contains(&graph.nodes.len()),
        "{}",
        graph.nodes.len()
    );
    assert_eq!(graph.hidden_functions, 500 + 1 - graph.nodes.len());
}

#[test]
fn the_same_profile_gives_the_same_picture() {
    let profile = profile();
    let picture = || {
        let scene = draw(
            &profile,
            &flow_graph(&profile, &Choice::default()),
            &Style::default(),
        );
        let (mut text, mut pixels) = (Vec::new(), Vec::new());
        svg::write(&scene, &mut text).unwrap();
        png::write(&scene, 1.0, &mut pixels).unwrap();
        (text, pixels)
    };
    let (text, pixels) = picture();
    assert_eq!((text, pixels.clone()), picture());
    let decoded = tiny_skia::Pixmap::decode_png(&pixels).unwrap();
    let first = decoded.pixels()[0];
    assert!(
        decoded.pixels().iter().any(|pixel| *pixel != first),
        "it is blank"
    );
}

#[test]
fn a_profile_without_times_flows_by_calls() {
    let mut profile = profile();
    profile.meta.timed = false;
    let graph = flow_graph(
        &profile,
        &Choice {
            cutoff: Some(0.0),
            root: None,
            ..Choice::default()
        },
    );
    assert_eq!(edge(&graph, "easy", "work", &profile), Some((10, 10)));
    assert!(draw(&profile, &graph, &Style::default()).width > 0.0);
}

#[test]
fn an_empty_profile_is_an_empty_picture_and_no_panic() {
    let nothing = Profile::default();
    let scene = draw(
        &nothing,
        &flow_graph(&nothing, &Choice::default()),
        &Style::default(),
    );
    let mut text = Vec::new();
    svg::write(&scene, &mut text).unwrap();
    assert!(text.starts_with(b"<svg"));
}
