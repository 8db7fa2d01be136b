//! What the user named: a function, several of one name, or a source file.

use anyhow::bail;
use thalweg_model::{FuncId, Profile};

/// What is to be shown.
#[derive(Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Numbers of functions.
    Functions(Vec<FuncId>),
    /// A name as a user gives it, which is the end of a path.
    File(String),
}

/// A function by its whole name, else by a part of it that only one has; else a file.
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
        0 => bail!(
            "no function whose blocks were counted is called '{name}': `thalweg annotate` lists them"
        ),
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
    fn arguments_need_not_be_typed() {
        assert_eq!(without_arguments("net::send(int)"), "net::send");
        assert_eq!(without_arguments("main"), "main");
        assert_eq!(without_arguments("(anonymous)"), "(anonymous)");
    }
}
