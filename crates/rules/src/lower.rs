//! A rule's expressions, checked against one function's arguments and types, as something to
//! compute.

mod compare;

use std::rc::Rc;

use regex::Regex;
use thalweg_bytecode::op;

use self::compare::{is_float, is_unsigned, to_float};
use crate::abi::{Place, Types, unknown_argument};
use crate::ast::{Binary, Expr, Kind, RawType, Rule};
use crate::error::{Problem, near_miss};
use crate::ir::Ir;
use crate::operand::{Known, Operand, field_names, find_field};
use crate::pattern::Pattern;
use crate::types::{Type, TypeKind};

/// How many bytes of a text a condition looks at.
const LOOKED_AT: u16 = 4096;

/// How deep nameless members may be nested.
pub(crate) const NESTED: usize = 8;

/// What is known of the function that a rule is compiled for.
pub(crate) struct Signature {
    pub parameters: Vec<(String, Rc<Type>, Place)>,
    pub returns: Option<(Rc<Type>, Place)>,
}

/// Questions whose answers depend on all functions or on all rules.
pub(crate) trait World {
    /// The number of the set of functions that a pattern means; `None`: it means none, with what
    /// may have been meant.
    fn set(&mut self, pattern: &Pattern) -> Result<u16, Option<String>>;
    fn rule(&self, name: &str) -> Result<u16, Option<String>>;
}

pub(crate) struct Lowering<'a> {
    pub rule: &'a Rule,
    /// Why there is none, otherwise.
    pub signature: Result<&'a Signature, String>,
    pub types: &'a dyn Types,
    /// It is a function of Go's.
    pub go: bool,
    pub managed: bool,
}

pub(crate) type Lowered<T> = Result<T, Problem>;

impl Lowering<'_> {
    pub(crate) fn condition(&self, e: &Expr, world: &mut dyn World) -> Lowered<Ir> {
        let at = e.at;
        match &e.kind {
            Kind::And(a, b) | Kind::Or(a, b) => {
                let either = matches!(e.kind, Kind::Or(..));
                let a = self.condition(a, world)?;
                let b = self.condition(b, world)?;
                let op = if either { op::EITHER } else { op::BOTH };
                Ok(Ir::binary(op, a, b))
            }
            Kind::Not(a) => Ok(self.condition(a, world)?.not()),
            Kind::Compare(compare, a, b) => self.compare(*compare, a, b, at),
            Kind::Matches(of, regex) => self.matches(of, regex, at),
            Kind::Is(of, variant) => self.is(of, variant, at),
            Kind::Caller(pattern) | Kind::Above(pattern) => {
                let set = world.set(pattern).map_err(|help| {
                    Problem::new(at, format!("no function is called '{pattern}'")).help_if(help)
                })?;
                let directly = matches!(e.kind, Kind::Caller(_));
                let op = if directly { op::CALLER } else { op::ABOVE };
                Ok(Ir::Wide(op, set))
            }
            Kind::Takes(regex) | Kind::Returns(regex) => {
                let signature = self.signature.as_ref().map_err(|why| {
                    Problem::new(at, format!("the function's types are not known: {why}"))
                })?;
                let regex = Regex::new(regex)
                    .map_err(|_| Problem::new(at, "this is not a regular expression"))?;
                let found = match e.kind {
                    Kind::Takes(_) => signature
                        .parameters
                        .iter()
                        .any(|(_, ty, _)| regex.is_match(&ty.name)),
                    _ => signature
                        .returns
                        .iter()
                        .any(|(ty, _)| regex.is_match(&ty.name)),
                };
                Ok(Ir::Const(u64::from(found)))
            }
            Kind::While(name) | Kind::After(name) => {
                let rule = world.rule(name).map_err(|help| {
                    Problem::new(at, format!("there is no rule '{name}'"))
                        .help_if(help.or(Some("a rule gets a name with: ; as NAME".into())))
                })?;
                let while_active = matches!(e.kind, Kind::While(_));
                let op = if while_active { op::ACTIVE } else { op::FIRED };
                Ok(Ir::Wide(op, rule))
            }
            Kind::Every(n) => {
                let rest = Ir::binary(op::REM_UNSIGNED, Ir::Leaf(op::NUMBER, None), Ir::Const(*n));
                Ok(Ir::binary(op::EQ, rest, Ir::Const(0)))
            }
            Kind::Exception => Ok(Ir::Leaf(op::UNWOUND, None)),
            Kind::Bool(value) => Ok(Ir::Const(u64::from(*value))),
            Kind::Changed(of) => {
                self.check_stays(at)?;
                let before = self.number(of)?;
                let after = self.value(of)?.at_exit();
                let after = after.word().map_err(|why| Problem::new(of.at, why))?;
                Ok(Ir::binary(op::NE, before, after))
            }
            Kind::Text(_) => Err(Problem::new(at, "a text alone is no condition")),
            Kind::Time(_) => Err(Problem::new(at, "a time alone is no condition")
                .help("compare it, as in: duration > 5ms")),
            Kind::Duration | Kind::SelfTime | Kind::Waited => {
                Err(Problem::new(at, "a time alone is no condition")
                    .help("compare it, as in: duration > 5ms"))
            }
            _ => {
                let value = self.value(e)?;
                if matches!(value.ty.kind, TypeKind::Float) {
                    return Err(Problem::new(at, "a number with a point is no condition"));
                }
                let word = self.word(&value, e)?;
                Ok(Ir::unary(op::TRUTH, word))
            }
        }
    }

    pub(crate) fn value(&self, e: &Expr) -> Lowered<Operand> {
        self.place_of(e)
            .map(|operand| operand.through_references(self.types))
    }

    fn place_of(&self, e: &Expr) -> Lowered<Operand> {
        let at = e.at;
        let number = |raw, ir| Ok(Operand::value(Type::raw(raw), ir));
        let time = |op| {
            let ty = Type {
                name: "time".into(),
                size: 8,
                kind: TypeKind::Time,
            };
            Ok(Operand::value(Rc::new(ty), Ir::Leaf(op, None)))
        };
        match &e.kind {
            Kind::Number(n) if *n > i64::MAX as u64 => number(RawType::Unsigned(8), Ir::Const(*n)),
            Kind::Number(n) => number(RawType::Signed(8), Ir::Const(*n)),
            Kind::Char(c) => number(RawType::Char, Ir::Const(u64::from(*c))),
            Kind::Bool(b) => number(RawType::Bool, Ir::Const(u64::from(*b))),
            Kind::Null => number(RawType::Pointer, Ir::Const(0)),
            Kind::Float(x) => number(RawType::F64, Ir::Const(x.to_bits())),
            Kind::Time(ns) => {
                let mut operand = time(op::TOTAL)?;
                operand.place = Place::Value(Ir::Const(*ns));
                Ok(operand)
            }
            Kind::Errno if self.go => Err(Problem::new(at, "Go has no errno")
                .help("its functions return errors, as in: ret.1 is not null")),
            Kind::Errno => number(RawType::Signed(4), Ir::Leaf(op::ERRNO, None)),
            Kind::Duration => time(op::TOTAL),
            // A Rust method's argument, if it has one and no time is asked for.
            Kind::SelfTime => match self.parameter("self", at) {
                Ok(operand) => Ok(operand),
                Err(_) => time(op::SELF),
            },
            Kind::Waited => time(op::WAITED),
            Kind::Thread => number(RawType::Unsigned(4), Ir::Leaf(op::THREAD, None)),
            Kind::Name(name) => self.parameter(name, at),
            Kind::Arg(n) => self.argument(*n, at),
            Kind::Ret => self.returned(at),
            Kind::Field(of, name) => {
                let of_operand = self.value(of)?;
                // As debuggers do, a point goes through pointers too.
                let target = match of_operand.ty.kind {
                    TypeKind::Pointer { .. } => self.target(&of_operand, of)?,
                    _ => of_operand,
                };
                self.field(&target, name, at)
            }
            Kind::Arrow(of, name) => {
                let pointer = self.value(of)?;
                let target = self.target(&pointer, of)?;
                self.field(&target, name, at)
            }
            Kind::Deref(of) => {
                let pointer = self.place_of(of)?;
                self.target(&pointer, of)
            }
            Kind::Index(of, index) => self.index(of, index),
            Kind::Cast(of, raw) => self.cast(of, *raw),
            Kind::Length(of) => self.length(of),
            Kind::AtExit(of) => {
                self.check_stays(at)?;
                Ok(self.value(of)?.at_exit())
            }
            Kind::Negative(of) | Kind::Invert(of) => {
                let operand = self.value(of)?;
                let word = self.arithmetic(&operand, of)?;
                let float = matches!(operand.ty.kind, TypeKind::Float);
                match (&e.kind, float) {
                    (Kind::Negative(_), true) => number(RawType::F64, Ir::unary(op::FNEG, word)),
                    (Kind::Negative(_), false) => match word {
                        Ir::Const(n) => number(RawType::Signed(8), Ir::Const(n.wrapping_neg())),
                        word => number(RawType::Signed(8), Ir::unary(op::NEG, word)),
                    },
                    (_, true) => Err(Problem::new(at, "~ needs a whole number")),
                    (_, false) => number(RawType::Unsigned(8), Ir::unary(op::INVERT, word)),
                }
            }
            Kind::Binary(binary, a, b) => self.binary(*binary, a, b, at),
            Kind::Slice(..) => Err(Problem::new(
                at,
                "a part of a list can be recorded, not compared",
            )),
            Kind::Text(_) => Err(Problem::new(
                at,
                "a text can only be compared with == and !=",
            )),
            Kind::Exception | Kind::Message => Err(Problem::new(
                at,
                "an exception is compared with a text, as in: exception =~ /timeout/",
            )),
            Kind::Args => Err(Problem::new(
                at,
                "'args' stands for all arguments: it can only be recorded",
            )),
            _ => Err(Problem::new(
                at,
                "a condition stands where a value is expected",
            )),
        }
    }

    /// What an argument points to can be looked at when the call ends.
    pub(crate) fn check_stays(&self, at: usize) -> Lowered<()> {
        match self.go {
            true => Err(Problem::new(
                at,
                "a goroutine's stack may have moved when the call ends, and with it what its arguments point to",
            )
            .help("what it returns can be read then: ret")),
            false => Ok(()),
        }
    }

    /// The argument that the rule or the program calls so.
    fn parameter(&self, name: &str, at: usize) -> Lowered<Operand> {
        let own = self
            .rule
            .names
            .iter()
            .position(|own| own.as_deref() == Some(name));
        if let Some(position) = own {
            return self.argument(position as u32 + 1, at);
        }
        let signature = self.signature(name, at)?;
        let found = signature.parameters.iter().find(|p| p.0 == name);
        if let Some((_, ty, place)) = found {
            return Ok(Operand::new(ty.clone(), place.clone()));
        }
        let words = [
            "ret",
            "errno",
            "duration",
            "self",
            "waiting",
            "thread",
            "exception",
            "args",
            "caller",
            "above",
            "every",
            "first",
            "while",
            "after",
        ];
        let known = signature.parameters.iter().map(|p| p.0.as_str());
        let help = near_miss(name, known.clone().chain(words)).or_else(|| {
            let all: Vec<&str> = known.filter(|n| !n.is_empty()).collect();
            Some(match all.is_empty() {
                true => "the function has no arguments".to_owned(),
                false => format!("its arguments are: {}", all.join(", ")),
            })
        });
        Err(Problem::new(at, format!("the function has no argument '{name}'")).help_if(help))
    }

    fn signature(&self, name: &str, at: usize) -> Lowered<&Signature> {
        self.signature.as_ref().copied().map_err(|why| {
            Problem::new(at, format!("'{name}' is not known: {why}"))
                .help("say what is where, as in: arg1:int, arg2:str, ret:ptr")
        })
    }

    /// The nth argument, from 1.
    fn argument(&self, n: u32, at: usize) -> Lowered<Operand> {
        let signature = self.signature.as_ref().map_err(|why| {
            Problem::new(at, format!("the type of arg{n} is not known: {why}"))
                .help(format!("say it, as in: arg{n}:int, arg{n}:str, arg{n}:f64"))
        })?;
        match signature.parameters.get(n as usize - 1) {
            Some((_, ty, place)) => Ok(Operand::new(ty.clone(), place.clone())),
            None => {
                let count = signature.parameters.len();
                Err(Problem::new(
                    at,
                    format!("the function has {count} arguments, no arg{n}"),
                ))
            }
        }
    }

    fn returned(&self, at: usize) -> Lowered<Operand> {
        let signature = self.signature.as_ref().map_err(|why| {
            Problem::new(at, format!("the type of the result is not known: {why}"))
                .help("say it, as in: ret:int, ret:ptr, ret:f64")
        })?;
        match &signature.returns {
            Some((ty, place)) => Ok(Operand::new(ty.clone(), place.clone())),
            None => Err(Problem::new(at, "the function returns nothing")),
        }
    }

    fn target(&self, pointer: &Operand, e: &Expr) -> Lowered<Operand> {
        let target = pointer.target(self.types).filter(|t| t.ty.size > 0);
        match target {
            Some(target) => Ok(target.through_references(self.types)),
            None => Err(Problem::new(
                e.at,
                format!(
                    "'{e}' is {}, which points to nothing that is known",
                    named(&pointer.ty)
                ),
            )),
        }
    }

    fn field(&self, of: &Operand, name: &str, at: usize) -> Lowered<Operand> {
        if let Some(found) = find_field(of, name, self.types, NESTED) {
            return Ok(found);
        }
        let names = field_names(&of.ty, self.types, NESTED);
        let help = near_miss(name, names.iter().map(String::as_str)).or_else(|| {
            (!names.is_empty() && names.len() < 30).then(|| format!("it has: {}", names.join(", ")))
        });
        // The place is that of the point or the arrow.
        Err(Problem::new(at, format!("{} has no field '{name}'", named(&of.ty))).help_if(help))
    }

    /// Where the elements of a list are, and of which type.
    pub(crate) fn elements(&self, of: &Expr) -> Lowered<(Ir, Rc<Type>)> {
        let list = self.value(of)?;
        let wrong = || Problem::new(of.at, format!("'{of}' is {}, not a list", named(&list.ty)));
        match (&list.ty.kind, &list.place) {
            (TypeKind::Pointer { to: Some(to), .. }, _) => {
                Ok((self.word(&list, of)?, self.types.resolve(Some(*to))))
            }
            (TypeKind::Text, _) => Ok((self.word(&list, of)?, Type::raw(RawType::Char))),
            (TypeKind::Pointer { to: None, .. }, _) => {
                Ok((self.word(&list, of)?, Type::raw(RawType::Unsigned(1))))
            }
            (TypeKind::Array { of, .. }, Place::Memory(at)) => {
                Ok((at.clone(), self.types.resolve(Some(*of))))
            }
            (TypeKind::Struct(_), _) => match list.known(self.types) {
                Some(Known::List { at, of, .. }) => Ok((at, of)),
                Some(Known::Text { at, .. }) => Ok((at, Type::raw(RawType::Char))),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }

    fn index(&self, of: &Expr, index: &Expr) -> Lowered<Operand> {
        let (base, element) = self.elements(of)?;
        let address = match self.whole(index)? {
            Ir::Const(n) => base.plus(n.wrapping_mul(element.size)),
            ir => {
                let offset = Ir::binary(op::MUL, ir, Ir::Const(element.size));
                Ir::binary(op::ADD, base, offset)
            }
        };
        Ok(Operand::new(element, Place::Memory(address)).through_references(self.types))
    }

    fn cast(&self, of: &Expr, raw: RawType) -> Lowered<Operand> {
        let ty = Type::raw(raw);
        let float = matches!(raw, RawType::F32 | RawType::F64);
        let position = match &of.kind {
            Kind::Arg(n) => Some(*n),
            Kind::Name(name) => {
                let own = self.rule.names.iter();
                own.enumerate()
                    .find(|(_, own)| own.as_deref() == Some(name))
                    .map(|(i, _)| i as u32 + 1)
            }
            _ => None,
        };
        if self.managed && (position.is_some() || matches!(of.kind, Kind::Ret)) {
            let message =
                "what a function of Python or Java is called with and returns is not read";
            return Err(Problem::new(of.at, message).help(
                "its calls can be chosen by their duration, their number and their callers",
            ));
        }
        if self.signature.is_err() && self.go {
            let found = match (position, &of.kind) {
                (Some(n), _) => Some(self.go_words(of, raw, self.position(n, float), float)?),
                (None, Kind::Ret) => Some(go_results(raw, float)),
                _ => None,
            };
            if let Some(words) = found {
                return Ok(go_operand(ty, words));
            }
        } else if self.signature.is_err() {
            if let Some(n) = position {
                let word = unknown_argument(self.position(n, float), float);
                return Ok(Operand::value(ty.clone(), crate::abi::narrow(&ty, word)));
            }
            if matches!(of.kind, Kind::Ret) {
                let op = if float { op::RET_FLOAT } else { op::RET };
                let word = crate::abi::narrow(&ty, Ir::Leaf(op, Some(0)));
                return Ok(Operand::value(ty, word));
            }
        }
        // Bytes behind an address of which nothing is known: the type says what is there.
        if let Kind::Index(list, index) = &of.kind
            && let Ok(base) = self.value(list)
            && matches!(base.ty.kind, TypeKind::Pointer { to: None, .. })
        {
            let address = match self.whole(index)? {
                Ir::Const(n) => self.word(&base, list)?.plus(n),
                offset => Ir::binary(op::ADD, self.word(&base, list)?, offset),
            };
            return Ok(Operand::new(ty, Place::Memory(address)));
        }
        let operand = self.value(of)?;
        let was_float = matches!(operand.ty.kind, TypeKind::Float);
        // An array or a structure read as something else is read from its beginning.
        if let (false, Place::Memory(at)) = (operand.ty.is_scalar(), &operand.place) {
            return Ok(match raw {
                RawType::Text => Operand::value(ty, at.clone()),
                _ => Operand::new(ty, Place::Memory(at.clone())),
            });
        }
        if float != was_float && float {
            return Err(Problem::new(
                of.at,
                format!(
                    "'{of}' is {}, not a number with a point",
                    named(&operand.ty)
                ),
            ));
        }
        let word = self.word(&operand, of)?;
        Ok(Operand::value(ty.clone(), crate::abi::narrow(&ty, word)))
    }

    /// The register that argument `n` of a Go function has, or the two of a string.
    fn go_words(&self, of: &Expr, raw: RawType, n: u32, float: bool) -> Lowered<Vec<Ir>> {
        let count = if raw == RawType::Text { 2 } else { 1 };
        let words = (n..n + count).map(|n| crate::go::unknown_argument(n, float));
        words.collect::<Option<_>>().ok_or_else(|| {
            Problem::new(of.at, "it is not in a register")
                .help("Go passes nine words and fifteen floats in registers; a string takes two words, a slice three")
        })
    }

    /// Which register or place of its class argument `n` has, if those that the rule mentions are
    /// of the types that it says and all others are integers.
    fn position(&self, n: u32, float: bool) -> u32 {
        let mut floats: Vec<u32> = Vec::new();
        let mut note = |e: &Expr| {
            if let Kind::Cast(of, RawType::F32 | RawType::F64) = &e.kind {
                match &of.kind {
                    Kind::Arg(n) => floats.push(*n),
                    Kind::Name(name) => {
                        let own = self.rule.names.iter();
                        let position = own
                            .enumerate()
                            .find(|(_, own)| own.as_deref() == Some(name));
                        floats.extend(position.map(|(i, _)| i as u32 + 1));
                    }
                    _ => {}
                }
            }
        };
        let all = self.rule.condition.iter().chain(&self.rule.record);
        all.for_each(|e| e.visit(&mut note));
        floats.sort_unstable();
        floats.dedup();
        let before = floats.iter().filter(|f| **f < n).count() as u32;
        if float { before + 1 } else { n - before }
    }

    fn length(&self, of: &Expr) -> Lowered<Operand> {
        let operand = self.value(of)?;
        let size = Type::raw(RawType::Unsigned(8));
        let known = operand.known(self.types);
        match (known, &operand.ty.kind) {
            (Some(Known::Text { len, .. }), _) => Ok(Operand::value(size, len)),
            (Some(Known::List { count, .. }), _) => Ok(Operand::value(size, count)),
            (_, TypeKind::Array { count, .. }) => Ok(Operand::value(size, Ir::Const(*count))),
            _ => Err(Problem::new(
                of.at,
                format!("'{of}' is {}: its length is not known", named(&operand.ty)),
            )),
        }
    }

    pub(crate) fn word(&self, operand: &Operand, e: &Expr) -> Lowered<Ir> {
        operand
            .word()
            .map_err(|why| Problem::new(e.at, format!("'{e}' is {}: {why}", named(&operand.ty))))
    }

    fn number(&self, e: &Expr) -> Lowered<Ir> {
        self.word(&self.value(e)?, e)
    }

    /// A whole number.
    pub(crate) fn whole(&self, e: &Expr) -> Lowered<Ir> {
        let operand = self.value(e)?;
        match operand.ty.kind {
            TypeKind::Int { .. }
            | TypeKind::Char { .. }
            | TypeKind::Enum { .. }
            | TypeKind::Bool => self.word(&operand, e),
            _ => Err(Problem::new(
                e.at,
                format!("'{e}' is {}, not a whole number", named(&operand.ty)),
            )),
        }
    }

    /// A number to calculate with; those with a point have 64 bits.
    fn arithmetic(&self, operand: &Operand, e: &Expr) -> Lowered<Ir> {
        let word = self.word(operand, e)?;
        Ok(match (&operand.ty.kind, operand.ty.size) {
            (TypeKind::Float, 4) => Ir::unary(op::WIDEN, word),
            _ => word,
        })
    }

    fn binary(&self, binary: Binary, a: &Expr, b: &Expr, at: usize) -> Lowered<Operand> {
        let (left, right) = (self.value(a)?, self.value(b)?);
        let time = |o: &Operand| matches!(o.ty.kind, TypeKind::Time);
        if time(&left) != time(&right) {
            return Err(Problem::new(
                at,
                format!(
                    "{} and {} do not go together",
                    named(&left.ty),
                    named(&right.ty)
                ),
            ));
        }
        let (x, y) = (self.arithmetic(&left, a)?, self.arithmetic(&right, b)?);
        if is_float(&left) || is_float(&right) {
            let op = match binary {
                Binary::Add => op::FADD,
                Binary::Sub => op::FSUB,
                Binary::Mul => op::FMUL,
                Binary::Div => op::FDIV,
                _ => {
                    return Err(Problem::new(
                        at,
                        format!("{} needs whole numbers", binary.sign()),
                    ));
                }
            };
            let ir = Ir::binary(op, to_float(&left, x), to_float(&right, y));
            return Ok(Operand::value(Type::raw(RawType::F64), ir));
        }
        let unsigned = is_unsigned(&left) || is_unsigned(&right);
        let op = match binary {
            Binary::Add => op::ADD,
            Binary::Sub => op::SUB,
            Binary::Mul => op::MUL,
            Binary::Div if unsigned => op::DIV_UNSIGNED,
            Binary::Div => op::DIV,
            Binary::Rem if unsigned => op::REM_UNSIGNED,
            Binary::Rem => op::REM,
            Binary::And => op::AND,
            Binary::Or => op::OR,
            Binary::Xor => op::XOR,
            Binary::Shl => op::SHL,
            Binary::Shr if unsigned => op::SHR,
            Binary::Shr => op::SAR,
        };
        let raw = if unsigned {
            RawType::Unsigned(8)
        } else {
            RawType::Signed(8)
        };
        let ty = if time(&left) {
            left.ty.clone()
        } else {
            Type::raw(raw)
        };
        Ok(Operand::value(ty, Ir::binary(op, x, y)))
    }
}

fn go_results(raw: RawType, float: bool) -> Vec<Ir> {
    let op = if float { op::RET_FLOAT } else { op::RET };
    let count = if raw == RawType::Text { 2 } else { 1 };
    (0..count).map(|n| Ir::Leaf(op, Some(n))).collect()
}

/// A number, or a string: where its text is and how long that is.
fn go_operand(ty: Rc<Type>, words: Vec<Ir>) -> Operand {
    match <[Ir; 2]>::try_from(words) {
        Ok([at, len]) => Operand::new(ty, Place::Pieces(vec![(0, 8, at), (8, 8, len)])),
        Err(words) => {
            let word = words.into_iter().next().unwrap_or(Ir::Const(0));
            Operand::value(ty.clone(), crate::abi::narrow(&ty, word))
        }
    }
}

pub(crate) fn named(ty: &Type) -> String {
    let name = match ty.name.as_str() {
        "" => "a type without a name",
        name => name,
    };
    match ty.kind {
        TypeKind::Time => "a time".to_owned(),
        TypeKind::Other(what) => format!("'{name}' ({what})"),
        _ => format!("'{name}'"),
    }
}
