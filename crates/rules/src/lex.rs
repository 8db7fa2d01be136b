//! A rule's text in words, numbers and signs.

use crate::error::Problem;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// A name; parts may be joined by `::`.
    Word(String),
    Number(u64),
    Float(f64),
    /// Nanoseconds.
    Time(u64),
    /// `100/s`
    Rate(u64),
    Text(String),
    /// Between slashes.
    Regex(String),
    Char(u8),
    Sign(&'static str),
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spanned {
    pub token: Token,
    pub at: usize,
    pub end: usize,
}

/// Longest first.
const SIGNS: [&str; 35] = [
    "<<", ">>", "<=", ">=", "==", "!=", "=~", "!~", "&&", "||", "->", "..", "(", ")", "[", "]",
    ",", ";", ".", "+", "-", "*", "/", "%", "&", "|", "^", "~", "!", "<", ">", "=", ":", "@", "?",
];

const UNITS: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("sec", 1e9),
    ("min", 60e9),
    ("h", 3600e9),
];

pub(crate) fn lex(text: &str, from: usize) -> Result<Vec<Spanned>, Problem> {
    let mut tokens = Vec::new();
    let mut at = from;
    loop {
        let rest = &text[at..];
        let trimmed = rest.trim_start();
        at += rest.len() - trimmed.len();
        let Some(first) = trimmed.chars().next() else {
            break;
        };
        let start = at;
        let token = if first == '/' && regex_may_follow(&tokens) {
            Token::Regex(quoted(text, &mut at, '/')?)
        } else if first == '"' {
            Token::Text(quoted(text, &mut at, '"')?)
        } else if first == '\'' {
            let inside = quoted(text, &mut at, '\'')?;
            match *inside.as_bytes() {
                [byte] => Token::Char(byte),
                _ => {
                    return Err(Problem::new(start, "one character stands between ' and '")
                        .help("a text stands between \" and \""));
                }
            }
        } else if first.is_ascii_digit() {
            number(text, &mut at)?
        } else if is_word(first) {
            Token::Word(word(text, &mut at))
        } else if let Some(sign) = SIGNS.iter().find(|s| trimmed.starts_with(**s)) {
            at += sign.len();
            Token::Sign(sign)
        } else {
            return Err(Problem::new(
                start,
                format!("'{first}' means nothing in a rule"),
            ));
        };
        tokens.push(Spanned {
            token,
            at: start,
            end: at,
        });
    }
    tokens.push(Spanned {
        token: Token::End,
        at: text.len(),
        end: text.len(),
    });
    Ok(tokens)
}

/// A slash is a division unless it stands where only a regular expression can.
fn regex_may_follow(tokens: &[Spanned]) -> bool {
    match tokens.last().map(|t| &t.token) {
        Some(Token::Sign(sign)) => matches!(*sign, "=~" | "!~"),
        Some(Token::Word(word)) => ["caller", "above", "takes", "returns"].contains(&word.as_str()),
        _ => false,
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn word(text: &str, at: &mut usize) -> String {
    let start = *at;
    loop {
        let rest = &text[*at..];
        *at += rest.len() - rest.trim_start_matches(is_word).len();
        let rest = &text[*at..];
        match rest.strip_prefix("::") {
            Some(more) if more.starts_with(is_word) => *at += 2,
            _ => return text[start..*at].to_owned(),
        }
    }
}

/// What stands between two marks; `\` takes the meaning from the next character, or gives it one
/// (\n, \t, \0, \xhh).
pub(crate) fn quoted(text: &str, at: &mut usize, mark: char) -> Result<String, Problem> {
    let start = *at;
    let mut out = String::new();
    let mut chars = text[start + mark.len_utf8()..].char_indices();
    let base = start + mark.len_utf8();
    while let Some((offset, c)) = chars.next() {
        if c == mark {
            *at = base + offset + c.len_utf8();
            return Ok(out);
        }
        // Between slashes everything but a slash is the regular expression's own business.
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some((_, escaped)) = chars.next() else {
            break;
        };
        match escaped {
            _ if escaped == mark => out.push(mark),
            _ if mark == '/' => out.extend(['\\', escaped]),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            'r' => out.push('\r'),
            '0' => out.push('\0'),
            '\\' => out.push('\\'),
            // Regular expressions are full of these.
            other => out.extend(['\\', other]),
        }
    }
    Err(Problem::new(
        start,
        format!("the {mark} that ends this is missing"),
    ))
}

fn number(text: &str, at: &mut usize) -> Result<Token, Problem> {
    let start = *at;
    let rest = &text[start..];
    if let Some(digits) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
        let len = digits.len()
            - digits
                .trim_start_matches(|c: char| c.is_ascii_hexdigit() || c == '_')
                .len();
        *at += 2 + len;
        return u64::from_str_radix(&digits[..len].replace('_', ""), 16)
            .map(Token::Number)
            .map_err(|_| Problem::new(start, "this is not a hexadecimal number of 64 bits"));
    }
    let digits = |s: &str| {
        s.len()
            - s.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_')
                .len()
    };
    let mut len = digits(rest);
    let mut is_float = false;
    // `1..3` is a range, `x.0.len` is handled by the parser.
    if rest[len..].starts_with('.') && rest[len + 1..].starts_with(|c: char| c.is_ascii_digit()) {
        len += 1 + digits(&rest[len + 1..]);
        is_float = true;
    }
    if let Some(exponent) = rest[len..].strip_prefix(['e', 'E']) {
        let sign = usize::from(exponent.starts_with(['+', '-']));
        let count = digits(&exponent[sign..]);
        if count > 0 {
            len += 1 + sign + count;
            is_float = true;
        }
    }
    let plain = rest[..len].replace('_', "");
    let unit_text = &rest[len..];
    let unit_len = unit_text.len() - unit_text.trim_start_matches(is_word).len();
    let unit = &unit_text[..unit_len];
    *at = start + len + unit_len;
    let value: f64 = plain
        .parse()
        .map_err(|_| Problem::new(start, "this is not a number"))?;
    if !unit.is_empty() {
        let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(
                Problem::new(start + len, format!("'{unit}' is no unit of time"))
                    .help("units are ns, us, ms, s, min and h"),
            );
        };
        let nanos = value * scale;
        if nanos >= 9e18 {
            return Err(Problem::new(start, "nothing takes that long"));
        }
        return Ok(Token::Time(nanos.round() as u64));
    }
    if is_float {
        return Ok(Token::Float(value));
    }
    let number = plain
        .parse()
        .map_err(|_| Problem::new(start, "the number does not fit into 64 bits"))?;
    let rate = &text[*at..];
    let per_second = rate.strip_prefix("/sec").or(rate.strip_prefix("/s"));
    if let Some(after) = per_second
        && !after.starts_with(is_word)
    {
        *at = text.len() - after.len();
        return Ok(Token::Rate(number));
    }
    Ok(Token::Number(number))
}
