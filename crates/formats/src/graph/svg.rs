//! A scene as SVG: plain shapes, no script, no reference to anything outside.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::font;
use super::scene::{Anchor, At, Colour, Scene, Shape, Step};

pub fn write(scene: &Scene, mut out: impl Write) -> io::Result<()> {
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" font-family=\"{}\">",
        font::FAMILY,
        w = number(scene.width),
        h = number(scene.height),
    )?;
    writeln!(out, "<title>{}</title>", escaped(&scene.title))?;
    writeln!(
        out,
        "<rect width=\"100%\" height=\"100%\" fill=\"{}\"/>",
        colour(scene.background)
    )?;
    for shape in &scene.shapes {
        write_shape(shape, &mut out)?;
    }
    writeln!(out, "</svg>")?;
    out.flush()
}

fn write_shape(shape: &Shape, mut out: impl Write) -> io::Result<()> {
    match shape {
        Shape::Stroke {
            from,
            steps,
            width,
            colour: stroke,
            opacity,
            dashed,
            hint,
        } => {
            let dashes = match dashed {
                true => format!(
                    " stroke-dasharray=\"{}\"",
                    dash_lengths(*width).map(number).join(" ")
                ),
                false => String::new(),
            };
            writeln!(
                out,
                "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\"{dashes}><title>{}</title></path>",
                path(*from, steps),
                colour(*stroke),
                number(*width),
                number(*opacity),
                escaped(hint),
            )
        }
        Shape::Box {
            at,
            width,
            height,
            radius,
            fill,
            border,
            hint,
        } => writeln!(
            out,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\" fill=\"{}\" stroke=\"{}\"><title>{}</title></rect>",
            number(at.x),
            number(at.y),
            number(*width),
            number(*height),
            number(*radius),
            colour(*fill),
            colour(*border),
            escaped(hint),
        ),
        Shape::Text {
            at,
            size,
            colour: fill,
            anchor,
            bold: _,
            text,
        } => {
            let anchor = match anchor {
                Anchor::Start => "",
                Anchor::Middle => " text-anchor=\"middle\"",
                Anchor::End => " text-anchor=\"end\"",
            };
            // Another font than ours is squeezed into the room that ours would take.
            writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\"{anchor}>{}</text>",
                number(at.x),
                number(at.y),
                number(*size),
                colour(*fill),
                number(font::width(text, *size)),
                escaped(text),
            )
        }
    }
}

/// Dashes that can be told apart at any width of the line.
pub fn dash_lengths(width: f64) -> [f64; 2] {
    [6.0 + width / 2.0, 4.0]
}

fn path(from: At, steps: &[Step]) -> String {
    let mut path = format!("M{} {}", number(from.x), number(from.y));
    for step in steps {
        // Writing into a string cannot fail.
        let _ = match step {
            Step::Line(to) => write!(path, "L{} {}", number(to.x), number(to.y)),
            Step::Curve(a, b, to) => write!(
                path,
                "C{} {} {} {} {} {}",
                number(a.x),
                number(a.y),
                number(b.x),
                number(b.y),
                number(to.x),
                number(to.y)
            ),
        };
    }
    path
}

fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text {
        "-0" => "0".to_string(),
        text => text.to_string(),
    }
}

fn colour(Colour(red, green, blue): Colour) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Text that is nothing but text in XML and HTML, of which the first allows no other control
/// characters.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
