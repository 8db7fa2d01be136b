//! A rule as it was written: which functions, under which condition, what of them is recorded.
//! Writing one out gives a text that reads as the same rule.

use std::fmt;
use std::sync::Arc;

use crate::compile::{FunctionInfo, means};
use crate::pattern::Pattern;

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    /// By which other rules refer to it.
    pub name: Option<String>,
    pub pattern: Pattern,
    /// What the user calls the arguments; `None` for those left out with `_`.
    pub names: Vec<Option<String>>,
    pub condition: Option<Expr>,
    /// What is recorded, in order.
    pub record: Vec<Expr>,
    /// Not more than so many calls are kept.
    pub first: Option<u64>,
    /// Not more than so many calls are kept in a second.
    pub per_second: Option<u64>,
    /// As it was written.
    pub text: Arc<str>,
    /// Where it was written.
    pub origin: Option<Origin>,
}

/// A rule that was put together from the strings of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub file: String,
    /// Offset in the rule's text, line and column of the file, in order.
    pub(crate) parts: Vec<(usize, usize, usize)>,
}

impl Rule {
    /// A part of its condition that is not what it says where some functions are not counted: who
    /// is directly above, and what a function takes without those below it.
    pub fn needs_all_functions(&self) -> Option<String> {
        let mut part = None;
        if let Some(condition) = &self.condition {
            condition.visit(&mut |e| {
                let is = |e: &Expr, kind: fn(&Kind) -> bool| kind(&e.kind);
                let own_time = |a: &Expr, b: &Expr| {
                    is(a, |k| *k == Kind::SelfTime) && is(b, |k| matches!(k, Kind::Time(_)))
                };
                let needs = match &e.kind {
                    Kind::Caller(_) => true,
                    Kind::Compare(_, a, b) => own_time(a, b) || own_time(b, a),
                    _ => false,
                };
                if needs {
                    part.get_or_insert_with(|| e.to_string());
                }
            });
        }
        part
    }

    /// Whether it is a rule on this function.
    pub fn chooses(&self, function: &FunctionInfo<'_>) -> bool {
        means(&self.pattern, function)
    }

    /// Whether its condition asks for calls below this function.
    pub fn asks_above(&self, function: &FunctionInfo<'_>) -> bool {
        let mut asks = false;
        if let Some(condition) = &self.condition {
            condition.visit(&mut |e| {
                asks |= matches!(&e.kind, Kind::Above(pattern) if means(pattern, function));
            });
        }
        asks
    }
}

impl PartialEq for Rule {
    /// Where it was written does not matter.
    fn eq(&self, other: &Rule) -> bool {
        self.name == other.name
            && self.pattern == other.pattern
            && self.names == other.names
            && self.condition == other.condition
            && self.record == other.record
            && self.first == other.first
            && self.per_second == other.per_second
    }
}

/// A part of a condition or a value to record.
#[derive(Clone, Debug)]
pub struct Expr {
    pub kind: Kind,
    /// Where it stands in the rule's text.
    pub(crate) at: usize,
}

impl Expr {
    /// Shows `see` this expression and all that it consists of.
    pub(crate) fn visit(&self, see: &mut dyn FnMut(&Expr)) {
        see(self);
        match &self.kind {
            Kind::Field(a, _)
            | Kind::Arrow(a, _)
            | Kind::Deref(a)
            | Kind::Cast(a, _)
            | Kind::Negative(a)
            | Kind::Invert(a)
            | Kind::Length(a)
            | Kind::AtExit(a)
            | Kind::Changed(a)
            | Kind::Matches(a, _)
            | Kind::Is(a, _)
            | Kind::Not(a) => a.visit(see),
            Kind::Index(a, b)
            | Kind::Binary(_, a, b)
            | Kind::Compare(_, a, b)
            | Kind::And(a, b)
            | Kind::Or(a, b) => {
                a.visit(see);
                b.visit(see);
            }
            Kind::Slice(a, b, c) => {
                a.visit(see);
                b.visit(see);
                c.visit(see);
            }
            _ => {}
        }
    }
}

impl PartialEq for Expr {
    fn eq(&self, other: &Expr) -> bool {
        self.kind == other.kind
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    Number(u64),
    Float(f64),
    /// Nanoseconds.
    Time(u64),
    Text(String),
    Char(u8),
    Bool(bool),
    Null,
    /// An argument, or a name of an enumeration's.
    Name(String),
    /// The nth argument, from 1.
    Arg(u32),
    Ret,
    Errno,
    Duration,
    SelfTime,
    Waited,
    /// The thread's number or name.
    Thread,
    /// The call was left by an exception; or its type.
    Exception,
    Message,
    /// All arguments.
    Args,
    Field(Box<Expr>, String),
    Arrow(Box<Expr>, String),
    Index(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<Expr>, Box<Expr>),
    Deref(Box<Expr>),
    Cast(Box<Expr>, RawType),
    Negative(Box<Expr>),
    Invert(Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Length(Box<Expr>),
    AtExit(Box<Expr>),
    Changed(Box<Expr>),
    Compare(Compare, Box<Expr>, Box<Expr>),
    Matches(Box<Expr>, String),
    /// `x is Variant`
    Is(Box<Expr>, String),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Caller(Pattern),
    Above(Pattern),
    /// Some argument's type has a name in which this regular expression is found.
    Takes(String),
    Returns(String),
    While(String),
    After(String),
    Every(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Shl,
    Shr,
}

impl Binary {
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Binary::Add => "+",
            Binary::Sub => "-",
            Binary::Mul => "*",
            Binary::Div => "/",
            Binary::Rem => "%",
            Binary::And => "&",
            Binary::Or => "|",
            Binary::Xor => "^",
            Binary::Shl => "<<",
            Binary::Shr => ">>",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Compare {
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Compare::Eq => "==",
            Compare::Ne => "!=",
            Compare::Lt => "<",
            Compare::Le => "<=",
            Compare::Gt => ">",
            Compare::Ge => ">=",
        }
    }
}

/// Types that need no debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawType {
    Signed(u8),
    Unsigned(u8),
    F32,
    F64,
    Bool,
    Char,
    Pointer,
    Text,
}

pub(crate) const RAW_TYPES: [(&str, RawType); 20] = [
    ("int", RawType::Signed(4)),
    ("uint", RawType::Unsigned(4)),
    ("long", RawType::Signed(8)),
    ("ulong", RawType::Unsigned(8)),
    ("i8", RawType::Signed(1)),
    ("u8", RawType::Unsigned(1)),
    ("i16", RawType::Signed(2)),
    ("u16", RawType::Unsigned(2)),
    ("i32", RawType::Signed(4)),
    ("u32", RawType::Unsigned(4)),
    ("i64", RawType::Signed(8)),
    ("u64", RawType::Unsigned(8)),
    ("size", RawType::Unsigned(8)),
    ("f32", RawType::F32),
    ("f64", RawType::F64),
    ("float", RawType::F32),
    ("double", RawType::F64),
    ("bool", RawType::Bool),
    ("char", RawType::Char),
    ("ptr", RawType::Pointer),
];

impl RawType {
    pub(crate) fn from_name(name: &str) -> Option<RawType> {
        if name == "str" {
            return Some(RawType::Text);
        }
        RAW_TYPES.iter().find(|(n, _)| *n == name).map(|(_, t)| *t)
    }

    fn name(self) -> &'static str {
        match self {
            RawType::Text => "str",
            // The sized names say most.
            RawType::Signed(1) => "i8",
            RawType::Signed(2) => "i16",
            RawType::Signed(4) => "i32",
            RawType::Signed(_) => "i64",
            RawType::Unsigned(1) => "u8",
            RawType::Unsigned(2) => "u16",
            RawType::Unsigned(4) => "u32",
            RawType::Unsigned(_) => "u64",
            RawType::F32 => "f32",
            RawType::F64 => "f64",
            RawType::Bool => "bool",
            RawType::Char => "char",
            RawType::Pointer => "ptr",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pattern)?;
        if !self.names.is_empty() {
            let names: Vec<&str> = self
                .names
                .iter()
                .map(|n| n.as_deref().unwrap_or("_"))
                .collect();
            write!(f, "({})", names.join(", "))?;
        }
        let mut parts = Vec::new();
        if let Some(condition) = &self.condition {
            parts.push(condition.to_string());
        }
        if let Some(first) = self.first {
            parts.push(format!("first {first}"));
        }
        if let Some(rate) = self.per_second {
            parts.push(format!("{rate}/s"));
        }
        if !parts.is_empty() {
            write!(f, ": {}", parts.join(" and "))?;
        }
        if !self.record.is_empty() {
            let record: Vec<String> = self.record.iter().map(Expr::to_string).collect();
            write!(f, "; record {}", record.join(", "))?;
        }
        match &self.name {
            Some(name) => write!(f, "; as {name}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Number(n) => write!(f, "{n}"),
            Kind::Float(x) => write!(f, "{x:?}"),
            Kind::Time(ns) => write!(f, "{}", Nanos(*ns)),
            Kind::Text(text) => write!(f, "{}", Quoted(text, '"')),
            Kind::Char(byte) => write!(f, "{}", Quoted(&(*byte as char).to_string(), '\'')),
            Kind::Bool(b) => write!(f, "{b}"),
            Kind::Null => f.write_str("null"),
            Kind::Name(name) => f.write_str(name),
            Kind::Arg(n) => write!(f, "arg{n}"),
            Kind::Ret => f.write_str("ret"),
            Kind::Errno => f.write_str("errno"),
            Kind::Duration => f.write_str("duration"),
            Kind::SelfTime => f.write_str("self"),
            Kind::Waited => f.write_str("waiting"),
            Kind::Thread => f.write_str("thread"),
            Kind::Exception => f.write_str("exception"),
            Kind::Message => f.write_str("exception.message"),
            Kind::Args => f.write_str("args"),
            Kind::Field(of, name) => write!(f, "{of}.{name}"),
            Kind::Arrow(of, name) => write!(f, "{of}->{name}"),
            Kind::Index(of, i) => write!(f, "{of}[{i}]"),
            Kind::Slice(of, from, to) => write!(f, "{of}[{from}..{to}]"),
            Kind::Deref(of) => write!(f, "(*{of})"),
            Kind::Cast(of, ty) => write!(f, "{of}:{}", ty.name()),
            Kind::Negative(of) => write!(f, "(-{of})"),
            Kind::Invert(of) => write!(f, "(~{of})"),
            Kind::Binary(op, a, b) => write!(f, "({a} {} {b})", op.sign()),
            Kind::Length(of) => write!(f, "len({of})"),
            Kind::AtExit(of) => write!(f, "exit({of})"),
            Kind::Changed(of) => write!(f, "changed({of})"),
            Kind::Compare(op, a, b) => write!(f, "({a} {} {b})", op.sign()),
            Kind::Matches(of, regex) => write!(f, "({of} =~ {})", Quoted(regex, '/')),
            Kind::Is(of, variant) => write!(f, "({of} is {variant})"),
            Kind::And(a, b) => write!(f, "({a} and {b})"),
            Kind::Or(a, b) => write!(f, "({a} or {b})"),
            Kind::Not(a) => write!(f, "(not {a})"),
            Kind::Caller(pattern) => write!(f, "caller {}", Quoted(&pattern.to_string(), '"')),
            Kind::Above(pattern) => write!(f, "above {}", Quoted(&pattern.to_string(), '"')),
            Kind::Takes(regex) => write!(f, "takes {}", Quoted(regex, '/')),
            Kind::Returns(regex) => write!(f, "returns {}", Quoted(regex, '/')),
            Kind::While(rule) => write!(f, "while {rule}"),
            Kind::After(rule) => write!(f, "after {rule}"),
            Kind::Every(n) => write!(f, "every {n}"),
        }
    }
}

/// A text between marks.
pub(crate) struct Quoted<'a>(pub &'a str, pub char);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = self.1;
        write!(f, "{mark}")?;
        for c in self.0.chars() {
            match c {
                _ if c == mark => write!(f, "\\{c}")?,
                _ if mark == '/' => write!(f, "{c}")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\t' => f.write_str("\\t")?,
                '\r' => f.write_str("\\r")?,
                '\0' => f.write_str("\\0")?,
                _ => write!(f, "{c}")?,
            }
        }
        write!(f, "{mark}")
    }
}

struct Nanos(u64);

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)];
        for (unit, scale) in units {
            if self.0 != 0 && self.0.is_multiple_of(scale) {
                return write!(f, "{}{unit}", self.0 / scale);
            }
        }
        write!(f, "{}ns", self.0)
    }
}
