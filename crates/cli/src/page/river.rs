//! The river for the page: what is shown, where it stands, how wide it flows.
//!
//! The page draws a datum left and one right of each name, in columns of a fixed width, so that another datum needs no other
//! layout. Top down is the same layout with the axes exchanged.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use thalweg_analysis::{Bounds, Choice, FlowEdge, FlowGraph, FlowNode};
use thalweg_formats::graph::{Width, text_width};
use thalweg_graphics::{Arc, Graph, Node, Place, Point, Route, Spacing, layout};

use super::part::Cut;
use super::{ApiError, Query};
use thalweg_model::{FuncId, Profile};

/// Shares in percent at which the time filter can stand: finer near zero, where most functions are.
pub const STEPS: [f64; 33] = [
    0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0,
    5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.5, 20.0,
];

const NAME_SIZE: f64 = 12.5;
const BOX_HEIGHT: f64 = 24.0;
const PADDING: f64 = 9.0;
const MARK: f64 = 15.0;
const COLUMN: f64 = 52.0;
const UNIT: f64 = 4.0;
const MIN_ARC_WIDTH: f64 = 1.0;
const DEFAULT_NAME_LENGTH: usize = 28;

#[derive(Serialize)]
pub struct Response {
    whole: u64,
    timed: bool,
    waits_measured: bool,
    /// In percent: the filter, and where it stands at first.
    cutoff: f64,
    opening: f64,
    steps: &'static [f64],
    hidden_functions: usize,
    passing_functions: usize,
    hidden_edges: usize,
    width: f64,
    height: f64,
    down: bool,
    /// Functions that stand in the box of the start, the first one first.
    folded: Vec<FuncId>,
    boxes: Vec<BoxOf>,
    arcs: Vec<ArcOf>,
}

/// Short names: there may be ten thousand.
#[derive(Serialize)]
struct BoxOf {
    /// -1: the start; -2: threads.
    f: i64,
    label: String,
    x: f64,
    y: f64,
    w: f64,
    h: f64,
    calls: u64,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    hidden: u64,
    /// How far off self and total may be, as for the function in all, and whether there may have been more calls.
    #[serde(skip_serializing_if = "is_zero")]
    self_error: u64,
    #[serde(skip_serializing_if = "is_zero")]
    total_error: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    least: bool,
    waiting: u64,
    rec: u32,
    threads: u64,
    maker: Option<FuncId>,
    /// What of those below it is shown: "" nothing to show, "closed", "some", "all"; and how many callees are not.
    state: &'static str,
    more: u32,
}

#[derive(Serialize)]
struct ArcOf {
    from: usize,
    to: usize,
    calls: u64,
    time: u64,
    width: f64,
    /// There may have been more calls.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    least: bool,
    /// 0 onward, 1 back, 2 to itself, 3 the making of threads.
    kind: u8,
    hidden: bool,
    /// x, y, x, y ...: the arc is level (top down: upright) at each of them; of a kind-1 arc four control points.
    at: Vec<f64>,
}

pub fn response(cut: &Cut, query: &Query) -> Result<Response, ApiError> {
    let profile = cut.profile();
    let functions = profile.functions.len() as u32;
    let set = |name: &str| -> Result<HashSet<FuncId>, ApiError> {
        let numbers = query.numbers(name, functions)?;
        Ok(numbers.into_iter().map(FuncId).collect())
    };
    let contexts = cut.flow(query.weight(profile));
    let brief = query.text("brief") != Some("0") && contexts.is_crowded();
    let mut opening = step_up(contexts.readable_cutoff(brief) * 100.0);
    if profile.meta.weighed_by.is_some() {
        // Most functions have nothing to do with a metric.
        opening = opening.max(STEPS[1]);
    }
    let choice = Choice {
        cutoff: Some(query.percent("cut")?.unwrap_or(opening / 100.0)),
        root: cut.root(),
        brief: Some(brief),
        closed: set("closed")?,
        open: set("open")?,
        threads_apart: true,
        ..Choice::default()
    };
    let width: Width = match query.text("width") {
        None => Width::Linear,
        Some(rule) => rule.parse().map_err(ApiError::bad_query)?,
    };
    let name_length: usize = query.number("names")?.unwrap_or(DEFAULT_NAME_LENGTH);
    let columns: f64 = query.number("columns")?.unwrap_or(2.0);
    let down = query.text("dir") == Some("down");
    let mut graph = contexts.graph(&choice);
    if profile.meta.weighed_by.is_some() {
        // No time, no waiting.
        graph.nodes.iter_mut().for_each(|node| node.waited = 0);
    }
    let folded = match brief {
        true => fold_start(&mut graph, &choice),
        false => Vec::new(),
    };
    let name_length = name_length.clamp(4, 200);
    let columns = columns.clamp(0.0, 2.0);
    let mut labels: Vec<Label> = graph
        .nodes
        .iter()
        .map(|node| Label::for_node(cut, node, name_length, columns))
        .collect();
    if let (Some(&last), Some(start)) = (folded.last(), labels.first_mut()) {
        let name = &profile.functions[last.index()].name;
        let way = if folded.len() > 1 {
            " \u{2192} \u{2026}"
        } else {
            ""
        };
        let text = format!("START{way} \u{2192} {}", shortened(name, name_length));
        *start = Label::new(text.replace(char::is_control, "\u{fffd}"), COLUMN);
    }
    let placed = place(
        &graph,
        &labels,
        &width,
        down,
        &Bounds::from_profile(profile),
    );
    let known = Known::for_cut(cut);
    let boxes = graph.nodes.iter().zip(labels).zip(&placed.places);
    Ok(Response {
        whole: graph.whole,
        timed: graph.timed,
        waits_measured: graph.waits_measured,
        cutoff: graph.cutoff * 100.0,
        opening,
        steps: &STEPS,
        hidden_functions: graph.hidden_functions,
        passing_functions: graph.passing_functions,
        hidden_edges: graph.hidden_edges,
        width: placed.width,
        height: placed.height,
        down,
        folded,
        boxes: boxes
            .map(|((node, label), place)| box_of(node, label, place, &choice, &known))
            .collect(),
        arcs: placed.arcs,
    })
}

/// The next step of the filter that hides at least as much.
fn step_up(percent: f64) -> f64 {
    STEPS
        .iter()
        .copied()
        .find(|&step| step >= percent)
        .unwrap_or(STEPS[STEPS.len() - 1])
}

struct Label {
    text: String,
    width: f64,
}

impl Label {
    fn for_node(cut: &Cut, node: &FlowNode, name_length: usize, columns: f64) -> Label {
        let text = match (node.function, node.maker) {
            (Some(function), _) => {
                label(cut.profile(), function).replace(char::is_control, "\u{fffd}")
            }
            (None, Some(_)) if node.threads == 1 => "1 thread".to_string(),
            (None, Some(_)) => format!("{} threads", node.threads),
            (None, None) => "START".to_string(),
        };
        let text = shortened(&text, name_length);
        let data = if node.function.is_some() {
            columns * COLUMN + MARK
        } else {
            COLUMN
        };
        Label::new(text, data)
    }

    fn new(text: String, data: f64) -> Label {
        let width = (text_width(&text, NAME_SIZE) + 2.0 * PADDING + data).ceil();
        Label { text, width }
    }
}

/// Of its own a function has less than this of the whole where it stands in the box of the start.
const START_SELF_SHARE: f64 = 0.01;

/// Takes the straight chain that many programs begin with into the box of the start: functions with one caller, which is
/// the chain, and one callee, that keep next to nothing. What they keep becomes the start's.
fn fold_start(graph: &mut FlowGraph, choice: &Choice) -> Vec<FuncId> {
    let mut folded = Vec::new();
    if choice.root.is_some() {
        return folded;
    }
    loop {
        let mut onward = graph.edges.iter().filter(|edge| edge.from == 0);
        let (Some(first), None) = (onward.next().copied(), onward.next()) else {
            return folded;
        };
        let next = first.to;
        let node = graph.nodes[next];
        let of_next =
            |end: fn(&FlowEdge) -> usize| graph.edges.iter().filter(move |s| end(s) == next);
        let is_chain = of_next(|s| s.to).count() == 1 && of_next(|s| s.from).count() == 1;
        let function = node.function.filter(|function| {
            !choice.closed.contains(function) && !choice.open.contains(function)
        });
        let keeps_little = graph.share(node.self_time) < START_SELF_SHARE && node.recursion == 0;
        let Some(function) = function.filter(|_| is_chain && keeps_little && !first.made) else {
            return folded;
        };
        folded.push(function);
        let start = &mut graph.nodes[0];
        start.self_time = start.self_time.saturating_add(node.self_time);
        start.hidden = start.hidden.saturating_add(node.hidden);
        start.waited = start.waited.saturating_add(node.waited);
        graph.nodes.remove(next);
        graph.edges.retain(|edge| edge.to != next);
        let moved = |place: usize| match place {
            place if place == next => 0,
            place if place > next => place - 1,
            place => place,
        };
        for edge in &mut graph.edges {
            (edge.from, edge.to) = (moved(edge.from), moved(edge.to));
        }
    }
}

/// Functions of Python that have no name of their own, and the module that tells them apart.
fn label(profile: &Profile, function: FuncId) -> String {
    let function = &profile.functions[function];
    let inside = function
        .name
        .strip_prefix('<')
        .and_then(|n| n.strip_suffix('>'));
    let is_nameless = inside.is_some_and(|name| NAMELESS.contains(&name));
    match profile.modules.get(function.module as usize) {
        Some(module) if is_nameless => format!("{} {}", function.name, module.name),
        _ => function.name.clone(),
    }
}

const NAMELESS: [&str; 6] = [
    "module", "lambda", "listcomp", "setcomp", "dictcomp", "genexpr",
];

/// Loses its middle: both ends of a name tell the most.
pub fn shortened(name: &str, length: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= length {
        return name.to_string();
    }
    let kept = length - 1;
    let tail = kept * 2 / 5;
    let head: String = letters[..kept - tail].iter().collect();
    let tail: String = letters[letters.len() - tail..].iter().collect();
    format!("{head}\u{2026}{tail}")
}

/// What is known of the figures of functions beside the figures.
struct Known {
    bounds: Bounds,
    errors: HashMap<FuncId, (u64, u64)>,
}

impl Known {
    fn for_cut(cut: &Cut) -> Known {
        let rows = cut.flat().iter();
        Known {
            bounds: Bounds::from_profile(cut.profile()),
            errors: rows
                .map(|row| (row.function, (row.error, row.total_error)))
                .collect(),
        }
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn box_of(node: &FlowNode, label: Label, place: &Place, choice: &Choice, known: &Known) -> BoxOf {
    let errors = node
        .function
        .and_then(|function| known.errors.get(&function));
    let (error, total_error) = errors.copied().unwrap_or_default();
    let state = match node.function {
        Some(function) if choice.closed.contains(&function) => "closed",
        Some(function) if choice.open.contains(&function) => "all",
        Some(_) if node.callees == 0 => "",
        Some(_) if node.hidden_callees == 0 => "all",
        Some(_) => "some",
        None => "",
    };
    BoxOf {
        f: match (node.function, node.maker) {
            (Some(function), _) => function.0.into(),
            (None, None) => -1,
            (None, Some(_)) => -2,
        },
        label: label.text,
        x: tenths(place.left),
        y: tenths(place.top),
        w: tenths(place.width),
        h: tenths(place.height),
        calls: node.calls,
        own: node.self_time,
        total: node.total,
        hidden: node.hidden,
        self_error: error,
        total_error,
        least: node.function.is_some_and(|f| known.bounds.function(f)),
        waiting: node.waited,
        rec: node.recursion,
        threads: node.threads,
        maker: node.maker,
        state,
        more: node.hidden_callees,
    }
}

struct Placed {
    places: Vec<Place>,
    arcs: Vec<ArcOf>,
    width: f64,
    height: f64,
}

fn place(graph: &FlowGraph, labels: &[Label], rule: &Width, down: bool, bounds: &Bounds) -> Placed {
    let least = graph
        .edges
        .iter()
        .map(|edge| graph.share(edge.time))
        .filter(|&share| share > 0.0)
        .fold(1.0, f64::min);
    let arc_width = |time: u64| (rule.units(graph.share(time), least) * UNIT).max(MIN_ARC_WIDTH);
    let drawn = Graph {
        nodes: labels
            .iter()
            .map(|label| match down {
                false => Node {
                    width: label.width,
                    height: BOX_HEIGHT,
                },
                true => Node {
                    width: BOX_HEIGHT,
                    height: label.width,
                },
            })
            .collect(),
        arcs: graph
            .edges
            .iter()
            .map(|edge| Arc {
                from: edge.from,
                to: edge.to,
                width: if edge.made {
                    MIN_ARC_WIDTH
                } else {
                    arc_width(edge.time)
                },
            })
            .collect(),
    };
    let spacing = Spacing {
        between_nodes: 12.0,
        between_layers: if down { 64.0 } else { 54.0 },
        margin: 28.0,
    };
    let placed = layout(&drawn, &spacing);
    let turned = |point: &Point| match down {
        false => [tenths(point.x), tenths(point.y)],
        true => [tenths(point.y), tenths(point.x)],
    };
    let arcs = graph
        .edges
        .iter()
        .zip(&placed.routes)
        .zip(&drawn.arcs)
        .map(|((edge, route), arc)| {
            let (kind, at) = match route {
                Route::Onward(points) => (0, points.iter().flat_map(turned).collect()),
                Route::Back(points) => (1, points.iter().flat_map(turned).collect()),
                Route::Own => (2, Vec::new()),
            };
            ArcOf {
                from: edge.from,
                to: edge.to,
                calls: edge.calls,
                time: edge.time,
                width: tenths(arc.width),
                least: bounds.flow(graph, edge),
                kind: if edge.made && kind == 0 { 3 } else { kind },
                hidden: edge.through_hidden,
                at,
            }
        })
        .collect();
    let places = placed.places.iter().map(|place| match down {
        false => *place,
        true => Place {
            left: place.top,
            top: place.left,
            width: place.height,
            height: place.width,
        },
    });
    let (width, height) = match down {
        false => (placed.width, placed.height),
        true => (placed.height, placed.width),
    };
    Placed {
        places: places.collect(),
        arcs,
        width: tenths(width),
        height: tenths(height),
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
