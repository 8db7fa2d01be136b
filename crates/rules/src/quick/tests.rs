use super::*;
use thalweg_bytecode::{Call, Machine, Memory, Nowhere, Out, Verdict, entry, exit};

/// What the arguments on the stack of these calls are: their words, from the first on.
struct Stack<'a>(&'a [u64]);

const SP: u64 = 0x7000;

impl Memory for Stack<'_> {
    fn read(&mut self, at: u64, into: &mut [u8]) -> usize {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        let from = at.wrapping_sub(SP + 8) as usize;
        let Some(found) = bytes.get(from..from.saturating_add(into.len())) else {
            return 0;
        };
        into.copy_from_slice(found);
        into.len()
    }
}

mod mixed;

fn compiled(rule: &str) -> (Vec<u8>, Formula) {
    let rule = crate::Rule::parse(rule).expect("a rule");
    let function = crate::FunctionInfo {
        number: 0,
        name: "f",
        linkage_name: None,
        module: std::path::Path::new(""),
        address: 0,
        go: false,
        managed: false,
    };
    let compiled = crate::compile(&[rule], &[function], &crate::Options::default());
    let compiled = compiled.expect("a rule without types");
    (compiled.programs[0].clone(), compiled.quick[0].clone())
}

fn holds(formula: &Formula, word: &dyn Fn(Source) -> u64) -> bool {
    match formula {
        Formula::Always => true,
        Formula::Never => false,
        Formula::Test(test) => test.passes(word),
        Formula::Thrown | Formula::Unknown => panic!("{formula:?} is no comparison"),
        Formula::All(parts) => parts.iter().all(|part| holds(part, word)),
        Formula::Any(parts) => parts.iter().any(|part| holds(part, word)),
    }
}

/// Whether a rule's program keeps a call with this word in all places at once, when its condition
/// is known at the entry.
fn kept_at_entry(program: &[u8], word: u64) -> bool {
    let machine = Machine {
        int: [word; thalweg_bytecode::INTS],
        float: [word; thalweg_bytecode::FLOATS],
        sp: SP,
        ..Machine::default()
    };
    let mut bytes = [0; 256];
    let mut out = Out::new(&mut bytes);
    let call = Call::default();
    let mut memory = Stack(&[word; 8]);
    entry(program, &machine, &mut memory, &Nowhere, &call, &mut out) != Verdict::No
}

fn kept_at_exit(program: &[u8], word: u64) -> bool {
    let machine = Machine {
        ret: [word; 2],
        ret_float: [word; 2],
        errno: word as i32 as i64,
        ..Machine::default()
    };
    let mut bytes = [0; 256];
    let mut out = Out::new(&mut bytes);
    let call = Call::default();
    exit(program, &machine, &mut Stack(&[]), &call, &[], &mut out)
}

/// Numbers at which comparisons of any width change their answer, floats among them.
fn numbers() -> Vec<u64> {
    let edges = [0u64, 7, 8, 15, 16, 31, 32, 63].map(|bit| 1u64 << bit);
    let around = edges.into_iter().flat_map(|edge| {
        let near = [edge.wrapping_sub(1), edge, edge.wrapping_add(1)];
        near.into_iter().flat_map(|n| [n, n.wrapping_neg(), !n])
    });
    let floats = [0.0, 0.1, 1.0, 1.5, 2.5, 1e-310, 3.4e38, 1e300];
    let floats = floats.into_iter().chain([f64::INFINITY, f64::NAN]);
    let floats = floats.flat_map(|f| [f, -f]).flat_map(|f: f64| {
        let (long, short) = (f.to_bits(), u64::from((f as f32).to_bits()));
        [
            long,
            long.wrapping_add(1),
            long.wrapping_sub(1),
            short,
            short.wrapping_add(1),
            short.wrapping_sub(1),
        ]
    });
    let more = [0, 100, 101, 99, u64::MAX - 99, 0x1_0000_0010];
    around.chain(floats).chain(more).collect()
}

/// Holds the formula of a rule whose whole condition is comparisons against its program, for all
/// numbers; whether it had any.
fn compare(rule: &str, at_exit: bool) -> usize {
    let (program, formula) = compiled(rule);
    let formula = match at_exit {
        true => formula.at_return(),
        false => formula,
    };
    if formula.tests() == 0 || is_unknown(&formula) {
        return 0;
    }
    for number in numbers() {
        let kept = match at_exit {
            true => kept_at_exit(&program, number),
            false => kept_at_entry(&program, number),
        };
        assert_eq!(holds(&formula, &|_| number), kept, "{rule} of {number:#x}");
    }
    1
}

fn is_unknown(formula: &Formula) -> bool {
    match formula {
        Formula::All(parts) | Formula::Any(parts) => parts.iter().any(is_unknown),
        other => *other == Formula::Unknown,
    }
}

const COMPARES: [&str; 6] = ["==", "!=", "<", "<=", ">", ">="];

#[test]
fn a_comparison_of_integers_answers_as_the_whole_program_does() {
    let mut compared = 0;
    for ty in [
        "i8", "u8", "i16", "u16", "int", "uint", "long", "ulong", "ptr", "bool", "char",
    ] {
        for compare_with in COMPARES {
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
                    format!("f: arg2:{ty} {compare_with} {constant}"),
                    format!("f: {constant} {compare_with} arg8:{ty}"),
                    format!("f: not arg7:{ty} {compare_with} {constant}"),
                    format!("f: arg1:{ty}"),
                    format!("f: arg1:{ty} {compare_with} {constant} or arg8:{ty} == 1"),
                    format!("f: not (arg1:{ty} {compare_with} {constant} and not arg8:{ty} > 5)"),
                    format!("f: arg1:{ty} & 0x11 {compare_with} {constant}"),
                    format!("f: arg1:{ty} >> 3 {compare_with} {constant}"),
                ] {
                    let rule_is_possible = crate::Rule::parse(&rule).is_ok();
                    if rule_is_possible && is_compilable(&rule) {
                        compared += compare(&rule, false);
                    }
                }
                let rule = format!("f: ret:{ty} {compare_with} {constant}");
                if is_compilable(&rule) {
                    compared += compare(&rule, true);
                }
            }
        }
    }
    assert!(compared > 3_000, "{compared}");
}

/// Some comparisons are refused, or can never be true.
fn is_compilable(rule: &str) -> bool {
    let rule = crate::Rule::parse(rule).expect("a rule");
    let function = crate::FunctionInfo {
        number: 0,
        name: "f",
        linkage_name: None,
        module: std::path::Path::new(""),
        address: 0,
        go: false,
        managed: false,
    };
    crate::compile(&[rule], &[function], &crate::Options::default()).is_ok()
}

#[test]
fn a_comparison_of_floats_answers_as_the_whole_program_does() {
    let mut compared = 0;
    for ty in ["f32", "f64"] {
        for compare_with in COMPARES {
            for constant in [
                "0.0",
                "0.1",
                "1.5",
                "1",
                "1e-310",
                "1e300",
                "-0.1",
                "-2.5",
                "340282350000000000000000000000000000000.0",
            ] {
                for rule in [
                    format!("f: arg2:{ty} {compare_with} {constant}"),
                    format!("f: {constant} {compare_with} arg1:{ty}"),
                    format!("f: not arg9:{ty} {compare_with} {constant}"),
                ] {
                    if crate::Rule::parse(&rule).is_ok() && is_compilable(&rule) {
                        compared += compare(&rule, false);
                    }
                }
                let rule = format!("f: ret:{ty} {compare_with} {constant}");
                if crate::Rule::parse(&rule).is_ok() && is_compilable(&rule) {
                    compared += compare(&rule, true);
                }
            }
        }
    }
    assert!(compared > 200, "{compared}");
}

#[test]
fn constants_below_zero_are_constants() {
    for rule in [
        "f: arg1:f64 < -1.5",
        "f: arg1:f32 <= -0.25 or arg1:f32 == -1.5",
        "f: arg1:int < -1",
    ] {
        assert_eq!(compare(rule, false), 1, "{rule}");
    }
}

#[test]
fn error_numbers_and_results_decide_an_exit() {
    for rule in [
        "f: errno == 2",
        "f: errno > 100 or ret:int < 0",
        "f: errno != 0 and ret:long == -1",
        "f: not (ret:int >= 0 or errno == 4)",
    ] {
        assert_eq!(compare(rule, true), 1, "{rule}");
    }
}

#[test]
fn a_call_that_returns_is_left_by_no_exception() {
    for rule in [
        "f: exception",
        "f: exception == \"std::runtime_error\"",
        "f: exception.message =~ /refused/",
        "f: exception !~ /timeout/",
        "f: exception and ret:int < 0",
    ] {
        assert_eq!(compiled(rule).1.at_return(), Formula::Never, "{rule}");
    }
    assert_eq!(compare("f: exception or ret:int < 0", true), 1);
    assert_eq!(compare("f: not exception and ret:int < 0", true), 1);
}

#[test]
fn an_argument_that_is_extended_twice_is_the_narrower_one() {
    let twice = |outer: u8, inner: u8| {
        let word = Ir::Extend(Box::new(Ir::Extend(Box::new(Ir::int(1)), inner)), outer);
        let number = End::Entry.number(&word);
        number.map(|number| (number.bits, number.signed))
    };
    assert_eq!(twice(0x84, 0x84), Some((32, true)));
    assert_eq!(twice(4, 0x84), Some((32, false)));
    assert_eq!(twice(0x88, 1), Some((8, false)));
    assert_eq!(twice(0x81, 0x84), Some((8, true)));
    assert_eq!(twice(4, 0x82), None);
}

#[test]
fn fields_of_a_structure_in_a_register_are_told_apart() {
    // As `Operand` makes them: the second half, a bit field of three bits, one with a sign.
    let half = Ir::Extend(
        Box::new(Ir::binary(op::SHR, Ir::int(0), Ir::Const(32))),
        0x84,
    );
    let bits = |shift: u8| {
        let up = Ir::binary(op::SHL, Ir::int(0), Ir::Const(64 - 8));
        Ir::binary(shift, up, Ir::Const(64 - 3))
    };
    let word = 0xffff_fffe_0000_00a0;
    for (ir, value) in [
        (half, -2i64 as u64),
        (bits(op::SHR), 5),
        (bits(op::SAR), -3i64 as u64),
    ] {
        let equal = Ir::binary(op::EQ, ir.clone(), Ir::Const(value));
        let formula = formula(&equal, true);
        assert!(holds(&formula, &|_| word), "{ir:?}");
        assert!(!holds(&formula, &|_| word ^ 0x1_0000_0020), "{ir:?}");
    }
}

/// How many comparisons the beginning of a call takes, if its rule is asked then.
fn at_entry(rule: &str) -> usize {
    fn tests(decision: &Decision) -> usize {
        match decision {
            Decision::Leaf(_) => 0,
            Decision::Test { passed, other, .. } => 1 + tests(passed) + tests(other),
        }
    }
    let question = Question {
        condition: compiled(rule).1,
        asked: AskedAt::Entry,
    };
    tests(&decide(&[question], 9).expect("few comparisons").decision)
}

#[test]
fn what_only_a_part_of_a_condition_asks_refuses_no_more_than_the_condition() {
    for part in [
        "f: arg1:int > 100 and ret:int < 0",
        "f: ret:int < 0 and arg1:int > 100",
        "f: arg1:int > 100 and arg2:str =~ /x/",
        "f: arg1:int > 100 and caller f",
        "f: arg1:int > arg2:int",
        "f: not (arg1:int > 100 or ret:int < 0)",
    ] {
        assert_eq!(at_entry(part), 1, "{part}");
    }
    for none in [
        "f: arg1:int > 100 or ret:int < 0",
        "f: arg1:int > 100 and every 3",
        "f: arg1:str =~ /x/",
        "f: arg1:int > arg2:long",
        "f: not (arg1:int > 100 and ret:int < 0)",
    ] {
        assert_eq!(at_entry(none), 0, "{none}");
    }
}

#[test]
fn a_time_that_is_a_part_of_the_whole_is_no_reason_to_look_at_shorter_calls() {
    for (rule, least) in [
        ("f: self > 5ms", 5_000_001),
        ("f: waiting >= 10us", 10_000),
        ("f: duration - waiting > 1ms", 1_000_001),
        ("f: duration - self >= 1ms and ret:int < 0", 1_000_000),
        ("f: self > 5ms or ret:int < 0", 0),
        ("f: self < 5ms", 0),
        ("f: waiting - self > 1ms", 0),
    ] {
        let header = thalweg_bytecode::Header::read(&compiled(rule).0).expect("a program");
        assert_eq!(header.min_total_ns, least, "{rule}");
    }
}
