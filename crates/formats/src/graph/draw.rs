//! From a river to a scene: boxes for functions, arcs as wide as the time that flows through them.
//!
//! A box is shaded by the function's own share: from paper to red. Arcs are water, greener where some of the calls came through
//! functions that are not shown. Arcs that close a cycle run below the boxes, dashed, and carry `rc=` with the number of calls;
//! a function that calls itself has a curved bar above it.

use thalweg_graphics::{Arc, Graph, Node, Place, Point, Route, Spacing, layout};
use thalweg_model::{Metric, Profile, Unit};

use super::font;
use super::marks::{Area, Marks};
use super::river::{Bank, River};
use super::scene::{Anchor, At, Colour, Scene, Shape, Step};
use super::width::Width;

/// How it is to look.
#[derive(Clone, Debug)]
pub struct Look {
    pub width: Width,
    /// Pixels per unit of an arc's width.
    pub unit: f64,
    /// Names that are longer lose their middle.
    pub name_length: usize,
    pub title: String,
}

impl Default for Look {
    fn default() -> Look {
        Look {
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
const THINNEST: f64 = 1.0;

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

pub fn draw(profile: &Profile, river: &River, look: &Look) -> Scene {
    let labels: Vec<Label> = river
        .banks
        .iter()
        .map(|bank| Label::of(profile, river, bank, look))
        .collect();
    let graph = graph(river, look, |bank| labels[bank].width);
    let layout = layout(&graph, &Spacing::default());
    let down = |point: &Point| At {
        x: point.x,
        y: point.y + HEADER,
    };

    let mut shapes = Vec::new();
    // Light arcs lie on top of heavy ones, and boxes on top of all.
    let mut order: Vec<usize> = (0..river.streams.len()).collect();
    order.sort_by(|&a, &b| {
        let width = |arc: usize| graph.arcs[arc].width;
        width(b).total_cmp(&width(a)).then(a.cmp(&b))
    });
    let mut loops = Vec::new();
    let mut backs = Vec::new();
    for index in order {
        let stream = &river.streams[index];
        let share = river.share(stream.time);
        let hint = format!(
            "{} \u{2192} {}: {} calls, {}{}",
            labels[stream.from].full_name,
            labels[stream.to].full_name,
            grouped(stream.calls),
            percent(share),
            if stream.through_hidden {
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
                colour: match stream.through_hidden {
                    true => SHALLOW_THROUGH_HIDDEN.mix(DEEP_THROUGH_HIDDEN, share.sqrt()),
                    false => SHALLOW.mix(DEEP, share.sqrt()),
                },
                opacity: 0.72,
                dashed: stream.through_hidden && graph.arcs[index].width < 3.0,
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
                backs.push(([start, first, second, end], stream.calls));
            }
            Route::Own => {
                let place = &layout.places[stream.from];
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
                loops.push((down(&at), stream.calls));
            }
        }
    }
    for ((place, label), bank) in layout.places.iter().zip(&labels).zip(&river.banks) {
        label.draw(place, river.share(bank.own), &mut shapes);
    }
    let boxes = layout.places.iter().map(|place| Area {
        left: place.left,
        top: place.top + HEADER,
        width: place.width,
        height: place.height,
    });
    let mut marks = Marks::new(boxes.collect(), RECURSION);
    let mark = |calls: u64| format!("rc={}", grouped(calls));
    for (at, calls) in loops {
        marks.beside(at, mark(calls));
    }
    for (curve, calls) in backs {
        marks.along(curve, mark(calls));
    }
    shapes.extend(marks.shapes());
    header(river, look, &mut shapes);
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
        title: look.title.clone(),
        width: layout.width.max(caption + Spacing::default().margin).ceil(),
        height: (layout.height + HEADER).ceil(),
        background: PAPER,
        shapes,
    }
}

/// The river as boxes and arcs that have a size.
pub fn graph(river: &River, look: &Look, box_width: impl Fn(usize) -> f64) -> Graph {
    let shares = river.streams.iter().map(|stream| river.share(stream.time));
    let least = shares.filter(|&share| share > 0.0).fold(1.0, f64::min);
    Graph {
        nodes: (0..river.banks.len())
            .map(|bank| Node {
                width: box_width(bank),
                height: BOX_HEIGHT,
            })
            .collect(),
        arcs: river
            .streams
            .iter()
            .map(|stream| Arc {
                from: stream.from,
                to: stream.to,
                width: (look.width.units(river.share(stream.time), least) * look.unit)
                    .max(THINNEST),
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
    fn of(profile: &Profile, river: &River, bank: &Bank, look: &Look) -> Label {
        let full_name = match bank.function {
            Some(function) => profile.functions[function as usize]
                .name
                .replace(char::is_control, "\u{fffd}"),
            None => "START".to_string(),
        };
        let room = font::width("n", NAME_SIZE) * look.name_length as f64;
        let name = font::cut(&full_name, NAME_SIZE, room);
        let data = match bank.function {
            None if river.timed => match profile.meta.weighed_by.map(Metric::unit) {
                None => time(bank.total),
                Some(Unit::Bytes) => format!("{} bytes", grouped(bank.total)),
                Some(_) => grouped(bank.total),
            },
            None => format!("{} calls", grouped(bank.total)),
            Some(_) => format!(
                "{}   own {}   {}\u{d7}",
                percent(river.share(bank.total)),
                percent(river.share(bank.own)),
                short_count(bank.calls)
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

fn header(river: &River, look: &Look, shapes: &mut Vec<Shape>) {
    let left = Spacing::default().margin;
    let line = |y: f64, size: f64, colour: Colour, bold: bool, text: String| Shape::Text {
        at: At { x: left, y },
        size,
        colour,
        anchor: Anchor::Start,
        bold,
        text,
    };
    let title = font::cut(&look.title, 15.0, 900.0);
    shapes.push(line(24.0, 15.0, INK, true, title));
    let shown = river
        .banks
        .iter()
        .filter(|bank| bank.function.is_some())
        .count();
    let what = if river.timed { "time" } else { "calls" };
    let mut text = format!("{} functions", grouped(shown as u64));
    if river.hidden_functions > 0 {
        let least = match river.cutoff > 0.0 {
            true => percent(river.cutoff),
            false => "what was asked for".to_string(),
        };
        text += &format!(
            "; {} below {least} are part of their callers",
            grouped(river.hidden_functions as u64),
        );
    }
    if river.passing_functions > 0 {
        text += &format!(
            "; so are {} that only pass time on (greener arcs)",
            grouped(river.passing_functions as u64)
        );
    }
    if river.hidden_streams > 0 {
        text += &format!(
            "; {} thin arcs are left out",
            grouped(river.hidden_streams as u64)
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

fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
