//! From a river to a scene: boxes for functions, arcs as wide as the time that flows through them.
//!
//! A box is shaded by the function's own share: from paper to red. Arcs are water, greener where
//! some of the calls came through functions that are not shown. Arcs that close a cycle run below
//! the boxes, dashed, and carry `rc=` with the number of calls; a function that calls itself has a
//! curved bar above it.

use thalweg_graphics::{Arc, Graph, Node, Place, Point, Route, Spacing, layout};
use thalweg_model::{Metric, Profile, Unit};

use super::font;
use super::marks::{Area, Marks};
use super::scene::{Anchor, At, Colour, Scene, Shape, Step};
use super::width::Width;
use crate::figures::grouped;
use thalweg_analysis::{Bounds, FlowEdge, FlowGraph, FlowNode};

/// How it is to look.
#[derive(Clone, Debug)]
pub struct Style {
    pub width: Width,
    /// Pixels per unit of an arc's width.
    pub unit: f64,
    /// Names that are longer lose their middle.
    pub name_length: usize,
    pub title: String,
}

impl Default for Style {
    fn default() -> Style {
        Style {
            width: Width::default(),
            unit: 4.0,
            name_length: 32,
            title: String::new(),
        }
    }
}

const NAME_SIZE: f64 = 13.0;
pub const DATA_SIZE: f64 = 10.5;
const PADDING: f64 = 9.0;
const BOX_HEIGHT: f64 = 38.0;
const HEADER: f64 = 46.0;
const MIN_ARC_WIDTH: f64 = 1.0;

const PAPER: Colour = Colour(255, 255, 255);
const INK: Colour = Colour(28, 36, 48);
const FAINT_INK: Colour = Colour(92, 104, 120);
const SHALLOW: Colour = Colour(158, 202, 225);
const DEEP: Colour = Colour(33, 102, 172);
const SHALLOW_THROUGH_HIDDEN: Colour = Colour(170, 214, 205);
const DEEP_THROUGH_HIDDEN: Colour = Colour(44, 127, 123);
const RECURSION: Colour = Colour(140, 81, 170);
const COLD: Colour = Colour(246, 248, 250);
const WARM: Colour = Colour(254, 217, 118);
const HOT: Colour = Colour(227, 74, 51);
const BORDER: Colour = Colour(150, 162, 176);

pub fn draw(profile: &Profile, flow: &FlowGraph, style: &Style) -> Scene {
    let bounds = Bounds::from_profile(profile);
    let labels: Vec<Label> = flow
        .nodes
        .iter()
        .map(|node| Label::for_node(profile, &bounds, flow, node, style))
        .collect();
    let graph = graph(flow, style, |node| labels[node].width);
    let layout = layout(&graph, &Spacing::default());
    let down = |point: &Point| At {
        x: point.x,
        y: point.y + HEADER,
    };

    let mut shapes = Vec::new();
    // Light arcs lie on top of heavy ones, and boxes on top of all.
    let mut order: Vec<usize> = (0..flow.edges.len()).collect();
    order.sort_by(|&a, &b| {
        let width = |arc: usize| graph.arcs[arc].width;
        width(b).total_cmp(&width(a)).then(a.cmp(&b))
    });
    let calls = |edge: &FlowEdge| at_least(bounds.flow(flow, edge), grouped(edge.calls));
    let mut loops = Vec::new();
    let mut backs = Vec::new();
    for index in order {
        let edge = &flow.edges[index];
        let share = flow.share(edge.time);
        let hint = format!(
            "{} \u{2192} {}: {} calls, {}{}",
            labels[edge.from].full_name,
            labels[edge.to].full_name,
            calls(edge),
            percent(share),
            if edge.through_hidden {
                ", partly through functions that are not shown"
            } else {
                ""
            }
        );
        match &layout.routes[index] {
            Route::Onward(points) => shapes.push(Shape::Stroke {
                from: down(&points[0]),
                steps: level_curve(points, down),
                width: graph.arcs[index].width,
                colour: match edge.through_hidden {
                    true => SHALLOW_THROUGH_HIDDEN.mix(DEEP_THROUGH_HIDDEN, share.sqrt()),
                    false => SHALLOW.mix(DEEP, share.sqrt()),
                },
                opacity: 0.72,
                dashed: edge.through_hidden && graph.arcs[index].width < 3.0,
                hint,
            }),
            Route::Back(points) => {
                let [start, first, second, end] = points.each_ref().map(down);
                shapes.push(Shape::Stroke {
                    from: start,
                    steps: vec![Step::Curve(first, second, end)],
                    width: 1.4,
                    colour: RECURSION,
                    opacity: 0.8,
                    dashed: true,
                    hint,
                });
                backs.push(([start, first, second, end], calls(edge)));
            }
            Route::Own => {
                let place = &layout.places[edge.from];
                let (bar, at) = own_loop(place);
                shapes.push(Shape::Stroke {
                    from: At {
                        x: bar[0].x,
                        y: bar[0].y + HEADER,
                    },
                    steps: vec![Step::Curve(down(&bar[1]), down(&bar[2]), down(&bar[3]))],
                    width: 1.6,
                    colour: RECURSION,
                    opacity: 0.9,
                    dashed: false,
                    hint,
                });
                loops.push((down(&at), calls(edge)));
            }
        }
    }
    for ((place, label), node) in layout.places.iter().zip(&labels).zip(&flow.nodes) {
        label.draw(place, flow.share(node.self_time), &mut shapes);
    }
    let boxes = layout.places.iter().map(|place| Area {
        left: place.left,
        top: place.top + HEADER,
        width: place.width,
        height: place.height,
    });
    let mut marks = Marks::new(boxes.collect(), RECURSION);
    let mark = |calls: String| format!("rc={calls}");
    for (at, calls) in loops {
        marks.beside(at, mark(calls));
    }
    for (curve, calls) in backs {
        marks.along(curve, mark(calls));
    }
    shapes.extend(marks.shapes());
    header(flow, style, &mut shapes);
    let caption = shapes
        .iter()
        .map(|shape| match shape {
            Shape::Text {
                at,
                size,
                text,
                anchor: Anchor::Start,
                ..
            } => at.x + font::width(text, *size),
            _ => 0.0,
        })
        .fold(0.0, f64::max);
    Scene {
        title: style.title.clone(),
        width: layout.width.max(caption + Spacing::default().margin).ceil(),
        height: (layout.height + HEADER).ceil(),
        background: PAPER,
        shapes,
    }
}

/// The river as boxes and arcs that have a size.
pub fn graph(flow: &FlowGraph, style: &Style, box_width: impl Fn(usize) -> f64) -> Graph {
    let shares = flow.edges.iter().map(|edge| flow.share(edge.time));
    let least = shares.filter(|&share| share > 0.0).fold(1.0, f64::min);
    Graph {
        nodes: (0..flow.nodes.len())
            .map(|node| Node {
                width: box_width(node),
                height: BOX_HEIGHT,
            })
            .collect(),
        arcs: flow
            .edges
            .iter()
            .map(|edge| Arc {
                from: edge.from,
                to: edge.to,
                width: (style.width.units(flow.share(edge.time), least) * style.unit)
                    .max(MIN_ARC_WIDTH),
            })
            .collect(),
    }
}

/// What stands in a box.
struct Label {
    full_name: String,
    name: String,
    data: String,
    width: f64,
}

impl Label {
    fn for_node(
        profile: &Profile,
        bounds: &Bounds,
        flow: &FlowGraph,
        node: &FlowNode,
        style: &Style,
    ) -> Label {
        let full_name = match node.function {
            Some(function) => profile.functions[function]
                .name
                .replace(char::is_control, "\u{fffd}"),
            None => "START".to_string(),
        };
        let room = font::width("n", NAME_SIZE) * style.name_length as f64;
        let name = font::cut(&full_name, NAME_SIZE, room);
        let data = match node.function {
            None if flow.timed => match profile.meta.weighed_by.map(Metric::unit) {
                None => time(node.total),
                Some(Unit::Bytes) => format!("{} bytes", grouped(node.total)),
                Some(_) => grouped(node.total),
            },
            None => format!("{} calls", grouped(node.total)),
            Some(function) => format!(
                "{}   self {}   {}\u{d7}",
                percent(flow.share(node.total)),
                percent(flow.share(node.self_time)),
                at_least(bounds.function(function), short_count(node.calls))
            ),
        };
        let text = font::width(&name, NAME_SIZE).max(font::width(&data, DATA_SIZE));
        Label {
            full_name,
            name,
            data,
            width: (text + 2.0 * PADDING).ceil(),
        }
    }

    fn draw(&self, place: &Place, own_share: f64, shapes: &mut Vec<Shape>) {
        let fill = match own_share {
            share if share < 0.15 => COLD.mix(WARM, share / 0.15),
            share => WARM.mix(HOT, (share - 0.15) / 0.45),
        };
        let (left, top) = (place.left, place.top + HEADER);
        shapes.push(Shape::Box {
            at: At { x: left, y: top },
            width: place.width,
            height: place.height,
            radius: 5.0,
            fill,
            border: BORDER.mix(INK, own_share),
            hint: format!("{}: {}", self.full_name, self.data),
        });
        let middle = top + place.height / 2.0;
        shapes.push(Shape::Text {
            at: At {
                x: left + PADDING,
                y: middle - 2.5,
            },
            size: NAME_SIZE,
            colour: INK,
            anchor: Anchor::Start,
            bold: true,
            text: self.name.clone(),
        });
        shapes.push(Shape::Text {
            at: At {
                x: left + PADDING,
                y: middle + 11.5,
            },
            size: DATA_SIZE,
            colour: FAINT_INK.mix(INK, own_share * 2.0),
            anchor: Anchor::Start,
            bold: false,
            text: self.data.clone(),
        });
    }
}

/// A line through the points that is level at each of them.
fn level_curve(points: &[Point], down: impl Fn(&Point) -> At) -> Vec<Step> {
    points
        .windows(2)
        .map(|pair| {
            let (from, to) = (down(&pair[0]), down(&pair[1]));
            if from.y == to.y {
                return Step::Line(to);
            }
            let middle = (from.x + to.x) / 2.0;
            Step::Curve(
                At {
                    x: middle,
                    y: from.y,
                },
                At { x: middle, y: to.y },
                to,
            )
        })
        .collect()
}

/// The curved bar above a function that calls itself, and where its mark goes.
fn own_loop(place: &Place) -> ([Point; 4], Point) {
    let (from, to) = (place.right() - 26.0, place.right() - 6.0);
    let top = place.top;
    let bar = [
        Point { x: to, y: top },
        Point {
            x: to + 4.0,
            y: top - 12.0,
        },
        Point {
            x: from - 4.0,
            y: top - 12.0,
        },
        Point { x: from, y: top },
    ];
    (
        bar,
        Point {
            x: from - 6.0,
            y: top - 2.5,
        },
    )
}

fn header(flow: &FlowGraph, style: &Style, shapes: &mut Vec<Shape>) {
    let left = Spacing::default().margin;
    let line = |y: f64, size: f64, colour: Colour, bold: bool, text: String| Shape::Text {
        at: At { x: left, y },
        size,
        colour,
        anchor: Anchor::Start,
        bold,
        text,
    };
    let title = font::cut(&style.title, 15.0, 900.0);
    shapes.push(line(24.0, 15.0, INK, true, title));
    let shown = flow
        .nodes
        .iter()
        .filter(|node| node.function.is_some())
        .count();
    let what = if flow.timed { "time" } else { "calls" };
    let mut text = format!("{} functions", grouped(shown as u64));
    if flow.hidden_functions > 0 {
        let least = match flow.cutoff > 0.0 {
            true => percent(flow.cutoff),
            false => "what was asked for".to_string(),
        };
        text += &format!(
            "; {} below {least} are part of their callers",
            grouped(flow.hidden_functions as u64),
        );
    }
    if flow.passing_functions > 0 {
        text += &format!(
            "; so are {} that only pass time on (greener arcs)",
            grouped(flow.passing_functions as u64)
        );
    }
    if flow.hidden_edges > 0 {
        text += &format!(
            "; {} thin arcs are left out",
            grouped(flow.hidden_edges as u64)
        );
    }
    text +=
        &format!(". Arcs are as wide as their {what}, boxes as hot as the function's own share.");
    shapes.push(line(41.0, DATA_SIZE, FAINT_INK, false, text));
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        p if p >= 99.95 => "100%".to_string(),
        p if p >= 0.095 => format!("{p:.1}%"),
        p if p >= 0.0095 => format!("{p:.2}%"),
        p if p > 0.0 => "<0.01%".to_string(),
        _ => "0%".to_string(),
    }
}

fn time(ns: u64) -> String {
    match ns as f64 {
        ns if ns >= 1e9 => format!("{:.2} s", ns / 1e9),
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.2} us", ns / 1e3),
        ns => format!("{ns} ns"),
    }
}

/// How counts that are lower bounds are written.
fn at_least(is_bound: bool, text: String) -> String {
    match is_bound {
        true => format!(">= {text}"),
        false => text,
    }
}

fn short_count(count: u64) -> String {
    match count as f64 {
        n if n >= 1e10 => format!("{:.0}G", n / 1e9),
        n if n >= 1e9 => format!("{:.1}G", n / 1e9),
        n if n >= 1e7 => format!("{:.0}M", n / 1e6),
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.0}k", n / 1e3),
        _ => count.to_string(),
    }
}
