//! Comparisons: of numbers, of texts, of names of enumerations and variants.

use thalweg_bytecode::op;

use super::{LOOKED_AT, Lowered, Lowering, named};
use crate::ast::{Compare, Expr, Kind, RawType};
use crate::dfa::{self, Refusal};
use crate::error::{Problem, near_miss};
use crate::ir::{Ir, TextSource};
use crate::mangle;
use crate::operand::{Known, Operand};
use crate::types::{Type, TypeKind};

impl Lowering<'_> {
    pub(super) fn compare(&self, compare: Compare, a: &Expr, b: &Expr, at: usize) -> Lowered<Ir> {
        if let Kind::Text(text) = &b.kind {
            return self.compare_text(compare, a, text, at);
        }
        if let Kind::Text(text) = &a.kind {
            return self.compare_text(compare, b, text, at);
        }
        // `self` is a time if it is compared with one.
        if let (Kind::SelfTime, Kind::Time(_)) | (Kind::Time(_), Kind::SelfTime) =
            (&a.kind, &b.kind)
        {
            let time = |e: &Expr| match e.kind {
                Kind::Time(ns) => Ir::Const(ns),
                _ => Ir::Leaf(op::SELF, None),
            };
            return Ok(comparison(compare, time(a), time(b), Signedness::Unsigned));
        }
        let (left, right) = (self.operand_beside(a, b)?, self.operand_beside(b, a)?);
        for (operand, other, e) in [(&left, &right, b), (&right, &left, a)] {
            let is_time = matches!(operand.ty.kind, TypeKind::Time);
            if is_time && !matches!(other.ty.kind, TypeKind::Time) {
                let problem =
                    Problem::new(e.at, format!("'{e}' is {}, not a time", named(&other.ty)));
                return Err(match e.kind {
                    Kind::Number(n) => problem.help(format!("a time has a unit, as in: {n}ms")),
                    _ => problem,
                });
            }
            let null = matches!(e.kind, Kind::Null);
            let pointer = matches!(operand.ty.kind, TypeKind::Pointer { .. } | TypeKind::Text);
            if null && !pointer {
                return Err(Problem::new(
                    e.at,
                    format!("{} is never null: only pointers are", named(&operand.ty)),
                ));
            }
        }
        let (x, y) = (self.arithmetic(&left, a)?, self.arithmetic(&right, b)?);
        if is_float(&left) || is_float(&right) {
            return Ok(comparison(
                compare,
                to_float(&left, x),
                to_float(&right, y),
                Signedness::Float,
            ));
        }
        for (operand, word, e) in [(&left, &y, b), (&right, &x, a)] {
            let negative = matches!(word, Ir::Const(n) if (*n as i64) < 0 && !matches!(e.kind, Kind::Number(_)));
            if negative && !operand.ty.is_signed() {
                return Err(Problem::new(
                    e.at,
                    format!("{} is never negative", named(&operand.ty)),
                ));
            }
        }
        let unsigned = is_unsigned(&left) || is_unsigned(&right);
        let signedness = if unsigned {
            Signedness::Unsigned
        } else {
            Signedness::Signed
        };
        Ok(comparison(compare, x, y, signedness))
    }

    /// `e`, which may be one of the names of the enumeration that `other` is of.
    fn operand_beside(&self, e: &Expr, other: &Expr) -> Lowered<Operand> {
        if matches!(other.kind, Kind::Null) {
            let operand = self.value(e)?;
            // Smart pointers are null as plain ones are.
            return Ok(match operand.known(self.types) {
                Some(Known::Pointer { at, .. }) => Operand::value(Type::raw(RawType::Pointer), at),
                _ => operand,
            });
        }
        let Kind::Name(name) = &e.kind else {
            return self.value(e);
        };
        if let Ok(beside) = self.value(other)
            && let TypeKind::Enum { names, .. } = &beside.ty.kind
            && !matches!(other.kind, Kind::Name(ref n) if n == name)
        {
            let short = name.rsplit("::").next().unwrap_or(name);
            if let Some((_, value)) = names.iter().find(|(n, _)| n == name || n == short) {
                return Ok(Operand::value(beside.ty.clone(), Ir::Const(*value as u64)));
            }
            if self.value(e).is_err() {
                let help = near_miss(short, names.iter().map(|(n, _)| n.as_str()));
                let listed = names.iter().take(12).map(|(n, _)| n.as_str());
                let help = help.unwrap_or_else(|| {
                    format!("it has: {}", listed.collect::<Vec<_>>().join(", "))
                });
                return Err(Problem::new(
                    e.at,
                    format!("{} has no name '{name}'", named(&beside.ty)),
                )
                .help(help));
            }
        }
        self.value(e)
    }

    fn source(&self, e: &Expr) -> Lowered<TextSource> {
        Ok(match e.kind {
            Kind::Thread => TextSource::Known(op::source::THREAD_NAME),
            Kind::Exception => TextSource::Known(op::source::EXCEPTION_TYPE),
            Kind::Message => TextSource::Known(op::source::EXCEPTION_MESSAGE),
            _ => {
                let operand = self.value(e)?;
                operand.text_source(self.types).ok_or_else(|| {
                    let problem =
                        Problem::new(e.at, format!("'{e}' is {}, not a text", named(&operand.ty)));
                    match operand.ty.kind {
                        TypeKind::Pointer { .. } => {
                            problem.help(format!("if it is the address of a text, say so: {e}:str"))
                        }
                        _ => problem,
                    }
                })?
            }
        })
    }

    fn compare_text(&self, compare: Compare, e: &Expr, text: &str, at: usize) -> Lowered<Ir> {
        let negated = match compare {
            Compare::Eq => false,
            Compare::Ne => true,
            _ => return Err(Problem::new(at, "texts are compared with ==, != and =~")),
        };
        let source = self.source(e)?;
        let bytes = match e.kind {
            Kind::Exception => mangle::type_name(text).ok_or_else(|| {
                Problem::new(
                    at,
                    "this type's name is too complicated to be compared as a whole",
                )
                .help("look for a part of it: exception =~ /part/")
            })?,
            _ => text.as_bytes().to_vec(),
        };
        if bytes.len() > usize::from(LOOKED_AT) {
            return Err(Problem::new(
                at,
                format!("a text may have {LOOKED_AT} bytes"),
            ));
        }
        let equal = Ir::TextEq(source, bytes);
        Ok(if negated { equal.not() } else { equal })
    }

    pub(super) fn matches(&self, e: &Expr, regex: &str, at: usize) -> Lowered<Ir> {
        let source = self.source(e)?;
        let pattern = match e.kind {
            Kind::Exception => mangle::pattern(regex),
            _ => regex.to_owned(),
        };
        let table = dfa::table(&pattern).map_err(|refusal| match refusal {
            Refusal::TooLarge => Problem::new(
                at,
                "this regular expression is too large to be looked for while the program runs",
            )
            .help("shorten it, or look for a part"),
            Refusal::Unsupported(why) => Problem::new(
                at,
                format!("this regular expression cannot be used on bytes: {why}"),
            ),
        })?;
        Ok(Ir::TextMatch(source, LOOKED_AT, table))
    }

    pub(super) fn is(&self, e: &Expr, name: &str, at: usize) -> Lowered<Ir> {
        let operand = self.value(e)?;
        if let TypeKind::Enum { .. } = operand.ty.kind {
            let beside = Expr {
                kind: Kind::Name(name.to_owned()),
                at,
            };
            return self.compare(Compare::Eq, e, &beside, at);
        }
        let short = name.rsplit("::").next().unwrap_or(name);
        match operand.is_variant(short, self.types) {
            Some(Ok(ir)) => Ok(ir),
            Some(Err(why)) => Err(Problem::new(
                e.at,
                format!("'{e}' is {}: {why}", named(&operand.ty)),
            )),
            None => {
                let names = match &operand.ty.kind {
                    TypeKind::Struct(contents) => contents
                        .variants
                        .iter()
                        .flat_map(|v| &v.list)
                        .map(|v| v.name.clone())
                        .collect(),
                    _ => Vec::new(),
                };
                let help = near_miss(short, names.iter().map(String::as_str))
                    .or((!names.is_empty()).then(|| format!("it has: {}", names.join(", "))));
                Err(Problem::new(
                    at,
                    format!("{} has no variant '{name}'", named(&operand.ty)),
                )
                .help_if(help))
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Signedness {
    Signed,
    Unsigned,
    Float,
}

fn comparison(compare: Compare, a: Ir, b: Ir, signedness: Signedness) -> Ir {
    let (lt, le) = match signedness {
        Signedness::Signed => (op::LT, op::LE),
        Signedness::Unsigned => (op::LT_UNSIGNED, op::LE_UNSIGNED),
        Signedness::Float => (op::FLT, op::FLE),
    };
    let float = matches!(signedness, Signedness::Float);
    match compare {
        Compare::Eq => Ir::binary(if float { op::FEQ } else { op::EQ }, a, b),
        Compare::Ne => Ir::binary(if float { op::FNE } else { op::NE }, a, b),
        Compare::Lt => Ir::binary(lt, a, b),
        Compare::Le => Ir::binary(le, a, b),
        Compare::Gt => Ir::binary(lt, b, a),
        Compare::Ge => Ir::binary(le, b, a),
    }
}

pub(super) fn is_float(operand: &Operand) -> bool {
    matches!(operand.ty.kind, TypeKind::Float)
}

/// Smaller ones are extended and compare rightly either way.
pub(super) fn is_unsigned(operand: &Operand) -> bool {
    operand.ty.size == 8
        && match operand.ty.kind {
            TypeKind::Int { signed } | TypeKind::Enum { signed, .. } => !signed,
            TypeKind::Pointer { .. } | TypeKind::Text | TypeKind::Time => true,
            _ => false,
        }
}

pub(super) fn to_float(operand: &Operand, word: Ir) -> Ir {
    match (&operand.ty.kind, word) {
        (TypeKind::Float, word) => word,
        (_, Ir::Const(n)) if !is_unsigned(operand) => Ir::Const((n as i64 as f64).to_bits()),
        (_, word) if is_unsigned(operand) => Ir::unary(op::FROM_UNSIGNED, word),
        (_, word) => Ir::unary(op::FROM_SIGNED, word),
    }
}
