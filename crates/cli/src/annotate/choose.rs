//! What the user named: a function, several of one name, or a source file.

use anyhow::bail;
use regex::Regex;
use thalweg_model::{FuncId, Profile};

/// What is to be shown.
#[derive(Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Numbers of functions.
    Functions(Vec<FuncId>),
    /// A name as a user gives it, which is the end of a path.
    File(String),
}

/// How many functions a pattern may mean: each is shown as a whole.
const MAX_FUNCTIONS: usize = 20;

/// A function by its whole name, else by a part of it that only one has; else a file; else
/// functions by a regular expression.
pub fn choose(profile: &Profile, name: &str) -> anyhow::Result<Chosen> {
    let counted = counted(profile);
    let with = |is: &dyn Fn(&str) -> bool| -> Vec<FuncId> {
        let all = counted.iter().copied();
        all.filter(|&f| is(&profile.functions[f.index()].name))
            .collect()
    };
    let same = with(&|own| own == name || without_arguments(own) == name);
    if !same.is_empty() {
        return Ok(Chosen::Functions(same));
    }
    let is_file = name.contains('/')
        || name.rsplit_once('.').is_some_and(|(_, end)| {
            [
                "c", "h", "cc", "cpp", "cxx", "hpp", "hh", "rs", "inc", "ipp", "tcc", "m", "f90",
            ]
            .contains(&end)
        });
    if is_file {
        return Ok(Chosen::File(name.to_owned()));
    }
    let similar = with(&|own| own.contains(name));
    match similar.len() {
        0 => {
            let found = Regex::new(name).map(|regex| with(&|own| regex.is_match(own)));
            match found {
                Ok(found) if found.len() > MAX_FUNCTIONS => bail!(
                    "'{name}' matches {} functions, more than {MAX_FUNCTIONS}: choose fewer",
                    found.len()
                ),
                Ok(found) if !found.is_empty() => Ok(Chosen::Functions(found)),
                _ => bail!(
                    "no function whose blocks were counted is called '{name}' or matches it: `thalweg annotate` lists them"
                ),
            }
        }
        1 => Ok(Chosen::Functions(similar)),
        many => {
            const NAMED: usize = 8;
            let names: Vec<&str> = similar
                .iter()
                .take(NAMED)
                .map(|&f| profile.functions[f.index()].name.as_str())
                .collect();
            bail!(
                "{many} functions have '{name}' in their names: {}{}",
                names.join(", "),
                if many > NAMED { ", ..." } else { "" }
            )
        }
    }
}

/// Functions that have blocks, in order.
fn counted(profile: &Profile) -> Vec<FuncId> {
    let blocks = profile.blocks.iter().flat_map(|module| &module.blocks);
    let mut all: Vec<FuncId> = blocks.map(|block| block.function).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// `parse(char const*)` is `parse`, too.
fn without_arguments(name: &str) -> &str {
    match name.find('(') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}

/// Whether a file of debug information is the one that is meant by `name`.
pub fn is_file(path: &str, name: &str) -> bool {
    path == name
        || path
            .strip_suffix(name)
            .is_some_and(|rest| rest.ends_with('/') || name.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_by_the_end_of_its_path() {
        assert!(is_file("/build/src/parse.c", "parse.c"));
        assert!(is_file("/build/src/parse.c", "src/parse.c"));
        assert!(!is_file("/build/src/re_parse.c", "parse.c"));
        assert!(is_file("parse.c", "parse.c"));
    }

    #[test]
    fn a_regular_expression_means_all_functions_that_match() {
        let names = (0..30).map(|n| match n {
            0 => "parse_value".to_string(),
            1 => "parse_text".to_string(),
            2 => "emit".to_string(),
            n => format!("other_{n}"),
        });
        let functions = names.map(|name| thalweg_model::Function {
            name,
            ..Default::default()
        });
        let block = |function| thalweg_model::Block {
            function: FuncId(function),
            ..Default::default()
        };
        let profile = Profile {
            functions: functions.collect(),
            blocks: vec![thalweg_model::ModuleBlocks {
                blocks: (0..30).map(block).collect(),
                ..Default::default()
            }],
            ..Profile::default()
        };
        let chosen = |name: &str| choose(&profile, name).map_err(|error| error.to_string());
        let parse = Chosen::Functions(vec![FuncId(0), FuncId(1)]);
        assert_eq!(chosen("^parse_"), Ok(parse));
        assert_eq!(chosen("emit"), Ok(Chosen::Functions(vec![FuncId(2)])));
        let many = chosen("^other_").unwrap_err();
        assert!(many.contains("27 functions, more than 20"), "{many}");
        assert!(chosen("^nothing").unwrap_err().contains("or matches it"));
    }

    #[test]
    fn arguments_need_not_be_typed() {
        assert_eq!(without_arguments("net::send(int)"), "net::send");
        assert_eq!(without_arguments("main"), "main");
        assert_eq!(without_arguments("(anonymous)"), "(anonymous)");
    }
}
