//! Functions that questions have in addition.
//!
//! | | |
//! |---|---|
//! | `path_contains(path, 'F')` | the context is a call of F, or below one |
//! | `path_contains(path, 'F -> G')` | F calls G on the way there; `F ->> G`: not at once |
//! | `path_ends(path, 'F -> G')` | the context is a call of G on that way |
//! | `within(path, 'F')` | strictly below a call of F |
//! | `share(part, whole)` | percent, null where the whole is 0 |
//!
//! All but the last know paths: the table of contexts is read once per question that has one of them.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use arrow::array::{Array, AsArray, BooleanArray, Float64Array};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use datafusion::common::{DataFusionError, exec_err};
use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
use datafusion::prelude::SessionContext;

/// Parent and function of each context.
pub type Paths = HashMap<i64, (Option<i64>, Arc<str>)>;

/// Those of a session, once a question has asked for them.
pub type KnownPaths = Arc<RwLock<Option<Arc<Paths>>>>;

/// Deeper ones are not followed to their root.
const MAX_DEPTH: usize = 100_000;

pub fn is_used(sql: &str) -> bool {
    let sql = sql.to_ascii_lowercase();
    ["path_contains", "path_ends", "within"]
        .iter()
        .any(|name| sql.contains(name))
}

pub async fn load(engine: &SessionContext, known: &KnownPaths) -> anyhow::Result<()> {
    let rows = engine
        .sql("select distinct path, parent, function from contexts")
        .await?
        .collect()
        .await?;
    let mut names: HashMap<String, Arc<str>> = HashMap::new();
    let mut paths = Paths::new();
    for batch in rows {
        let own = batch.column(0).as_primitive::<Int64Type>();
        let parents = batch.column(1).as_primitive::<Int64Type>();
        let functions = arrow::compute::cast(batch.column(2), &DataType::Utf8)?;
        let functions = functions.as_string::<i32>();
        for row in 0..batch.num_rows() {
            let name = functions.value(row);
            let name = names
                .entry(name.to_owned())
                .or_insert_with(|| name.into())
                .clone();
            let parent = parents.is_valid(row).then(|| parents.value(row));
            paths.insert(own.value(row), (parent, name));
        }
    }
    if let Ok(mut known) = known.write() {
        *known = Some(Arc::new(paths));
    }
    Ok(())
}

/// Names, of which each is called by the one before: at once, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    names: Vec<String>,
    /// Between each name and the next: others may stand there.
    loose: Vec<bool>,
}

impl Chain {
    /// `F -> G ->> H`.
    pub fn parse(text: &str) -> Option<Chain> {
        let mut chain = Chain {
            names: Vec::new(),
            loose: Vec::new(),
        };
        let mut rest = text;
        // `operator->` is a name: an arrow has blanks around it.
        loop {
            let next = rest
                .find(" -> ")
                .into_iter()
                .chain(rest.find(" ->> "))
                .min();
            let Some(at) = next else {
                chain.names.push(rest.trim().to_owned());
                break;
            };
            chain.names.push(rest[..at].trim().to_owned());
            let loose = rest[at..].starts_with(" ->> ");
            chain.loose.push(loose);
            rest = &rest[at + if loose { 5 } else { 4 }..];
        }
        chain
            .names
            .iter()
            .all(|name| !name.is_empty())
            .then_some(chain)
    }

    pub fn last(&self) -> &str {
        self.names.last().map_or("", String::as_str)
    }

    /// The first of these is the last of the chain.
    fn is_end(&self, innermost_first: &[&str]) -> bool {
        !innermost_first.is_empty() && self.ends_at(innermost_first, 0, self.names.len() - 1)
    }

    /// `innermost_first`: the functions on the path.
    fn is_on(&self, innermost_first: &[&str]) -> bool {
        let last = self.names.len() - 1;
        (0..innermost_first.len()).any(|at| self.ends_at(innermost_first, at, last))
    }

    /// The name with this number stands at `at`, and those before it above.
    fn ends_at(&self, path: &[&str], at: usize, number: usize) -> bool {
        if path[at] != self.names[number] {
            return false;
        }
        if number == 0 {
            return true;
        }
        let above = at + 1;
        match self.loose[number - 1] {
            false => above < path.len() && self.ends_at(path, above, number - 1),
            // The nearest that fits leaves most above it, unless what is above it must be at once.
            true => (above..path.len()).any(|above| self.ends_at(path, above, number - 1)),
        }
    }
}

fn path_of(paths: &Paths, path: i64) -> Vec<&str> {
    let mut names = Vec::new();
    let mut at = Some(path);
    while let Some((parent, name)) = at.and_then(|at| paths.get(&at)) {
        names.push(&**name);
        at = *parent;
        if names.len() > MAX_DEPTH {
            break;
        }
    }
    names
}

fn decide(
    known: &KnownPaths,
    arguments: &[ColumnarValue],
    is_wanted: impl Fn(&Chain, &[&str]) -> bool,
) -> Result<ColumnarValue, DataFusionError> {
    let arrays = ColumnarValue::values_to_arrays(arguments)?;
    let paths = known.read().ok().and_then(|paths| paths.clone());
    let Some(paths) = paths else {
        return exec_err!("no paths are known");
    };
    let own = arrays[0].as_primitive::<Int64Type>();
    let patterns = arrays[1].as_string::<i32>();
    let mut chains: HashMap<&str, Option<Chain>> = HashMap::new();
    let mut decided: HashMap<(i64, &str), bool> = HashMap::new();
    let mut answers = Vec::with_capacity(own.len());
    for row in 0..own.len() {
        if own.is_null(row) || patterns.is_null(row) {
            answers.push(None);
            continue;
        }
        let (path, pattern) = (own.value(row), patterns.value(row));
        let Some(chain) = chains
            .entry(pattern)
            .or_insert_with(|| Chain::parse(pattern))
        else {
            return exec_err!(
                "'{pattern}' is no path: 'F', 'F -> G' (at once) or 'F ->> G' (anywhere below)"
            );
        };
        let answer = *decided
            .entry((path, pattern))
            .or_insert_with(|| is_wanted(chain, &path_of(&paths, path)));
        answers.push(Some(answer));
    }
    Ok(ColumnarValue::Array(Arc::new(BooleanArray::from(answers))))
}

pub fn register(engine: &SessionContext) -> KnownPaths {
    let known = KnownPaths::default();
    let of_path = || vec![DataType::Int64, DataType::Utf8];
    let paths = known.clone();
    let contains = move |arguments: &[ColumnarValue]| {
        decide(&paths, arguments, |chain, path| chain.is_on(path))
    };
    engine.register_udf(create_udf(
        "path_contains",
        of_path(),
        DataType::Boolean,
        Volatility::Stable,
        Arc::new(contains),
    ));
    let paths = known.clone();
    let ends = move |arguments: &[ColumnarValue]| {
        decide(&paths, arguments, |chain, path| chain.is_end(path))
    };
    engine.register_udf(create_udf(
        "path_ends",
        of_path(),
        DataType::Boolean,
        Volatility::Stable,
        Arc::new(ends),
    ));
    let paths = known.clone();
    let within = move |arguments: &[ColumnarValue]| {
        decide(&paths, arguments, |chain, path| {
            path.get(1..).is_some_and(|above| chain.is_on(above))
        })
    };
    engine.register_udf(create_udf(
        "within",
        of_path(),
        DataType::Boolean,
        Volatility::Stable,
        Arc::new(within),
    ));
    let share = |arguments: &[ColumnarValue]| {
        let arrays = ColumnarValue::values_to_arrays(arguments)?;
        let (part, whole) = (
            arrays[0].as_primitive::<Float64Type>(),
            arrays[1].as_primitive::<Float64Type>(),
        );
        let shares: Float64Array = part
            .iter()
            .zip(whole)
            .map(|pair| match pair {
                (Some(part), Some(whole)) if whole != 0.0 => Some(100.0 * part / whole),
                _ => None,
            })
            .collect();
        Ok(ColumnarValue::Array(Arc::new(shares)))
    };
    let numbers = vec![DataType::Float64, DataType::Float64];
    engine.register_udf(create_udf(
        "share",
        numbers,
        DataType::Float64,
        Volatility::Immutable,
        Arc::new(share),
    ));
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_found_where_it_is() {
        let path = ["leaf", "g", "x", "f", "main"];
        for (text, is_there) in [
            ("f", true),
            ("none", false),
            ("main -> f", true),
            ("f -> g", false),
            ("f ->> g", true),
            ("g ->> f", false),
            ("main -> f -> x -> g -> leaf", true),
            ("main ->> x -> g", true),
            ("main ->> main", false),
        ] {
            assert_eq!(Chain::parse(text).unwrap().is_on(&path), is_there, "{text}");
        }
        assert_eq!(
            Chain::parse("a::operator->"),
            Chain::parse(" a::operator-> ")
        );
        assert!(Chain::parse("f ->  -> g").is_none());
        // A loose step that takes the nearest would miss the one whose caller is right.
        assert!(
            Chain::parse("main -> f ->> z")
                .unwrap()
                .is_on(&["z", "f", "y", "f", "main"])
        );
    }
}
