//! Figures and names as text of a width that lines up.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU8, Ordering};

use thalweg_model::{Profile, Unit};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Width of what [`time`] gives: `123.456 ms`.
pub const TIME_WIDTH: usize = 10;

/// Every digit, in groups of three: counts are exact and are shown so.
pub fn count(value: u64) -> String {
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

/// Calls, where it may be that there were some and nobody counted them.
pub fn calls(profile: &Profile, value: u64) -> String {
    match value {
        0 if !profile.looked.is_empty() => "-".into(),
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

/// What the figures in the place of times are, in this run of the program.
static UNIT: AtomicU8 = AtomicU8::new(0);

pub fn show_in(unit: Unit) {
    let number = match unit {
        Unit::Nanoseconds => 0,
        Unit::Bytes => 1,
        Unit::Count => 2,
    };
    UNIT.store(number, Ordering::Relaxed);
}

/// Nanoseconds in the unit that fits, right-aligned so that units stand below each other; or the metric that is shown in
/// the place of time.
pub fn time(value: u64) -> String {
    match UNIT.load(Ordering::Relaxed) {
        0 => nanoseconds(value),
        1 => format!("{:>TIME_WIDTH$}", bytes(value)),
        _ => format!("{:>TIME_WIDTH$}", count(value)),
    }
}

/// A time in any case.
pub fn nanoseconds(ns: u64) -> String {
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

/// A change of a time, with its sign, as wide as [`time`] and one more.
pub fn signed_time(change: f64) -> String {
    let number = time(change.abs() as u64);
    let digits = number.trim_start();
    let sign = if change < 0.0 { '-' } else { '+' };
    format!(
        "{:>width$}",
        format!("{sign}{digits}"),
        width = TIME_WIDTH + 1
    )
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

/// The same for a span that may not be known yet.
pub fn time_if(known: bool, ns: u64) -> String {
    match known {
        true => time(ns),
        false => format!("{:>7}   ", "-"),
    }
}

/// The same inside a sentence.
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

/// Without anything that a terminal would obey: names come from files nobody vouches for.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(char::is_control) {
        Cow::Owned(text.replace(char::is_control, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
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

/// A command line as one would type it, on one line.
pub fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quoted = words.iter().map(|word| {
        if word.contains(char::is_control) {
            format!("$'{}'", word.chars().map(escaped).collect::<String>())
        } else if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// As it stands between `$'` and `'` in a shell.
fn escaped(c: char) -> String {
    match c {
        '\n' => "\\n".to_string(),
        '\t' => "\\t".to_string(),
        '\'' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_keep_every_digit() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
    }

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
        assert_eq!(signed_time(-1_500.0), "  -1.500 us");
        assert_eq!(signed_time(812.0), "    +812 ns");
        assert_eq!(signed_count(-1234.0), "-1,234");
        assert_eq!(signed_count(0.2), "0");
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

    #[test]
    fn no_name_can_command_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }

    #[test]
    fn a_command_line_can_be_typed_again() {
        let words = ["sh", "-c", "echo it's"].map(String::from);
        assert_eq!(command_line(&words), "sh -c 'echo it'\\''s'");
        let words = ["python3", "-c", "a = 'x'\nprint(a)"].map(String::from);
        assert_eq!(command_line(&words), "python3 -c $'a = \\'x\\'\\nprint(a)'");
    }
}
