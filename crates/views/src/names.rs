//! Names and command lines that can be shown anywhere.

use std::borrow::Cow;

/// Without anything that a terminal would obey: names come from files nobody vouches for.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(is_obeyed) {
        Cow::Owned(text.replace(is_obeyed, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// The same for a message of several lines, in which names may stand.
pub fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// Control characters, and what makes a terminal show a text in another order than it is in.
fn is_obeyed(c: char) -> bool {
    let reorders = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || reorders
}

/// A command line as one would type it, on one line.
pub fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quoted = words.iter().map(|word| {
        if word.contains(is_obeyed) {
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
        c if is_obeyed(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_can_command_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
        assert_eq!(printable("a\u{202e}b\u{9b}c"), "a\u{fffd}b\u{fffd}c");
        assert_eq!(printable_lines("a\r\nb\n"), "a\u{fffd}\nb\n");
    }

    #[test]
    fn a_command_line_can_be_typed_again() {
        let words = ["sh", "-c", "echo it's"].map(String::from);
        assert_eq!(command_line(&words), "sh -c 'echo it'\\''s'");
        let words = ["python3", "-c", "a = 'x'\nprint(a)"].map(String::from);
        assert_eq!(command_line(&words), "python3 -c $'a = \\'x\\'\\nprint(a)'");
    }
}
