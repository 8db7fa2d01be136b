//! Names whose values are never read.

use regex::Regex;

use crate::ast::{Expr, Kind, Rule};
use crate::error::RuleError;

/// Patterns of names of arguments and fields. A value under such a name is never read: it is shown
/// as redacted, and no condition can ask for it.
#[derive(Clone, Debug, Default)]
pub struct Redactions {
    patterns: Vec<Regex>,
}

impl Redactions {
    /// Regular expressions, searched for in names without regard to case.
    pub fn new(patterns: &[String]) -> Result<Redactions, RuleError> {
        let compile = |pattern: &String| {
            let result = regex::RegexBuilder::new(pattern)
                .case_insensitive(true)
                .build();
            result.map_err(|error| RuleError {
                message: format!(
                    "'{pattern}' among the names that are not to be read is not a regular expression: {}",
                    error.to_string().lines().last().unwrap_or_default()
                ),
                column: 1,
                text: pattern.clone(),
                help: None,
                origin: None,
            })
        };
        Ok(Redactions {
            patterns: patterns.iter().map(compile).collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn hides(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.is_match(name))
    }

    /// The name on the way to `e` that must not be followed, and where it stands. `parameters` are
    /// the function's own names.
    pub(crate) fn on_the_way(
        &self,
        e: &Expr,
        rule: &Rule,
        parameters: &[String],
    ) -> Option<(String, usize)> {
        if self.patterns.is_empty() {
            return None;
        }
        let mut found = None;
        e.visit(&mut |e| {
            let own = |n: usize| parameters.get(n).cloned();
            let names = match &e.kind {
                Kind::Name(name) => {
                    let given = rule.names.iter();
                    let position = given.clone().position(|n| n.as_deref() == Some(name));
                    vec![Some(name.clone()), position.and_then(own)]
                }
                Kind::Arg(n) => vec![own(*n as usize - 1)],
                Kind::Field(_, name) | Kind::Arrow(_, name) => vec![Some(name.clone())],
                _ => Vec::new(),
            };
            for name in names.into_iter().flatten() {
                if found.is_none() && self.hides(&name) {
                    found = Some((name, e.at));
                }
            }
        });
        found
    }
}
