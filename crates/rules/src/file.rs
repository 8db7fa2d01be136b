//! rules.toml: several rules with what they share.
//!
//! ```toml
//! redact = ["password", "token"]
//! text_limit = 256
//!
//! [[rule]]
//! name = "slow"
//! function = "db::query(sql, n)"
//! when = "duration > 5ms"
//! record = ["sql", "n"]
//! ```
//!
//! Each table is written out as the text of a rule and read like any other, so that both ways give
//! the same rules and the same messages; errors are led back to the line of the file.

use toml_edit::{Document, Item, Table, Value};

use crate::ast::{Origin, Rule};
use crate::error::{Problem, RuleError, near_miss};

/// The contents of a rules file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RulesFile {
    pub rules: Vec<Rule>,
    /// Patterns of names whose values are never read.
    pub redact: Vec<String>,
    /// How many bytes of a text, an array or a structure are copied.
    pub text_limit: Option<usize>,
}

const KEYS: [&str; 3] = ["rule", "redact", "text_limit"];
const RULE_KEYS: [&str; 5] = ["name", "function", "when", "record", "text"];

impl RulesFile {
    /// `file` is the name that messages give.
    pub fn parse(text: &str, file: &str) -> Result<RulesFile, RuleError> {
        let reader = Reader { text, file };
        let document = Document::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let message = error.message().lines().next().unwrap_or_default();
            reader.error(at, format!("this is not TOML: {message}"), None)
        })?;
        let mut out = RulesFile::default();
        for (key, item) in document.as_table() {
            match key {
                "redact" => out.redact = reader.strings(item)?,
                "text_limit" => {
                    let limit = item.as_integer().and_then(|n| usize::try_from(n).ok());
                    let limit = limit.filter(|n| (1..=crate::MAX_TEXT).contains(n));
                    out.text_limit = Some(limit.ok_or_else(|| {
                        let message =
                            format!("text_limit is a number from 1 to {}", crate::MAX_TEXT);
                        reader.error(start(item), message, None)
                    })?);
                }
                "rule" => {
                    let Some(tables) = item.as_array_of_tables() else {
                        let help = "each rule begins with a line [[rule]]".to_owned();
                        return Err(reader.error(
                            start(item),
                            "'rule' is not a list of tables".into(),
                            Some(help),
                        ));
                    };
                    for table in tables {
                        out.rules.push(reader.rule(table)?);
                    }
                }
                _ => {
                    let at = document.as_table().key(key).and_then(|k| k.span());
                    return Err(reader.unknown(key, at.map_or(0, |s| s.start), &KEYS));
                }
            }
        }
        Ok(out)
    }
}

struct Reader<'a> {
    text: &'a str,
    file: &'a str,
}

/// A rule's text under construction, with where its parts come from.
#[derive(Default)]
struct Composed {
    text: String,
    parts: Vec<(usize, usize, usize)>,
}

impl Reader<'_> {
    fn rule(&self, table: &Table) -> Result<Rule, RuleError> {
        for (key, _) in table {
            if !RULE_KEYS.contains(&key) {
                let at = table.key(key).and_then(|k| k.span());
                return Err(self.unknown(key, at.map_or(0, |s| s.start), &RULE_KEYS));
            }
        }
        let mut composed = Composed::default();
        let at = table.span().map_or(0, |span| span.start);
        match (table.get("text"), table.get("function")) {
            (Some(text), None) => self.append(&mut composed, "", text)?,
            (None, Some(function)) => self.append(&mut composed, "", function)?,
            _ => {
                let help = "or 'text' with a whole rule in it".to_owned();
                return Err(self.error(at, "a rule needs 'function'".into(), Some(help)));
            }
        }
        if let Some(when) = table.get("when") {
            self.append(&mut composed, ": ", when)?;
        }
        match table.get("record") {
            Some(Item::Value(Value::Array(values))) => {
                for (i, value) in values.iter().enumerate() {
                    let joint = if i == 0 { "; record " } else { ", " };
                    self.append_value(&mut composed, joint, value)?;
                }
            }
            Some(item) => self.append(&mut composed, "; record ", item)?,
            None => {}
        }
        if let Some(name) = table.get("name") {
            self.append(&mut composed, "; as ", name)?;
        }
        let origin = Origin {
            file: self.file.to_owned(),
            parts: composed.parts,
        };
        let mut rule = Rule::parse(&composed.text).map_err(|error| origin.locate(error))?;
        rule.origin = Some(origin);
        Ok(rule)
    }

    fn append(&self, composed: &mut Composed, joint: &str, item: &Item) -> Result<(), RuleError> {
        match item.as_value() {
            Some(value) => self.append_value(composed, joint, value),
            None => Err(self.error(start(item), "a text is expected here".into(), None)),
        }
    }

    fn append_value(
        &self,
        composed: &mut Composed,
        joint: &str,
        value: &Value,
    ) -> Result<(), RuleError> {
        let at = value.span().map_or(0, |span| span.start);
        let Some(text) = value.as_str() else {
            return Err(self.error(at, "a text is expected here".into(), None));
        };
        // A line's end within a text is a blank to a rule.
        let text = text.replace(['\n', '\r'], " ");
        composed.text.push_str(joint);
        let (line, column) = self.position(at);
        let raw = self.text.get(at..).unwrap_or_default();
        let mark = raw.len() - raw.trim_start_matches(['"', '\'']).len();
        composed
            .parts
            .push((composed.text.len(), line, column + mark.clamp(1, 3)));
        composed.text.push_str(&text);
        Ok(())
    }

    fn strings(&self, item: &Item) -> Result<Vec<String>, RuleError> {
        let wrong = || self.error(start(item), "a list of texts is expected here".into(), None);
        let array = item.as_array().ok_or_else(wrong)?;
        array
            .iter()
            .map(|value| value.as_str().map(str::to_owned).ok_or_else(wrong))
            .collect()
    }

    fn unknown(&self, key: &str, at: usize, known: &[&str]) -> RuleError {
        let help = near_miss(key, known.iter().copied())
            .unwrap_or_else(|| format!("known are: {}", known.join(", ")));
        self.error(at, format!("there is no setting '{key}'"), Some(help))
    }

    fn error(&self, at: usize, message: String, help: Option<String>) -> RuleError {
        let (line, column) = self.position(at);
        let text = self.text.lines().nth(line - 1).unwrap_or_default();
        RuleError {
            message,
            column,
            text: text.to_owned(),
            help,
            origin: Some(format!("{}:{line}:{column}", self.file)),
        }
    }

    /// Line and column, from 1.
    fn position(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |n| n + 1);
        (
            before.matches('\n').count() + 1,
            before[line_start..].chars().count() + 1,
        )
    }
}

impl Origin {
    /// Adds the place in the file to an error about the rule's text.
    pub(crate) fn locate(&self, mut error: RuleError) -> RuleError {
        let at: usize = error
            .text
            .chars()
            .take(error.column - 1)
            .map(char::len_utf8)
            .sum();
        let part = self.parts.iter().rev().find(|part| part.0 <= at);
        let (offset, line, column) = part.or(self.parts.first()).copied().unwrap_or((0, 1, 1));
        let column = column + at.saturating_sub(offset);
        error.origin = Some(format!("{}:{line}:{column}", self.file));
        error
    }
}

impl Rule {
    pub(crate) fn error(&self, problem: Problem) -> RuleError {
        let error = problem.in_text(&self.text);
        match &self.origin {
            Some(origin) => origin.locate(error),
            None => error,
        }
    }
}

fn start(item: &Item) -> usize {
    item.span().map_or(0, |span| span.start)
}
