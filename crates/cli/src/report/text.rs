//! Figures and names as text of a width that lines up.

use std::borrow::Cow;

pub use thalweg_formats::figures::grouped as count;
use thalweg_model::{Metric, Profile, Unit};
pub use thalweg_views::{command_line, printable, printable_lines};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Width of what [`time`] gives: `123.456 ms`.
pub const TIME_WIDTH: usize = 10;

/// Calls, where it may be that there were some and nobody counted them.
pub fn calls(profile: &Profile, value: u64) -> String {
    match value {
        0 if !profile.sampled.is_empty() => "-".into(),
        _ => count(value),
    }
}

/// `>= 2,732`: there may have been more.
pub fn at_least(is_bound: bool, text: String) -> String {
    match is_bound && text != "-" {
        true => format!(">= {text}"),
        false => text,
    }
}

/// `1 thread`, `3 threads`.
pub fn counted(value: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(value), if value == 1 { one } else { many })
}

/// Nanoseconds in the unit that fits, right-aligned so that units stand below each other.
pub fn time(ns: u64) -> String {
    let value = ns as f64;
    let (number, unit) = match ns {
        0..1_000 => (ns.to_string(), "ns"),
        1_000..1_000_000 => (format!("{:.3}", value / 1e3), "us"),
        1_000_000..1_000_000_000 => (format!("{:.3}", value / 1e6), "ms"),
        _ => {
            let seconds = value / 1e9;
            let decimals = match seconds {
                ..1e3 => 3,
                1e3..1e4 => 2,
                1e4..1e5 => 1,
                _ => 0,
            };
            (format!("{seconds:.decimals$}"), "s ")
        }
    };
    format!("{number:>7} {unit}")
}

/// What the figures in the place of times are: times, or the metric that a profile is weighed by.
#[derive(Clone, Copy, Debug)]
pub struct Weights(Unit);

impl Weights {
    pub fn of_profile(profile: &Profile) -> Weights {
        Weights::by(profile.meta.weighed_by)
    }

    pub fn by(metric: Option<Metric>) -> Weights {
        Weights(metric.map_or(Unit::Nanoseconds, Metric::unit))
    }

    /// As wide as [`time`].
    pub fn text(self, value: u64) -> String {
        match self.0 {
            Unit::Nanoseconds => time(value),
            Unit::Bytes => format!("{:>TIME_WIDTH$}", bytes(value)),
            Unit::Count => format!("{:>TIME_WIDTH$}", count(value)),
        }
    }

    /// The same inside a sentence.
    pub fn inline(self, value: u64) -> String {
        self.text(value).trim().to_string()
    }

    /// The same for a figure that may not be known yet.
    pub fn text_if(self, known: bool, value: u64) -> String {
        match known {
            true => self.text(value),
            false => format!("{:>7}   ", "-"),
        }
    }

    /// A change, with its sign, as wide as [`time`] and one more.
    pub fn signed(self, change: f64) -> String {
        let digits = self.inline(change.abs() as u64);
        let sign = if change < 0.0 { '-' } else { '+' };
        format!(
            "{:>width$}",
            format!("{sign}{digits}"),
            width = TIME_WIDTH + 1
        )
    }
}

/// A change of a count, with its sign; averages of several runs are rounded.
pub fn signed_count(change: f64) -> String {
    let digits = count(change.abs().round() as u64);
    match digits.as_str() {
        "0" => digits,
        _ if change < 0.0 => format!("-{digits}"),
        _ => format!("+{digits}"),
    }
}

/// A time inside a sentence.
pub fn time_inline(ns: u64) -> String {
    time(ns).trim().to_string()
}

/// `12.3%`, six wide; blank where there is no whole.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return " ".repeat(6);
    }
    format!("{:>5.1}%", part as f64 * 100.0 / whole as f64)
}

pub fn bytes(value: u64) -> String {
    match value {
        0..1024 => format!("{value} B"),
        1024..1_048_576 => format!("{:.1} KiB", value as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", value as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", value as f64 / 1_073_741_824.0),
    }
}

/// At most `width` columns; what is too much goes from the middle, since both ends of a name tell the most.
pub fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let room = width.saturating_sub(1);
    let head_room = room * 3 / 5;
    let head = fitting(text.chars(), head_room);
    let tail = fitting(text.chars().rev(), room - head_room);
    let tail: String = tail.chars().rev().collect();
    Cow::Owned(format!("{head}\u{2026}{tail}"))
}

fn fitting(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    chars
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= width
        })
        .collect()
}

/// The text in lines that fit behind an indent; whole where nothing cuts it.
pub fn wrapped(text: &str, width: Option<usize>, indent: usize) -> Vec<String> {
    let Some(room) = width.map(|width| width.saturating_sub(indent).max(20)) else {
        return vec![text.to_string()];
    };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("a line");
        if last.is_empty() {
            last.push_str(word);
        } else if last.width() + 1 + word.width() <= room {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_string());
        }
    }
    lines
}

/// Fills up with blanks on the right, by columns and not by characters.
pub fn pad(text: &str, width: usize) -> String {
    let blanks = width.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(blanks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_one_width_whatever_their_unit() {
        let times = [
            0,
            7,
            999,
            1_000,
            999_999,
            1_000_000,
            1_000_000_000,
            86_400_000_000_000,
        ];
        for ns in times {
            assert_eq!(time(ns).len(), TIME_WIDTH, "{:?}", time(ns));
        }
        assert_eq!(time(812), "    812 ns");
        assert_eq!(time(1_234_567), "  1.235 ms");
        assert_eq!(time(86_400_000_000_000), "86400.0 s ");
    }

    #[test]
    fn changes_have_a_sign_and_line_up() {
        let times = Weights::by(None);
        assert_eq!(times.signed(-1_500.0), "  -1.500 us");
        assert_eq!(times.signed(812.0), "    +812 ns");
        assert_eq!(signed_count(-1234.0), "-1,234");
        assert_eq!(signed_count(0.2), "0");
    }

    #[test]
    fn what_a_profile_is_weighed_by_is_written_in_its_unit() {
        let sizes = Weights::by(Some(Metric::AllocBytes));
        assert_eq!(sizes.text(2048), "   2.0 KiB");
        assert_eq!(sizes.signed(-2048.0), "   -2.0 KiB");
        assert_eq!(Weights::by(Some(Metric::Faults)).inline(2048), "2,048");
        assert_eq!(Weights::by(None).text(2048), time(2048));
        assert_eq!(Weights::by(None).text_if(false, 0), "      -   ");
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(
            cut("std::vector<int>::push_back", 12),
            "std::v\u{2026}_back"
        );
        assert_eq!(cut("abc", 1), "\u{2026}");
        assert_eq!(cut("日本語日本語", 7), "日\u{2026}語");
    }
}
