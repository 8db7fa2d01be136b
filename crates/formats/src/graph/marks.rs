//! Where the `rc=` marks of recursion go: beside their arc, clear of every box and of each other.

use super::draw::DATA_SIZE;
use super::font;
use super::scene::{Anchor, At, Colour, Shape};

/// An upright rectangle of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    fn overlap(&self, other: &Area) -> f64 {
        let common = |a: f64, a_size: f64, b: f64, b_size: f64| {
            ((a + a_size).min(b + b_size) - a.max(b)).max(0.0)
        };
        common(self.left, self.width, other.left, other.width)
            * common(self.top, self.height, other.top, other.height)
    }
}

/// The marks so far, and what they keep clear of.
pub struct Marks {
    taken: Vec<Area>,
    shapes: Vec<Shape>,
    colour: Colour,
}

/// Of the size of letters: how far they rise above the line that they stand on, and hang below it.
const RISE: f64 = 0.78;
const FALL: f64 = 0.22;

/// Free room between a mark and its arc.
const DISTANCE: f64 = 3.0;

impl Marks {
    pub fn new(boxes: Vec<Area>, colour: Colour) -> Marks {
        Marks {
            taken: boxes,
            shapes: Vec::new(),
            colour,
        }
    }

    /// Beside the bar above a box: text that ends at `at`, or where that is taken, further up.
    pub fn beside(&mut self, at: At, text: String) {
        let places = (0..6).map(|step| At {
            x: at.x,
            y: at.y - f64::from(step) * DATA_SIZE,
        });
        self.put(places.collect(), Anchor::End, text);
    }

    /// Along the curve, as close to its middle as there is room, above or below it.
    pub fn along(&mut self, curve: [At; 4], text: String) {
        let mut places = Vec::new();
        for step in 0..=16 {
            for side in [-1.0, 1.0] {
                let point = on_curve(&curve, 0.5 + side * f64::from(step) * 0.028);
                for below in [false, true] {
                    places.push(At {
                        x: point.x,
                        y: match below {
                            false => point.y - DISTANCE,
                            true => point.y + DISTANCE + DATA_SIZE * RISE,
                        },
                    });
                }
            }
        }
        self.put(places, Anchor::Middle, text);
    }

    /// At the first place that is free, else where least is covered.
    fn put(&mut self, places: Vec<At>, anchor: Anchor, text: String) {
        let width = font::width(&text, DATA_SIZE);
        let area = |at: &At| Area {
            left: match anchor {
                Anchor::Start => at.x,
                Anchor::Middle => at.x - width / 2.0,
                Anchor::End => at.x - width,
            },
            top: at.y - DATA_SIZE * RISE,
            width,
            height: DATA_SIZE * (RISE + FALL),
        };
        let mut best: Option<(f64, At)> = None;
        for at in places {
            let covered: f64 = self.taken.iter().map(|box_| box_.overlap(&area(&at))).sum();
            if best.as_ref().is_none_or(|(least, _)| covered < *least) {
                best = Some((covered, at));
            }
            if covered == 0.0 {
                break;
            }
        }
        let Some((_, at)) = best else { return };
        self.taken.push(area(&at));
        self.shapes.push(Shape::Text {
            at,
            size: DATA_SIZE,
            colour: self.colour,
            anchor,
            bold: false,
            text,
        });
    }

    pub fn shapes(self) -> Vec<Shape> {
        self.shapes
    }
}

fn on_curve(curve: &[At; 4], t: f64) -> At {
    let part = |of: fn(&At) -> f64| {
        let rest = 1.0 - t;
        let weights = [
            rest * rest * rest,
            3.0 * rest * rest * t,
            3.0 * rest * t * t,
            t * t * t,
        ];
        curve
            .iter()
            .zip(weights)
            .map(|(point, weight)| of(point) * weight)
            .sum()
    };
    At {
        x: part(|at| at.x),
        y: part(|at| at.y),
    }
}
