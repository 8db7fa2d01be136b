//! A scene as pixels.

use std::io::{self, Write};

use tiny_skia::{
    FillRule, LineCap, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash, Transform,
};
use ttf_parser::OutlineBuilder;

use super::font;
use super::scene::{Anchor, At, Colour, Scene, Shape, Step};
use super::svg::dash_lengths;

/// Four bytes each: 400 MB.
const MAX_PIXELS: f64 = 1e8;

#[derive(Debug, thiserror::Error)]
pub enum PngError {
    #[error(
        "the picture would be {width:.0} x {height:.0} pixels, too large for PNG: \
         write SVG, or show fewer functions with a higher --cutoff"
    )]
    TooLarge { width: f64, height: f64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// `scale`: pixels per unit of the scene.
pub fn write(scene: &Scene, scale: f64, mut out: impl Write) -> Result<(), PngError> {
    let (width, height) = ((scene.width * scale).ceil(), (scene.height * scale).ceil());
    let too_large = || PngError::TooLarge { width, height };
    if width * height > MAX_PIXELS {
        return Err(too_large());
    }
    let mut pixels = Pixmap::new(width as u32, height as u32).ok_or_else(too_large)?;
    pixels.fill(paint(scene.background, 1.0));
    let transform = Transform::from_scale(scale as f32, scale as f32);
    for shape in &scene.shapes {
        draw(shape, transform, &mut pixels);
    }
    let bytes = pixels.encode_png().map_err(io::Error::other)?;
    out.write_all(&bytes)?;
    Ok(out.flush()?)
}

fn paint(Colour(red, green, blue): Colour, opacity: f64) -> tiny_skia::Color {
    tiny_skia::Color::from_rgba8(red, green, blue, (opacity * 255.0).round() as u8)
}

fn brush(colour: Colour, opacity: f64) -> Paint<'static> {
    let mut brush = Paint::default();
    brush.set_color(paint(colour, opacity));
    brush
}

fn draw(shape: &Shape, transform: Transform, pixels: &mut Pixmap) {
    match shape {
        Shape::Stroke {
            from,
            steps,
            width,
            colour,
            opacity,
            dashed,
            hint: _,
        } => {
            let Some(path) = curve(*from, steps) else {
                return;
            };
            let dash = dashed.then(|| dash_lengths(*width).map(|length| length as f32).to_vec());
            let stroke = Stroke {
                width: *width as f32,
                line_cap: LineCap::Butt,
                dash: dash.and_then(|dash| StrokeDash::new(dash, 0.0)),
                ..Stroke::default()
            };
            pixels.stroke_path(&path, &brush(*colour, *opacity), &stroke, transform, None);
        }
        Shape::Box {
            at,
            width,
            height,
            radius,
            fill,
            border,
            hint: _,
        } => {
            let Some(path) = rounded(*at, *width, *height, *radius) else {
                return;
            };
            let rule = FillRule::Winding;
            pixels.fill_path(&path, &brush(*fill, 1.0), rule, transform, None);
            let line = Stroke::default();
            pixels.stroke_path(&path, &brush(*border, 1.0), &line, transform, None);
        }
        Shape::Text {
            at,
            size,
            colour,
            anchor,
            bold: _,
            text,
        } => {
            let width = font::width(text, *size);
            let left = match anchor {
                Anchor::Start => at.x,
                Anchor::Middle => at.x - width / 2.0,
                Anchor::End => at.x - width,
            };
            let mut letters = Letters::default();
            font::outlines(text, *size, |x, scale, outline| {
                letters.origin = (left + x, at.y);
                letters.scale = scale;
                outline(&mut letters);
            });
            if let Some(path) = letters.path.finish() {
                let rule = FillRule::Winding;
                pixels.fill_path(&path, &brush(*colour, 1.0), rule, transform, None);
            }
        }
    }
}

fn curve(from: At, steps: &[Step]) -> Option<Path> {
    let mut path = PathBuilder::new();
    path.move_to(from.x as f32, from.y as f32);
    for step in steps {
        match step {
            Step::Line(to) => path.line_to(to.x as f32, to.y as f32),
            Step::Curve(a, b, to) => path.cubic_to(
                a.x as f32,
                a.y as f32,
                b.x as f32,
                b.y as f32,
                to.x as f32,
                to.y as f32,
            ),
        }
    }
    path.finish()
}

fn rounded(at: At, width: f64, height: f64, radius: f64) -> Option<Path> {
    let rect = Rect::from_xywh(at.x as f32, at.y as f32, width as f32, height as f32)?;
    let r = radius as f32;
    // Of a quarter circle as a cubic curve.
    let bend = r * 0.447_715;
    let (left, top, right, bottom) = (rect.left(), rect.top(), rect.right(), rect.bottom());
    let mut path = PathBuilder::new();
    path.move_to(left + r, top);
    path.line_to(right - r, top);
    path.cubic_to(right - bend, top, right, top + bend, right, top + r);
    path.line_to(right, bottom - r);
    path.cubic_to(
        right,
        bottom - bend,
        right - bend,
        bottom,
        right - r,
        bottom,
    );
    path.line_to(left + r, bottom);
    path.cubic_to(left + bend, bottom, left, bottom - bend, left, bottom - r);
    path.line_to(left, top + r);
    path.cubic_to(left, top + bend, left + bend, top, left + r, top);
    path.close();
    path.finish()
}

/// Turns outlines in font units, y upwards, into a path.
#[derive(Default)]
struct Letters {
    path: PathBuilder,
    origin: (f64, f64),
    scale: f64,
}

impl Letters {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (
            (self.origin.0 + f64::from(x) * self.scale) as f32,
            (self.origin.1 - f64::from(y) * self.scale) as f32,
        )
    }
}

impl OutlineBuilder for Letters {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let (a, b, to) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(a.0, a.1, b.0, b.1, to.0, to.1);
    }

    fn close(&mut self) {
        self.path.close();
    }
}
