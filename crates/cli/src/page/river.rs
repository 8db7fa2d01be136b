//! The river for the page: what is shown, where it stands, how wide it flows.
//!
//! The page draws a datum left and one right of each name, in columns of a fixed width, so that another datum needs no other
//! layout. Top down is the same layout with the axes exchanged.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use thalweg_analysis::{Bounds, Caller};
use thalweg_formats::graph::{Bank, Choice, River, Stream, Width, text_width};
use thalweg_graphics::{Arc, Graph, Node, Place, Point, Route, Spacing, layout};

use super::part::Cut;
use super::{Question, Refusal};

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
const THINNEST: f64 = 1.0;
const USUAL_NAME: usize = 28;

#[derive(Serialize)]
pub struct Answer {
    whole: u64,
    timed: bool,
    waits_measured: bool,
    /// In percent: the filter, and where it stands at first.
    cutoff: f64,
    opening: f64,
    steps: &'static [f64],
    hidden_functions: usize,
    passing_functions: usize,
    hidden_streams: usize,
    width: f64,
    height: f64,
    down: bool,
    /// Functions that stand in the box of the start, the first one first.
    folded: Vec<u32>,
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
    maker: Option<u32>,
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

pub fn answer(cut: &Cut, question: &Question) -> Result<Answer, Refusal> {
    let profile = cut.profile();
    let functions = profile.functions.len() as u32;
    let set = |name: &str| -> Result<HashSet<u32>, Refusal> {
        Ok(question.numbers(name, functions)?.into_iter().collect())
    };
    let basin = cut.basin(question.weight(profile));
    let brief = question.text("brief") != Some("0") && basin.is_crowded();
    let mut opening = step_up(basin.readable_cutoff(brief) * 100.0);
    if profile.meta.weighed_by.is_some() {
        // Most functions have nothing to do with a metric.
        opening = opening.max(STEPS[1]);
    }
    let choice = Choice {
        cutoff: Some(question.percent("cut")?.unwrap_or(opening / 100.0)),
        root: cut.root(),
        brief: Some(brief),
        closed: set("closed")?,
        open: set("open")?,
        threads_apart: true,
        ..Choice::default()
    };
    let width: Width = match question.text("width") {
        None => Width::Linear,
        Some(rule) => rule.parse().map_err(Refusal::question)?,
    };
    let name_length: usize = question.number("names")?.unwrap_or(USUAL_NAME);
    let columns: f64 = question.number("columns")?.unwrap_or(2.0);
    let down = question.text("dir") == Some("down");
    let mut river = basin.river(&choice);
    if profile.meta.weighed_by.is_some() {
        // No time, no waiting.
        river.banks.iter_mut().for_each(|bank| bank.waited = 0);
    }
    let folded = match brief {
        true => fold_start(&mut river, &choice),
        false => Vec::new(),
    };
    let name_length = name_length.clamp(4, 200);
    let columns = columns.clamp(0.0, 2.0);
    let mut labels: Vec<Label> = river
        .banks
        .iter()
        .map(|bank| Label::of(cut, bank, name_length, columns))
        .collect();
    if let (Some(&last), Some(start)) = (folded.last(), labels.first_mut()) {
        let name = &profile.functions[last as usize].name;
        let way = if folded.len() > 1 {
            " \u{2192} \u{2026}"
        } else {
            ""
        };
        let text = format!("START{way} \u{2192} {}", shortened(name, name_length));
        *start = Label::new(text.replace(char::is_control, "\u{fffd}"), COLUMN);
    }
    let placed = place(&river, &labels, &width, down, &Bounds::of(profile));
    let known = Known::of(cut);
    let boxes = river.banks.iter().zip(labels).zip(&placed.places);
    Ok(Answer {
        whole: river.whole,
        timed: river.timed,
        waits_measured: river.waits_measured,
        cutoff: river.cutoff * 100.0,
        opening,
        steps: &STEPS,
        hidden_functions: river.hidden_functions,
        passing_functions: river.passing_functions,
        hidden_streams: river.hidden_streams,
        width: placed.width,
        height: placed.height,
        down,
        folded,
        boxes: boxes
            .map(|((bank, label), place)| box_of(bank, label, place, &choice, &known))
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
    fn of(cut: &Cut, bank: &Bank, name_length: usize, columns: f64) -> Label {
        let text = match (bank.function, bank.maker) {
            (Some(function), _) => cut.profile().functions[function as usize]
                .name
                .replace(char::is_control, "\u{fffd}"),
            (None, Some(_)) if bank.threads == 1 => "1 thread".to_string(),
            (None, Some(_)) => format!("{} threads", bank.threads),
            (None, None) => "START".to_string(),
        };
        let text = shortened(&text, name_length);
        let data = if bank.function.is_some() {
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
const KEPT_IN_START: f64 = 0.01;

/// Takes the straight chain that many programs begin with into the box of the start: functions with one caller, which is
/// the chain, and one callee, that keep next to nothing. What they keep becomes the start's.
fn fold_start(river: &mut River, choice: &Choice) -> Vec<u32> {
    let mut folded = Vec::new();
    if choice.root.is_some() {
        return folded;
    }
    loop {
        let mut onward = river.streams.iter().filter(|stream| stream.from == 0);
        let (Some(first), None) = (onward.next().copied(), onward.next()) else {
            return folded;
        };
        let next = first.to;
        let bank = river.banks[next];
        let of_next =
            |end: fn(&Stream) -> usize| river.streams.iter().filter(move |s| end(s) == next);
        let is_chain = of_next(|s| s.to).count() == 1 && of_next(|s| s.from).count() == 1;
        let function = bank.function.filter(|function| {
            !choice.closed.contains(function) && !choice.open.contains(function)
        });
        let keeps_little = river.share(bank.own) < KEPT_IN_START && bank.recursion == 0;
        let Some(function) = function.filter(|_| is_chain && keeps_little && !first.made) else {
            return folded;
        };
        folded.push(function);
        let start = &mut river.banks[0];
        start.own = start.own.saturating_add(bank.own);
        start.hidden = start.hidden.saturating_add(bank.hidden);
        start.waited = start.waited.saturating_add(bank.waited);
        river.banks.remove(next);
        river.streams.retain(|stream| stream.to != next);
        let moved = |place: usize| match place {
            place if place == next => 0,
            place if place > next => place - 1,
            place => place,
        };
        for stream in &mut river.streams {
            (stream.from, stream.to) = (moved(stream.from), moved(stream.to));
        }
    }
}

/// Loses its middle: both ends of a name tell the most.
fn shortened(name: &str, length: usize) -> String {
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
    errors: HashMap<u32, (u64, u64)>,
}

impl Known {
    fn of(cut: &Cut) -> Known {
        let rows = cut.flat().iter();
        Known {
            bounds: Bounds::of(cut.profile()),
            errors: rows
                .map(|row| (row.function, (row.error, row.cum_error)))
                .collect(),
        }
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn box_of(bank: &Bank, label: Label, place: &Place, choice: &Choice, known: &Known) -> BoxOf {
    let errors = bank
        .function
        .and_then(|function| known.errors.get(&function));
    let (error, total_error) = errors.copied().unwrap_or_default();
    let state = match bank.function {
        Some(function) if choice.closed.contains(&function) => "closed",
        Some(function) if choice.open.contains(&function) => "all",
        Some(_) if bank.callees == 0 => "",
        Some(_) if bank.hidden_callees == 0 => "all",
        Some(_) => "some",
        None => "",
    };
    BoxOf {
        f: match (bank.function, bank.maker) {
            (Some(function), _) => function.into(),
            (None, None) => -1,
            (None, Some(_)) => -2,
        },
        label: label.text,
        x: tenths(place.left),
        y: tenths(place.top),
        w: tenths(place.width),
        h: tenths(place.height),
        calls: bank.calls,
        own: bank.own,
        total: bank.total,
        hidden: bank.hidden,
        self_error: error,
        total_error,
        least: bank.function.is_some_and(|f| known.bounds.function(f)),
        waiting: bank.waited,
        rec: bank.recursion,
        threads: bank.threads,
        maker: bank.maker,
        state,
        more: bank.hidden_callees,
    }
}

struct Placed {
    places: Vec<Place>,
    arcs: Vec<ArcOf>,
    width: f64,
    height: f64,
}

fn place(river: &River, labels: &[Label], rule: &Width, down: bool, bounds: &Bounds) -> Placed {
    let is_bound = |stream: &Stream| {
        let of = |bank: usize| river.banks[bank].function;
        let caller = of(stream.from).map_or(Caller::Outside, Caller::Function);
        let is_call = of(stream.to).is_some_and(|callee| bounds.call(caller, callee));
        is_call || stream.through_hidden && bounds.any()
    };
    let least = river
        .streams
        .iter()
        .map(|stream| river.share(stream.time))
        .filter(|&share| share > 0.0)
        .fold(1.0, f64::min);
    let arc_width = |time: u64| (rule.units(river.share(time), least) * UNIT).max(THINNEST);
    let graph = Graph {
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
        arcs: river
            .streams
            .iter()
            .map(|stream| Arc {
                from: stream.from,
                to: stream.to,
                width: if stream.made {
                    THINNEST
                } else {
                    arc_width(stream.time)
                },
            })
            .collect(),
    };
    let spacing = Spacing {
        between_nodes: 12.0,
        between_layers: if down { 64.0 } else { 54.0 },
        margin: 28.0,
    };
    let placed = layout(&graph, &spacing);
    let turned = |point: &Point| match down {
        false => [tenths(point.x), tenths(point.y)],
        true => [tenths(point.y), tenths(point.x)],
    };
    let arcs = river
        .streams
        .iter()
        .zip(&placed.routes)
        .zip(&graph.arcs)
        .map(|((stream, route), arc)| {
            let (kind, at) = match route {
                Route::Onward(points) => (0, points.iter().flat_map(turned).collect()),
                Route::Back(points) => (1, points.iter().flat_map(turned).collect()),
                Route::Own => (2, Vec::new()),
            };
            ArcOf {
                from: stream.from,
                to: stream.to,
                calls: stream.calls,
                time: stream.time,
                width: tenths(arc.width),
                least: is_bound(stream),
                kind: if stream.made && kind == 0 { 3 } else { kind },
                hidden: stream.through_hidden,
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
