//! Which calls are recorded, and what of them: the rule language, checked against the target's
//! functions and types before the target is touched, and translated into programs that the agent
//! runs.
//!
//! The way of a rule: text or rules.toml -> `parse` -> `Rule` -> `compile`, with the target's
//! functions and their types from `dwarf` -> programs for the agent (`thalweg_bytecode`) and
//! descriptions of the values -> the agent records bytes -> `decode` -> values that people read.
#![forbid(unsafe_code)]

mod abi;
mod ast;
mod compile;
mod dfa;
mod dwarf;
mod error;
mod file;
mod go;
mod ir;
mod lex;
mod lower;
mod mangle;
mod operand;
mod parse;
mod pattern;
mod quick;
mod record;
mod redact;
mod shape;
mod signatures;
mod thrown;
mod types;
mod value;

pub use ast::{Binary, Compare, Expr, Kind, Origin, RawType, Rule};
pub use compile::{Compiled, FunctionInfo, MAX_RULES, Options, compile, means};
pub use error::RuleError;
pub use file::RulesFile;
pub use pattern::Pattern;
pub use quick::{
    AskedAt, Decided, Decision, Formula, Leaf, Pair, Question, Range, Relation, Save, Source, Test,
    decide,
};
pub use redact::Redactions;
pub use signatures::signatures;
pub use thrown::{Throwing, throwing_programs, thrown_descriptions};
pub use value::{Case, Description, Part, Recorded, Shape, Value, When, decode, decode_all};

/// The most bytes of one value that are ever copied.
pub const MAX_TEXT: usize = 8192;

/// How many bytes of one value are copied unless something else is said.
pub const TEXT_LIMIT: usize = 256;
