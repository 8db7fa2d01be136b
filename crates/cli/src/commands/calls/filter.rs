//! `--where`: which of the recorded calls are shown. Conditions on figures, names and values, all of which must hold.
//!
//! ```text
//! duration > 5ms and thread == worker and sql =~ '^select' and n >= 100
//! ```

use anyhow::{Context, bail};
use regex::Regex;
use serde_json::Value;
use thalweg_formats::calls::Calls;
use thalweg_model::Call;

use crate::args::parse_duration;

/// All conditions of one `--where`.
#[derive(Debug, Default)]
pub struct Where {
    conditions: Vec<Condition>,
}

#[derive(Debug)]
struct Condition {
    what: String,
    compare: Compare,
    text: String,
    pattern: Option<Regex>,
    /// Nanoseconds where the text is a time, else the number that it is.
    number: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compare {
    Matches,
    AtLeast,
    AtMost,
    Equal,
    Unequal,
    More,
    Less,
}

/// Longer ones first.
const SIGNS: [(&str, Compare); 7] = [
    ("=~", Compare::Matches),
    (">=", Compare::AtLeast),
    ("<=", Compare::AtMost),
    ("==", Compare::Equal),
    ("!=", Compare::Unequal),
    (">", Compare::More),
    ("<", Compare::Less),
];

impl Where {
    pub fn parse(text: &str) -> anyhow::Result<Where> {
        let parts = text.split(" and ").flat_map(|part| part.split("&&"));
        let conditions = parts.map(|part| Condition::parse(part.trim()));
        Ok(Where {
            conditions: conditions.collect::<anyhow::Result<_>>()?,
        })
    }

    pub fn holds<'a>(&self, calls: &Calls<'a>, call: &'a Call) -> bool {
        self.conditions
            .iter()
            .all(|condition| condition.holds(calls, call))
    }
}

impl Condition {
    fn parse(text: &str) -> anyhow::Result<Condition> {
        let found = SIGNS
            .iter()
            .filter_map(|(sign, compare)| Some((text.find(sign)?, sign, *compare)))
            .min_by_key(|(at, ..)| *at);
        let Some((at, sign, compare)) = found else {
            bail!(
                "'{text}' is no condition: write WHAT > VALUE (or < >= <= == != =~), where WHAT is duration, self, waiting, \
                 function, thread, module, rule, end, id, pid, tid, request, or the name of a value"
            );
        };
        let what = text[..at].trim().to_string();
        let value = text[at + sign.len()..].trim();
        let value = value.trim_matches(|quote| quote == '\'' || quote == '"');
        if what.is_empty() || value.is_empty() {
            bail!("'{text}' lacks a side");
        }
        let number = value.parse().ok().or_else(|| {
            let time = parse_duration(value).ok()?;
            Some(time.as_nanos() as f64)
        });
        let pattern = match compare {
            Compare::Matches => Some(
                Regex::new(value).with_context(|| format!("'{value}' is no regular expression"))?,
            ),
            _ => None,
        };
        Ok(Condition {
            what,
            compare,
            text: value.to_string(),
            pattern,
            number,
        })
    }

    fn holds<'a>(&self, calls: &Calls<'a>, call: &'a Call) -> bool {
        let number = |n: u64| self.number_holds(n as f64);
        match self.what.as_str() {
            "duration" | "total" => number(call.total_ns()),
            "self" => number(call.self_ns),
            "waiting" => number(call.waited_ns),
            "id" => number(call.id),
            "pid" => number(call.pid.into()),
            "tid" => number(call.tid.into()),
            "request" => number(call.request),
            "function" => self.text_holds(calls.function(call)),
            "module" => self.text_holds(calls.module(call)),
            "thread" => self.text_holds(calls.thread(call)),
            "end" => self.text_holds(call.end.word()),
            "rule" => self.text_holds(calls.rule(call).unwrap_or_default()),
            name => calls.values(call).any(|(known, _, json)| {
                let plain = known.split(':').next().unwrap_or(known);
                (known == name || plain == name) && self.value_holds(json)
            }),
        }
    }

    fn value_holds(&self, json: &str) -> bool {
        match serde_json::from_str(json).unwrap_or(Value::Null) {
            Value::Number(number) => self.number_holds(number.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => self.text_holds(&text),
            other => self.text_holds(&other.to_string()),
        }
    }

    fn number_holds(&self, value: f64) -> bool {
        let Some(number) = self.number else {
            return self.text_holds(&value.to_string());
        };
        match self.compare {
            Compare::Matches => self.text_holds(&value.to_string()),
            Compare::AtLeast => value >= number,
            Compare::AtMost => value <= number,
            Compare::Equal => value == number,
            Compare::Unequal => value != number,
            Compare::More => value > number,
            Compare::Less => value < number,
        }
    }

    fn text_holds(&self, value: &str) -> bool {
        match self.compare {
            Compare::Matches => self.pattern.as_ref().is_some_and(|p| p.is_match(value)),
            Compare::AtLeast => value >= self.text.as_str(),
            Compare::AtMost => value <= self.text.as_str(),
            Compare::Equal => value == self.text,
            Compare::Unequal => value != self.text,
            Compare::More => value > self.text.as_str(),
            Compare::Less => value < self.text.as_str(),
        }
    }
}
