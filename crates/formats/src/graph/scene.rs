//! A picture as a list of shapes: what SVG and PNG both draw, and nothing that only one of them
//! can.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

impl Colour {
    pub fn mix(self, other: Colour, part: f64) -> Colour {
        let part = part.clamp(0.0, 1.0);
        let mix =
            |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part).round() as u8;
        Colour(
            mix(self.0, other.0),
            mix(self.1, other.1),
            mix(self.2, other.2),
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct At {
    pub x: f64,
    pub y: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    Line(At),
    Curve(At, At, At),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Stroke {
        from: At,
        steps: Vec<Step>,
        width: f64,
        colour: Colour,
        opacity: f64,
        dashed: bool,
        hint: String,
    },
    Box {
        at: At,
        width: f64,
        height: f64,
        radius: f64,
        fill: Colour,
        border: Colour,
        hint: String,
    },
    Text {
        at: At,
        size: f64,
        colour: Colour,
        anchor: Anchor,
        bold: bool,
        text: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    pub title: String,
    pub width: f64,
    pub height: f64,
    pub background: Colour,
    /// From back to front.
    pub shapes: Vec<Shape>,
}
