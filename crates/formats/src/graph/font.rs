//! The one font of our pictures: it gives text its size before there is a picture, and its outlines
//! for pixels.

use std::sync::LazyLock;

use ttf_parser::{Face, OutlineBuilder};

/// DejaVu Sans Condensed, Latin letters only, free to embed and share: see the licence beside it.
static BYTES: &[u8] = include_bytes!("../../assets/DejaVuSansCondensed-latin.ttf");

static FACE: LazyLock<Face<'static>> =
    LazyLock::new(|| Face::parse(BYTES, 0).expect("the font that we ship"));

/// What a viewer of an SVG uses when it has the font, and what comes closest.
pub const FAMILY: &str = "DejaVu Sans Condensed, DejaVu Sans, Verdana, sans-serif";

pub fn width(text: &str, size: f64) -> f64 {
    let units: f64 = text.chars().map(advance).sum();
    units * size / f64::from(FACE.units_per_em())
}

fn glyph(c: char) -> Option<ttf_parser::GlyphId> {
    FACE.glyph_index(c).or_else(|| FACE.glyph_index('\u{fffd}'))
}

fn advance(c: char) -> f64 {
    glyph(c)
        .and_then(|glyph| FACE.glyph_hor_advance(glyph))
        .unwrap_or(0)
        .into()
}

/// Calls `draw` for each letter with its x, pixels per unit of the font, and what gives its
/// outline.
pub fn outlines(
    text: &str,
    size: f64,
    mut draw: impl FnMut(f64, f64, &dyn Fn(&mut dyn OutlineBuilder)),
) {
    let scale = size / f64::from(FACE.units_per_em());
    let mut x = 0.0;
    for c in text.chars() {
        if let Some(glyph) = glyph(c) {
            draw(x, scale, &|builder| {
                FACE.outline_glyph(glyph, builder);
            });
        }
        x += advance(c) * scale;
    }
}

/// At most `room` wide; what is too much goes from the middle, since both ends of a name tell the
/// most.
pub fn cut(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_string();
    }
    let letters: Vec<char> = text.chars().collect();
    let joined = |kept: usize| -> String {
        let head = kept - kept * 2 / 5;
        let tail = kept - head;
        let start = letters[..head].iter();
        let end = letters[letters.len() - tail..].iter();
        start.chain(&['\u{2026}']).chain(end).collect()
    };
    let mut kept = letters.len().saturating_sub(1);
    while kept > 1 && width(&joined(kept), size) > room {
        kept -= 1;
    }
    joined(kept)
}
