//! A part of a condition that one comparison decides: an integer argument within a range. The hot path of the agent makes it before
//! anything else, so that a call with other arguments costs next to nothing.
//!
//! ```text
//! n > 100 and ret < 0     n is in 101 ..= i32::MAX, or the call is refused whatever it returns
//! ```
//!
//! All comparisons of the low `bits` of a register with a constant are one: shifted up to the top of a word, `register - low <= span`
//! without a sign. Signed ones too, since their ranges are only cut at another place of the circle.

use thalweg_bytecode::op;

use crate::ir::Ir;

/// `(register << cut) - low <= span`, modulo 2^64 and without a sign. Calls of which that is not true are never kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quick {
    /// Of the integer arguments: rdi rsi rdx rcx r8 r9.
    pub register: u8,
    pub cut: u8,
    pub low: u64,
    pub span: u64,
}

impl Quick {
    pub fn passes(&self, registers: &[u64; 6]) -> bool {
        let register = registers.get(usize::from(self.register));
        let value = register.map_or(0, |value| value << self.cut);
        value.wrapping_sub(self.low) <= self.span
    }

    /// What a condition asks of one argument, if it does.
    pub(crate) fn of(condition: &Ir) -> Option<Quick> {
        // Each call that a rule sees has a number, those that are refused too.
        if has_number(condition) {
            return None;
        }
        part(condition)
    }

    fn complement(self) -> Option<Quick> {
        let unit = 1u64 << self.cut;
        let low = self.low.wrapping_add(self.span).wrapping_add(unit);
        let all = u64::MAX << self.cut;
        let span = all.checked_sub(self.span)?.checked_sub(unit)?;
        Some(Quick { low, span, ..self })
    }
}

fn has_number(ir: &Ir) -> bool {
    matches!(ir, Ir::Leaf(op::NUMBER, _)) || ir.children().into_iter().any(has_number)
}

fn part(ir: &Ir) -> Option<Quick> {
    match ir {
        Ir::Binary(op::BOTH, a, b) => part(a).or_else(|| part(b)),
        _ => whole(ir),
    }
}

/// The same as the condition, not only a part of it.
fn whole(ir: &Ir) -> Option<Quick> {
    match ir {
        Ir::Unary(op::NOT, a) => whole(a)?.complement(),
        Ir::Unary(op::TRUTH, a) => range(op::NE, argument(a)?, 0, false),
        Ir::Binary(compare, a, b) => match (&**a, &**b) {
            (a, Ir::Const(constant)) => range(*compare, argument(a)?, *constant, false),
            (Ir::Const(constant), b) => range(*compare, argument(b)?, *constant, true),
            _ => None,
        },
        _ => None,
    }
}

struct Argument {
    register: u8,
    bits: u32,
    signed: bool,
}

fn argument(ir: &Ir) -> Option<Argument> {
    match ir {
        Ir::Held(inner) => argument(inner),
        Ir::Leaf(op::INT, Some(register)) if *register < 6 => Some(Argument {
            register: *register,
            bits: 64,
            signed: true,
        }),
        Ir::Extend(inner, width) => {
            let inner = argument(inner)?;
            let bytes = width & !op::width::SIGNED;
            let bits = u32::from(bytes) * 8;
            let signed = width & op::width::SIGNED != 0 || bytes == 8;
            match bytes {
                1 | 2 | 4 | 8 if bits <= inner.bits => Some(Argument {
                    bits,
                    signed,
                    ..inner
                }),
                // What was extended already stays what it is, unless its sign is cut off again.
                2 | 4 | 8 if signed || !inner.signed => Some(inner),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The values for which `value op constant` is true, or `constant op value` if that is `turned`.
fn range(compare: u8, argument: Argument, constant: u64, turned: bool) -> Option<Quick> {
    let Argument {
        register,
        bits,
        signed,
    } = argument;
    // All values that there are, in the order of the comparison.
    let without_sign = matches!(compare, op::LT_UNSIGNED | op::LE_UNSIGNED);
    let (least, most) = match (without_sign, signed) {
        (true, _) if bits == 64 => (0, i128::from(u64::MAX)),
        (true, true) => return None,
        (_, false) => (0, (1i128 << bits) - 1),
        (false, true) => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
    };
    let constant = match without_sign {
        true => i128::from(constant),
        false => i128::from(constant as i64),
    };
    let is_equal = matches!(compare, op::EQ | op::NE);
    let (low, high) = match (compare, turned) {
        (op::EQ | op::NE, _) => (constant, constant),
        (op::LT | op::LT_UNSIGNED, false) => (least, constant - 1),
        (op::LT | op::LT_UNSIGNED, true) => (constant + 1, most),
        (op::LE | op::LE_UNSIGNED, false) => (least, constant),
        (op::LE | op::LE_UNSIGNED, true) => (constant, most),
        _ => return None,
    };
    let (low, high) = (low.max(least), high.min(most));
    // Never or always true: there is nothing to compare.
    if low > high || (low, high) == (least, most) || is_equal && (low, high) != (constant, constant)
    {
        return None;
    }
    let cut = 64 - bits;
    let quick = Quick {
        register,
        cut: cut as u8,
        low: (low as u64) << cut,
        span: ((high - low) as u64) << cut,
    };
    match compare {
        op::NE => quick.complement(),
        _ => Some(quick),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_bytecode::{Call, Machine, Memory, Nowhere, Out, Verdict, entry};

    struct Nothing;

    impl Memory for Nothing {
        fn read(&mut self, _: u64, _: &mut [u8]) -> usize {
            0
        }
    }

    fn compiled(rule: &str) -> (Vec<u8>, Option<Quick>) {
        let rule = crate::Rule::parse(rule).expect("a rule");
        let function = crate::FunctionInfo {
            number: 0,
            name: "f",
            linkage_name: None,
            module: std::path::Path::new(""),
            address: 0,
        };
        let compiled = crate::compile(&[rule], &[function], &crate::Options::default());
        let compiled = compiled.expect("a rule without types");
        (compiled.programs[0].clone(), compiled.quick[0])
    }

    /// Numbers at which comparisons of any width change their answer.
    fn numbers() -> Vec<u64> {
        let edges = [0u64, 7, 8, 15, 16, 31, 32, 63].map(|bit| 1u64 << bit);
        let around = edges.into_iter().flat_map(|edge| {
            let near = [edge.wrapping_sub(1), edge, edge.wrapping_add(1)];
            near.into_iter().flat_map(|n| [n, n.wrapping_neg(), !n])
        });
        around.chain([0, 100, 101, 99, u64::MAX - 99]).collect()
    }

    #[test]
    fn a_comparison_answers_as_the_whole_program_does() {
        let mut compared = 0;
        for ty in [
            "i8", "u8", "i16", "u16", "int", "uint", "long", "ulong", "ptr",
        ] {
            for compare in ["==", "!=", "<", "<=", ">", ">="] {
                for constant in [
                    "0",
                    "1",
                    "100",
                    "127",
                    "128",
                    "255",
                    "256",
                    "65535",
                    "2147483648",
                ] {
                    for rule in [
                        format!("f: arg2:{ty} {compare} {constant}"),
                        format!("f: {constant} {compare} arg2:{ty}"),
                        format!("f: not arg2:{ty} {compare} {constant}"),
                        format!("f: arg2:{ty}"),
                    ] {
                        let (program, quick) = compiled(&rule);
                        let Some(quick) = quick else { continue };
                        for number in numbers() {
                            let machine = Machine {
                                int: [5, number, 6, 7, 8, 9],
                                ..Machine::default()
                            };
                            let mut bytes = [0; 64];
                            let mut out = Out::new(&mut bytes);
                            let call = Call::default();
                            let verdict =
                                entry(&program, &machine, &mut Nothing, &Nowhere, &call, &mut out);
                            let kept = verdict != Verdict::No;
                            assert_eq!(quick.passes(&machine.int), kept, "{rule} of {number:#x}");
                            compared += 1;
                        }
                    }
                }
            }
        }
        assert!(compared > 50_000, "{compared}");
    }

    #[test]
    fn an_argument_that_is_extended_twice_is_the_narrower_one() {
        let twice = |outer: u8, inner: u8| {
            let word = Ir::Extend(Box::new(Ir::Extend(Box::new(Ir::int(1)), inner)), outer);
            argument(&word).map(|argument| (argument.bits, argument.signed))
        };
        assert_eq!(twice(0x84, 0x84), Some((32, true)));
        assert_eq!(twice(4, 0x84), Some((32, false)));
        assert_eq!(twice(0x88, 1), Some((8, false)));
        assert_eq!(twice(0x81, 0x84), Some((8, true)));
        assert_eq!(twice(4, 0x82), None);
    }

    #[test]
    fn what_only_a_part_of_a_condition_asks_refuses_no_more_than_the_condition() {
        let (_, quick) = compiled("f: arg1:int > 100 and ret:int < 0");
        assert!(quick.is_some());
        let (_, quick) = compiled("f: ret:int < 0 and arg1:int > 100");
        assert!(quick.is_some());
        for none in [
            "f: arg1:int > 100 or ret:int < 0",
            "f: arg1:int > 100 and every 3",
            "f: arg1:str =~ /x/",
            "f: arg1:f64 > 1",
            "f: arg7:int > 1",
            "f: arg1:int > arg2:int",
            "f: not (arg1:int > 100 and ret:int < 0)",
        ] {
            assert_eq!(compiled(none).1, None, "{none}");
        }
    }
}
