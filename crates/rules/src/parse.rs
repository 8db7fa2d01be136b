//! Text in, `Rule` out.
//!
//! ```text
//! rule       := pattern [ "(" names ")" ] [ ":" condition ] { ";" clause }
//! clause     := "record" value { "," value } | "as" name
//! condition  := conj { ("or" | "||") conj }
//! conj       := item { ("and" | "&&") item }
//! item       := ("not" | "!") item | "every" N | "first" N | N "/s" | "caller" pattern | "above" pattern
//!             | "takes" type | "returns" type
//!             | "while" rule ["active"] | "after" rule | comparison
//! comparison := value [ ("==" | "!=" | "<" | "<=" | ">" | ">=" | "=~" | "!~" | "is" ["not"]) value ]
//! value      := the operators of C, from | to *, over: name, argN, ret, errno, duration, self, waiting, thread, exception, args,
//!               numbers, times, texts, len(v), exit(v), changed(v), v.f, v->f, v[i], v[i..j], *v, v:type
//! ```

mod value;

use std::sync::Arc;

use crate::ast::{Compare, Expr, Kind, Rule};
use crate::error::{Problem, RuleError, near_miss};
use crate::lex::{self, Spanned, Token};
use crate::pattern::Pattern;

/// How deep expressions may be nested: far beyond what the machine's stack holds, far below what
/// ours does.
const DEPTH: usize = 64;

/// What a rule may be long.
const LONGEST: usize = 16 * 1024;

/// Words that mean something in conditions.
const WORDS: [&str; 24] = [
    "duration",
    "total",
    "self",
    "waiting",
    "ret",
    "errno",
    "exception",
    "message",
    "thread",
    "args",
    "caller",
    "above",
    "takes",
    "returns",
    "every",
    "first",
    "while",
    "after",
    "and",
    "or",
    "not",
    "null",
    "true",
    "false",
];

impl Rule {
    /// Reads one rule. Names and types are not looked at yet: `compile` does that.
    pub fn parse(text: &str) -> Result<Rule, RuleError> {
        if text.len() > LONGEST {
            let problem = Problem::new(
                0,
                format!(
                    "a rule may have {LONGEST} bytes, this one has {}",
                    text.len()
                ),
            );
            return Err(problem.in_text(""));
        }
        parse(text).map_err(|problem| problem.in_text(text))
    }
}

fn parse(text: &str) -> Result<Rule, Problem> {
    let start = text.len() - text.trim_start().len();
    let head_end = head_end(text, start)?;
    let head = text[start..head_end].trim_end();
    let (pattern, names) = match names(head) {
        Some((pattern, names)) => (pattern, names),
        None => (head, Vec::new()),
    };
    let pattern = Pattern::parse(pattern, start)?;
    let mut parser = Parser {
        tokens: lex::lex(text, head_end)?,
        next: 0,
        depth: 0,
        limits: Limits::default(),
    };
    let mut rule = Rule {
        name: None,
        pattern,
        names,
        condition: None,
        record: Vec::new(),
        first: None,
        per_second: None,
        text: Arc::from(text),
        origin: None,
    };
    if parser.take(":") && !parser.at_clause_end() {
        let condition = parser.condition()?;
        rule.condition = parser.without_limits(condition)?;
        rule.first = parser.limits.first;
        rule.per_second = parser.limits.per_second;
    }
    while parser.take(";") {
        if parser.at_end() {
            break;
        }
        parser.clause(&mut rule)?;
    }
    if !parser.at_end() {
        return Err(parser.unexpected("the end of the rule"));
    }
    Ok(rule)
}

/// Where the pattern and the names end: at a colon that is none of a pattern's, at a semicolon, or
/// at the end.
fn head_end(text: &str, start: usize) -> Result<usize, Problem> {
    let rest = &text[start..];
    if rest.starts_with('/') {
        let mut at = start;
        lex::quoted(text, &mut at, '/')?;
        return Ok(at + head_end_plain(&text[at..]));
    }
    Ok(start + head_end_plain(rest))
}

fn head_end_plain(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut in_class = false;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'[' => in_class = true,
            b']' => in_class = false,
            b':' if bytes.get(at + 1) == Some(&b':') => at += 1,
            b':' if !in_class && (at == 0 || bytes[at - 1] != b'?') => return at,
            b';' => return at,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// `query(sql, n)` is a pattern and two names. Brackets with anything but names inside belong to
/// the pattern.
fn names(head: &str) -> Option<(&str, Vec<Option<String>>)> {
    let inside = head.strip_suffix(')')?;
    let open = inside.rfind('(')?;
    let (pattern, inside) = (&inside[..open], &inside[open + 1..]);
    if pattern.is_empty() || pattern.ends_with("operator") || pattern.ends_with('\\') {
        return None;
    }
    let mut names = Vec::new();
    if inside.trim().is_empty() {
        return Some((pattern, names));
    }
    for name in inside.split(',') {
        let name = name.trim();
        let fine = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && name.chars().all(lex::is_word);
        if !fine {
            return None;
        }
        names.push((name != "_").then(|| name.to_owned()));
    }
    Some((pattern, names))
}

#[derive(Default)]
struct Limits {
    first: Option<u64>,
    per_second: Option<u64>,
}

struct Parser {
    tokens: Vec<Spanned>,
    next: usize,
    depth: usize,
    limits: Limits,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |t| &t.token)
    }

    fn at(&self) -> usize {
        self.tokens
            .get(self.next)
            .or(self.tokens.last())
            .map_or(0, |t| t.at)
    }

    fn bump(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += 1;
        token
    }

    fn at_end(&self) -> bool {
        *self.peek() == Token::End
    }

    fn at_clause_end(&self) -> bool {
        self.at_end() || *self.peek() == Token::Sign(";")
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(s) if *s == sign);
        self.next += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.next += usize::from(found);
        found
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Word(w) if w == word)
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), Problem> {
        if self.take(sign) {
            return Ok(());
        }
        Err(self.unexpected(&format!("'{sign}'")))
    }

    fn unexpected(&self, wanted: &str) -> Problem {
        let found = match self.peek() {
            Token::End => "the rule ends".to_owned(),
            Token::Word(word) => format!("'{word}' stands"),
            Token::Sign(sign) => format!("'{sign}' stands"),
            Token::Text(_) | Token::Regex(_) | Token::Char(_) => "a text stands".to_owned(),
            Token::Number(_) | Token::Float(_) | Token::Time(_) | Token::Rate(_) => {
                "a number stands".to_owned()
            }
        };
        let problem = Problem::new(self.at(), format!("{found} where {wanted} is expected"));
        match self.peek() {
            Token::Word(word) if word == "record" => problem.help("a ; stands before 'record'"),
            Token::Sign("=") => problem.help("two values are compared with =="),
            _ => problem,
        }
    }

    fn clause(&mut self, rule: &mut Rule) -> Result<(), Problem> {
        let at = self.at();
        if self.take_word("record") {
            loop {
                rule.record.push(self.value()?);
                if !self.take(",") {
                    return Ok(());
                }
            }
        }
        if self.take_word("as") {
            rule.name = Some(self.name("the rule's name")?);
            return Ok(());
        }
        let help = match self.peek() {
            Token::Word(word) => near_miss(word, ["record", "as"]),
            _ => None,
        };
        Err(Problem::new(
            at,
            "after a ; stands 'record' with values or 'as' with a name",
        )
        .help_if(help))
    }

    fn name(&mut self, what: &str) -> Result<String, Problem> {
        match self.peek() {
            Token::Word(_) => match self.bump() {
                Token::Word(word) => Ok(word),
                _ => Ok(String::new()),
            },
            _ => Err(self.unexpected(what)),
        }
    }

    /// Takes the limits out of a condition: they hold for what else it says, so they stand beside
    /// it, joined by "and".
    fn without_limits(&mut self, condition: Expr) -> Result<Option<Expr>, Problem> {
        match condition.kind {
            Kind::And(a, b) => {
                let at = condition.at;
                let a = self.without_limits(*a)?;
                let b = self.without_limits(*b)?;
                Ok(match (a, b) {
                    (Some(a), Some(b)) => Some(Expr {
                        kind: Kind::And(Box::new(a), Box::new(b)),
                        at,
                    }),
                    (one, other) => one.or(other),
                })
            }
            // How the parser notes a limit until it is known to stand where it may.
            Kind::After(name) if name.starts_with(LIMIT) => Ok(None),
            _ => {
                if let Some(at) = hidden_limit(&condition) {
                    return Err(
                        Problem::new(at, "a limit cannot stand inside 'or' or 'not'")
                            .help("join it to the whole condition: (...) and first 10"),
                    );
                }
                Ok(Some(condition))
            }
        }
    }

    fn condition(&mut self) -> Result<Expr, Problem> {
        self.nested(|parser| {
            let mut left = parser.conjunction()?;
            loop {
                let at = parser.at();
                if !parser.take_word("or") && !parser.take("||") {
                    return Ok(left);
                }
                let right = parser.conjunction()?;
                left = both(Kind::Or, left, right, at);
            }
        })
    }

    fn nested<T>(
        &mut self,
        inside: impl FnOnce(&mut Parser) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(Problem::new(self.at(), "this is nested too deeply"));
        }
        let result = inside(self);
        self.depth -= 1;
        result
    }

    fn conjunction(&mut self) -> Result<Expr, Problem> {
        let mut left = self.item()?;
        loop {
            let at = self.at();
            if !self.take_word("and") && !self.take("&&") {
                return Ok(left);
            }
            let right = self.item()?;
            left = both(Kind::And, left, right, at);
        }
    }

    fn item(&mut self) -> Result<Expr, Problem> {
        let at = self.at();
        let expr = |kind| Ok(Expr { kind, at });
        if self.take_word("not") || self.take("!") {
            let inner = self.nested(Parser::item)?;
            return expr(Kind::Not(Box::new(inner)));
        }
        if let Token::Rate(n) = *self.peek() {
            self.bump();
            return self.limit(at, n, true);
        }
        let word = match self.peek() {
            Token::Word(word) => word.clone(),
            _ => return self.comparison(),
        };
        match word.as_str() {
            "at" => {
                self.bump();
                if !self.take_word("most") {
                    return Err(self.unexpected("'most'"));
                }
                match self.bump() {
                    Token::Rate(n) => self.limit(at, n, true),
                    _ => Err(Problem::new(at, "a rate is written as in: at most 100/s")),
                }
            }
            "every" | "first" => {
                self.bump();
                let number_at = self.at();
                let Token::Number(n) = self.bump() else {
                    return Err(Problem::new(number_at, format!("'{word}' needs a number"))
                        .help(format!("as in: {word} 100")));
                };
                if n == 0 {
                    return Err(Problem::new(number_at, format!("'{word} 0' keeps no call")));
                }
                if word == "first" {
                    return self.limit(at, n, false);
                }
                expr(Kind::Every(n))
            }
            "caller" | "above" => {
                self.bump();
                let pattern = self.pattern()?;
                expr(if word == "caller" {
                    Kind::Caller(pattern)
                } else {
                    Kind::Above(pattern)
                })
            }
            "while" | "after" => {
                self.bump();
                let name = self.name("the name of a rule")?;
                if word == "after" {
                    return expr(Kind::After(name));
                }
                self.take_word("active");
                expr(Kind::While(name))
            }
            "takes" | "returns" if self.pattern_follows() => {
                self.bump();
                let at = self.at();
                let (Token::Text(regex) | Token::Regex(regex) | Token::Word(regex)) = self.bump()
                else {
                    return Err(Problem::new(
                        at,
                        format!("after '{word}' stands a type's name"),
                    ));
                };
                Pattern::regex(&regex, at)?;
                expr(if word == "takes" {
                    Kind::Takes(regex)
                } else {
                    Kind::Returns(regex)
                })
            }
            "always" => {
                self.bump();
                expr(Kind::Bool(true))
            }
            _ => self.comparison(),
        }
    }

    /// Does a name or a pattern stand behind the next word? Else the word is an argument's name.
    fn pattern_follows(&self) -> bool {
        let after = self.tokens.get(self.next + 1).map(|t| &t.token);
        match after {
            Some(Token::Text(_) | Token::Regex(_)) => true,
            Some(Token::Word(word)) => !["and", "or", "is"].contains(&word.as_str()),
            _ => false,
        }
    }

    fn limit(&mut self, at: usize, n: u64, per_second: bool) -> Result<Expr, Problem> {
        let slot = if per_second {
            &mut self.limits.per_second
        } else {
            &mut self.limits.first
        };
        if n == 0 || per_second && n > u64::from(u32::MAX) {
            return Err(Problem::new(at, "this limit keeps no call, or is none"));
        }
        if slot.replace(n).is_some() {
            return Err(Problem::new(at, "there is a limit of this kind already"));
        }
        Ok(Expr {
            kind: Kind::After(format!("{LIMIT}{n}")),
            at,
        })
    }

    fn pattern(&mut self) -> Result<Pattern, Problem> {
        let at = self.at();
        match self.bump() {
            Token::Word(word) => Pattern::parse(&word, at),
            Token::Text(text) => Pattern::parse(&text, at),
            Token::Regex(text) => Pattern::regex(&text, at),
            _ => {
                self.next -= 1;
                Err(self.unexpected("the name of a function, or a pattern between \" and \","))
            }
        }
    }

    fn comparison(&mut self) -> Result<Expr, Problem> {
        let left = self.value()?;
        let at = self.at();
        let compare = match self.peek() {
            Token::Sign("==") => Compare::Eq,
            Token::Sign("!=") => Compare::Ne,
            Token::Sign("<") => Compare::Lt,
            Token::Sign("<=") => Compare::Le,
            Token::Sign(">") => Compare::Gt,
            Token::Sign(">=") => Compare::Ge,
            Token::Sign(sign @ ("=~" | "!~")) => {
                let negated = *sign == "!~";
                self.bump();
                return self.matches(left, negated, at);
            }
            Token::Word(word) if word == "is" => {
                self.bump();
                let negated = self.take_word("not");
                let name = self.name("a variant, or null,")?;
                let kind = match name.as_str() {
                    "null" | "nil" => {
                        let null = Expr {
                            kind: Kind::Null,
                            at,
                        };
                        Kind::Compare(Compare::Eq, Box::new(left), Box::new(null))
                    }
                    _ => Kind::Is(Box::new(left), name),
                };
                return Ok(negate(Expr { kind, at }, negated));
            }
            _ => return Ok(left),
        };
        self.bump();
        let right = self.value()?;
        Ok(Expr {
            kind: Kind::Compare(compare, Box::new(left), Box::new(right)),
            at,
        })
    }

    fn matches(&mut self, left: Expr, negated: bool, at: usize) -> Result<Expr, Problem> {
        let regex_at = self.at();
        let regex = match self.bump() {
            Token::Text(text) | Token::Regex(text) => text,
            _ => {
                return Err(
                    Problem::new(regex_at, "after =~ stands a regular expression")
                        .help("as in: sql =~ /^SELECT/"),
                );
            }
        };
        // Said here, where the column is known; it is compiled once more when the values' types
        // are.
        Pattern::regex(&regex, regex_at)?;
        let kind = Kind::Matches(Box::new(left), regex);
        Ok(negate(Expr { kind, at }, negated))
    }
}

/// Begins the name under which the parser notes a limit; no word of a rule can.
const LIMIT: char = '\u{0}';

fn hidden_limit(condition: &Expr) -> Option<usize> {
    let mut found = None;
    condition.visit(&mut |e| {
        if matches!(&e.kind, Kind::After(name) if name.starts_with(LIMIT)) {
            found = found.or(Some(e.at));
        }
    });
    found
}

fn both(make: fn(Box<Expr>, Box<Expr>) -> Kind, a: Expr, b: Expr, at: usize) -> Expr {
    Expr {
        kind: make(Box::new(a), Box::new(b)),
        at,
    }
}

fn negate(expr: Expr, negated: bool) -> Expr {
    if !negated {
        return expr;
    }
    let at = expr.at;
    Expr {
        kind: Kind::Not(Box::new(expr)),
        at,
    }
}
