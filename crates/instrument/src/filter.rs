//! Which functions a user asked for: the first thing decided about a function, before its code is looked at.
//!
//! A function that is filtered out is never planned, never patched, and so costs nothing.

use regex::RegexSet;

/// A pattern that is not a regular expression.
#[derive(Debug, thiserror::Error)]
#[error(
    "the pattern '{pattern}' given to {option} is not a regular expression: {reason} \
     (a literal . ( [ * + ? needs a \\ before it)"
)]
pub struct BadPattern {
    pub option: &'static str,
    pub pattern: String,
    pub reason: String,
}

/// Whether Python functions are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Python {
    #[default]
    Off,
    /// Where it is a CPython that is known.
    Auto,
    /// The same, and whoever leaves the evaluator out is told what that means.
    On,
}

/// keep = (no -F, or some -F matches the demangled or the linkage name) and no -N matches either;
/// likewise --lib and --no-lib with the file name of the module, the executable's included.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    functions: KeepDrop,
    modules: KeepDrop,
    /// Functions at whose entry a checkpoint is made. They are counted whatever the other patterns say.
    checkpoints: RegexSet,
    /// Functions that allocate are counted too, whatever the patterns say.
    allocators: bool,
    /// So are functions that make system calls.
    system_calls: bool,
    python: Python,
    /// And Java's methods, where a virtual machine is.
    java: bool,
    /// Their blocks are counted, and not their calls.
    blocks: bool,
}

impl Filter {
    pub fn new(
        keep: &[String],
        leave_out: &[String],
        lib: &[String],
        no_lib: &[String],
    ) -> Result<Filter, BadPattern> {
        Ok(Filter {
            functions: KeepDrop {
                keep: compile("-F", keep)?,
                drop: compile("-N", leave_out)?,
            },
            modules: KeepDrop {
                keep: compile("--lib", lib)?,
                drop: compile("--no-lib", no_lib)?,
            },
            checkpoints: RegexSet::empty(),
            allocators: false,
            system_calls: false,
            python: Python::Off,
            java: false,
            blocks: false,
        })
    }

    /// The same without any function: nothing is to be patched but the gates.
    pub fn with_no_function(self) -> Filter {
        Filter {
            functions: KeepDrop {
                keep: RegexSet::empty(),
                drop: RegexSet::new([""]).expect("it matches everything"),
            },
            python: Python::Off,
            java: false,
            ..self
        }
    }

    pub fn with_checkpoints(self, patterns: &[String]) -> Result<Filter, BadPattern> {
        let checkpoints = compile("--checkpoint-on", patterns)?;
        Ok(Filter {
            checkpoints,
            ..self
        })
    }

    pub fn with_allocators(self, allocators: bool) -> Filter {
        Filter { allocators, ..self }
    }

    pub fn with_system_calls(self, system_calls: bool) -> Filter {
        Filter {
            system_calls,
            ..self
        }
    }

    pub fn with_python(self, python: Python) -> Filter {
        Filter { python, ..self }
    }

    pub(crate) fn python(&self) -> Python {
        self.python
    }

    pub fn with_java(self, java: bool) -> Filter {
        Filter { java, ..self }
    }

    pub fn with_blocks(self, blocks: bool) -> Filter {
        Filter { blocks, ..self }
    }

    pub fn wants_blocks(&self) -> bool {
        self.blocks
    }

    pub fn wants_java(&self) -> bool {
        self.java
    }

    pub fn wants_system_calls(&self) -> bool {
        self.system_calls
    }

    pub fn wants_allocators(&self) -> bool {
        self.allocators
    }

    pub fn has_checkpoints(&self) -> bool {
        !self.checkpoints.is_empty()
    }

    pub fn is_checkpoint(&self, name: &str, linkage_name: Option<&str>) -> bool {
        // What a program calls that asks for one by itself.
        ["thalweg_checkpoint", "thalweg_self::checkpoint"].contains(&name)
            || self.checkpoints.is_match(name)
            || linkage_name.is_some_and(|linkage| self.checkpoints.is_match(linkage))
    }

    /// `file_name` is the last part of the module's path: `libc.so.6`.
    pub fn keeps_module(&self, file_name: &str) -> bool {
        self.modules.keeps(&[file_name])
    }

    pub fn keeps_function(&self, name: &str, linkage_name: Option<&str>) -> bool {
        match linkage_name {
            Some(linkage) if linkage != name => self.functions.keeps(&[name, linkage]),
            _ => self.functions.keeps(&[name]),
        }
    }

    /// No pattern was given, so everything is kept.
    pub fn is_empty(&self) -> bool {
        [&self.functions, &self.modules]
            .iter()
            .all(|side| side.keep.is_empty() && side.drop.is_empty())
    }
}

#[derive(Clone, Debug, Default)]
struct KeepDrop {
    keep: RegexSet,
    drop: RegexSet,
}

impl KeepDrop {
    fn keeps(&self, names: &[&str]) -> bool {
        let some_matches = |set: &RegexSet| names.iter().any(|name| set.is_match(name));
        (self.keep.is_empty() || some_matches(&self.keep)) && !some_matches(&self.drop)
    }
}

fn compile(option: &'static str, patterns: &[String]) -> Result<RegexSet, BadPattern> {
    for pattern in patterns {
        if let Err(error) = regex::Regex::new(pattern) {
            return Err(BadPattern {
                option,
                pattern: pattern.clone(),
                reason: last_line(&error),
            });
        }
    }
    RegexSet::new(patterns).map_err(|error| BadPattern {
        option,
        pattern: patterns.join("|"),
        reason: last_line(&error),
    })
}

/// The regex crate draws a picture of the pattern over several lines; the last one says what is wrong.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.trim_start_matches("error: ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(patterns: &[&str]) -> Vec<String> {
        patterns.iter().map(|p| p.to_string()).collect()
    }

    fn functions(keep: &[&str], drop: &[&str]) -> Filter {
        Filter::new(&strings(keep), &strings(drop), &[], &[]).unwrap()
    }

    #[test]
    fn without_patterns_everything_is_kept() {
        let filter = Filter::default();
        assert!(filter.is_empty());
        assert!(filter.keeps_module("libc.so.6"));
        assert!(filter.keeps_function("main", None));
    }

    #[test]
    fn checkpoints_are_named_by_either_name() {
        let filter = functions(&["^parse"], &[]);
        assert!(!filter.has_checkpoints() && !filter.is_checkpoint("flush", None));
        let filter = filter.with_checkpoints(&strings(&["^flush$"])).unwrap();
        assert!(filter.is_checkpoint("flush", Some("_ZN5flushE")));
        assert!(filter.is_checkpoint("log::flush", Some("flush")));
        assert!(!filter.is_checkpoint("parse", None));
        let error = filter.with_checkpoints(&strings(&["("])).unwrap_err();
        assert_eq!(error.option, "--checkpoint-on");
    }

    #[test]
    fn any_keep_pattern_suffices_and_any_leave_out_pattern_wins() {
        let filter = functions(&["^parse", "^eval"], &["_slow$"]);
        assert!(filter.keeps_function("parse_line", None));
        assert!(filter.keeps_function("eval", None));
        assert!(!filter.keeps_function("print", None));
        assert!(!filter.keeps_function("parse_slow", None));
    }

    #[test]
    fn both_the_demangled_and_the_linkage_name_are_looked_at() {
        let keep = functions(&["^_ZN3net"], &[]);
        assert!(keep.keeps_function("net::send(int)", Some("_ZN3net4sendEi")));
        let drop = functions(&[], &["^_ZN3net"]);
        assert!(!drop.keeps_function("net::send(int)", Some("_ZN3net4sendEi")));
        let demangled = functions(&["net::send"], &[]);
        assert!(demangled.keeps_function("net::send(int)", Some("_ZN3net4sendEi")));
    }

    #[test]
    fn module_patterns_see_file_names_only_and_leave_functions_alone() {
        let filter = Filter::new(
            &[],
            &[],
            &strings(&["^libc\\.", "^server$"]),
            &strings(&["musl"]),
        )
        .unwrap();
        assert!(filter.keeps_module("libc.so.6"));
        assert!(filter.keeps_module("server"));
        assert!(!filter.keeps_module("libstdc++.so.6"));
        assert!(!filter.keeps_module("libc.musl.so"));
        assert!(filter.keeps_function("anything", None));
    }

    #[test]
    fn a_bad_pattern_is_named_with_its_option_and_reason() {
        let error = Filter::new(&[], &[], &[], &strings(&["ok", "lib(c"])).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("'lib(c'"), "{message}");
        assert!(message.contains("--no-lib"), "{message}");
        assert!(message.contains("unclosed group"), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}
