//! What is wrong with a rule, where, and what was probably meant.

use std::fmt;

/// A rule that cannot be used. Found before the target is touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct RuleError {
    pub message: String,
    /// Of the character in `text` that is to blame, from 1.
    pub column: usize,
    /// The rule as it was written.
    pub text: String,
    pub help: Option<String>,
    /// File, line and column, where the rule is one of a file.
    pub origin: Option<String>,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        write!(f, "{}", self.message)?;
        if !self.text.is_empty() {
            let indent = self.column.saturating_sub(1);
            write!(f, "\n  {}\n  {:indent$}^", self.text, "")?;
        }
        match &self.help {
            Some(help) => write!(f, "\n  {help}"),
            None => Ok(()),
        }
    }
}

/// An error before it is known which text it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Byte offset.
    pub at: usize,
    pub message: String,
    pub help: Option<String>,
}

impl Problem {
    pub(crate) fn new(at: usize, message: impl Into<String>) -> Problem {
        Problem {
            at,
            message: message.into(),
            help: None,
        }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }

    pub(crate) fn help_if(mut self, help: Option<String>) -> Problem {
        self.help = help.or(self.help);
        self
    }

    pub(crate) fn in_text(self, text: &str) -> RuleError {
        let before = text.get(..self.at).unwrap_or(text);
        RuleError {
            column: before.chars().count() + 1,
            message: self.message,
            text: text.to_owned(),
            help: self.help,
            origin: None,
        }
    }
}

/// "did you mean 'x'?", for the candidate that is nearest to `wrong`, if one is near.
pub(crate) fn near_miss<'a>(
    wrong: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let lower = wrong.to_lowercase();
    let limit = (wrong.chars().count() / 3).clamp(1, 6);
    candidates
        .into_iter()
        // The distance is at least the difference in length: most are out without being compared.
        .filter(|c| c.len().abs_diff(wrong.len()) <= limit)
        .map(|c| (strsim::damerau_levenshtein(&lower, &c.to_lowercase()), c))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, c)| (*distance, c.len()))
        .map(|(_, candidate)| format!("did you mean '{candidate}'?"))
}
