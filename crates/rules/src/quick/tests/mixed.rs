//! Conditions that mix what a call begins with and what it ends with: what the hot path does with
//! random ones, against what their programs say.

use thalweg_bytecode::{Header, flags};

use super::*;

/// What a call begins and ends with.
#[derive(Clone, Copy, Debug)]
struct Made {
    ints: [u64; thalweg_bytecode::INTS],
    floats: [u64; thalweg_bytecode::FLOATS],
    stack: [u64; 4],
    ret: u64,
    errno: i64,
    total: u64,
    own: u64,
    waited: u64,
    unwound: bool,
}

/// The same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) as usize % sides
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len())]
    }

    fn made(&mut self) -> Made {
        let number = |dice: &mut Dice| {
            let numbers = [0, 1, 7, 99, 100, 101, 1 << 31, 1 << 32, 1 << 63];
            let number: u64 = dice.of(&numbers);
            dice.of(&[number, number.wrapping_neg(), !number])
        };
        let float = |dice: &mut Dice| {
            let floats = [0.0, 1.5, -1.5, 1.6, f64::NAN, f64::INFINITY];
            dice.of(&floats).to_bits()
        };
        let total = self.of(&[10, 999_999, 1_000_000, 1_000_001, 5_000_000, 9_000_000]);
        let own = self.of(&[5, 900_000, 1_000_001, 6_000_000]).min(total);
        Made {
            ints: std::array::from_fn(|_| number(self)),
            floats: std::array::from_fn(|_| float(self)),
            stack: std::array::from_fn(|_| number(self)),
            ret: number(self),
            errno: self.of(&[0, 2, 4]),
            total,
            own,
            waited: self.of(&[0, 3, 2_000_000]).min(total - own),
            unwound: self.roll(5) == 0,
        }
    }

    /// A comparison, and whether the hot path can make it exactly.
    fn comparison(&mut self) -> (&'static str, bool) {
        let exact = [
            "arg1:int > 100",
            "arg2:long <= arg3:long",
            "arg3:uint < arg4:uint",
            "arg1:int != arg4:int",
            "arg2:ulong >= arg1:ulong",
            "arg1:int & 0x11 == 1",
            "arg1:int <= 100",
            "arg2:u8 == 7",
            "ret:int < 0",
            "ret:long == arg2:long - arg2:long",
            "errno == 2",
            "duration > 1ms",
            "duration <= 1ms",
            "exception",
        ];
        let loose = ["self > 1ms", "waiting >= 2ms", "self < 1ms", "caller f"];
        match self.roll(5) {
            0 => (self.of(&loose), false),
            _ => (self.of(&exact), true),
        }
    }

    fn condition(&mut self, depth: usize) -> (String, bool) {
        if depth == 0 || self.roll(6) == 0 {
            let (text, exact) = self.comparison();
            // Where nothing is compared with a constant the program alone can tell.
            return (text.to_owned(), exact && !text.contains(" - "));
        }
        let ((a, first), (b, second)) = (self.condition(depth - 1), self.condition(depth - 1));
        let not = self.of(&["", "", "not "]);
        let join = self.of(&["and", "or"]);
        (format!("{not}({a} {join} {b})"), first && second)
    }
}

impl Made {
    fn word(&self, source: Source) -> u64 {
        match source {
            Source::Int(n) => self.ints[usize::from(n)],
            Source::Float(n) => self.floats[usize::from(n)],
            Source::Stack(offset) => self.stack[usize::from(offset) / 8 - 1],
            Source::Ret(_) => self.ret,
            Source::RetFloat(_) => 0,
            Source::Errno => self.errno as u64,
            Source::Took => self.total,
        }
    }

    /// Whether the whole program keeps it.
    fn is_kept(&self, program: &[u8], header: &Header) -> bool {
        let machine = Machine {
            int: self.ints,
            float: self.floats,
            ret: [self.ret; 2],
            errno: self.errno,
            sp: SP,
            ..Machine::default()
        };
        let call = Call {
            total_ns: self.total,
            self_ns: self.own,
            waited_ns: self.waited,
            unwound: self.unwound,
            ..Call::default()
        };
        let (mut bytes, mut more) = ([0; 512], [0; 512]);
        let mut memory = Stack(&self.stack);
        let mut out = Out::new(&mut bytes);
        let mut known = 0;
        if header.has(flags::NEEDS_ENTRY) {
            let verdict = entry(program, &machine, &mut memory, &Nowhere, &call, &mut out);
            known = out.len();
            match verdict {
                Verdict::No => return false,
                Verdict::Yes => return true,
                Verdict::AtExit => {}
            }
        }
        let mut out = Out::new(&mut more);
        exit(
            program,
            &machine,
            &mut memory,
            &call,
            &bytes[..known],
            &mut out,
        )
    }
}

/// As `thalweg-instrument` has it.
fn question(program: &Header, condition: Formula) -> Option<Question> {
    let saved = Save::All;
    let asked = match (program.has(flags::NEEDS_ENTRY), program.min_total_ns) {
        (true, 0) if program.has(flags::CAN_WAIT) => AskedAt::Saved(saved),
        (true, _) if program.has(flags::CAN_WAIT) => AskedAt::SavedIfLong(saved),
        (true, _) => AskedAt::Entry,
        (false, 0) => AskedAt::Exit,
        (false, _) => return None,
    };
    Some(Question { condition, asked })
}

fn leaf<'d>(decision: &'d Decision, made: &Made) -> &'d Leaf {
    match decision {
        Decision::Leaf(leaf) => leaf,
        Decision::Test {
            test,
            passed,
            other,
        } => match test.passes(&|source| made.word(source)) {
            true => leaf(passed, made),
            false => leaf(other, made),
        },
    }
}

#[test]
fn both_ends_together_refuse_what_the_whole_program_refuses() {
    let mut dice = Dice(7);
    let (mut refused, mut asked, mut named) = (0, 0, 0);
    for _ in 0..3_000 {
        let (condition, exact) = dice.condition(3);
        let record = dice.of(&["", "; record arg1:int, ret:int", "; record arg2:f64"]);
        let rule = format!("f: {condition}{record}");
        if !is_compilable(&rule) {
            continue;
        }
        let (program, formula) = compiled(&rule);
        let header = Header::read(&program).expect("a program");
        let Some(question) = question(&header, formula) else {
            continue;
        };
        let decided = decide(std::slice::from_ref(&question), 24).expect("few comparisons");
        let decision = &decided.decision;
        named += usize::from(matches!(**decision, Decision::Test { .. }));
        for _ in 0..40 {
            let made = dice.made();
            let kept = made.is_kept(&program, &header);
            let about = || format!("{rule}\n{made:?}\n{decision:?}");
            let Leaf::Look { save, exit } = leaf(decision, &made) else {
                asked += 1;
                if exact && matches!(question.asked, AskedAt::Saved(_)) {
                    assert!(kept, "asked at its beginning: {}", about());
                }
                continue;
            };
            let is_saved = *save != Save::Nothing;
            let is_late = matches!(question.asked, AskedAt::Saved(_) | AskedAt::SavedIfLong(_));
            let least = match question.asked {
                AskedAt::SavedIfLong(_) => Some(header.min_total_ns),
                _ => decided.longer,
            };
            let is_long = least.is_some_and(|least| made.total >= least);
            let is_heard = match question.asked {
                AskedAt::Entry => false,
                _ if is_late && !is_saved => false,
                _ if made.unwound => true,
                _ => is_long || holds(exit, &|source| made.word(source)),
            };
            refused += usize::from(!is_heard);
            if !is_heard {
                assert!(!kept, "refused: {}", about());
            } else if exact && !made.unwound && !is_long {
                assert!(kept, "heard of: {}", about());
            }
        }
    }
    assert!(
        refused > 10_000 && asked > 3_000 && named > 500,
        "{refused} {asked} {named}"
    );
}

#[test]
fn what_the_beginning_answers_is_not_asked_again_at_the_end() {
    let (program, condition) = compiled(
        "f: (arg1:int > 9 and ret:int < 0) or (arg1:int <= 9 and errno == 2); record arg1:int",
    );
    let header = Header::read(&program).expect("a program");
    let question = question(&header, condition).expect("a question");
    let decision = decide(&[question], 9).expect("few comparisons").decision;
    let Decision::Test { passed, other, .. } = &*decision else {
        panic!("{decision:?}");
    };
    for (leaf, source) in [(passed, Source::Ret(0)), (other, Source::Errno)] {
        let Decision::Leaf(Leaf::Look {
            save: Save::All,
            exit: Formula::Test(Test::Range(range)),
        }) = &**leaf
        else {
            panic!("{decision:?}");
        };
        assert_eq!(range.source, source);
    }
}

#[test]
fn a_long_call_is_looked_at_anyway_so_its_time_is_not_compared() {
    for (rule, longer) in [
        (
            "f: arg1:int > 9 or duration > 5ms; record arg1:int",
            Some(5_000_001),
        ),
        (
            "f: arg1:int > 9 or self > 5ms and ret:int < 0",
            Some(5_000_001),
        ),
        (
            "f: ret:int < 0 or waiting >= 2ms or duration > 5ms",
            Some(2_000_000),
        ),
        ("f: arg1:int > 9 or duration < 5ms", None),
    ] {
        let (program, condition) = compiled(rule);
        let header = Header::read(&program).expect("a program");
        let question = question(&header, condition).expect("a question");
        let decided = decide(&[question], 9).expect("few comparisons");
        assert_eq!(decided.longer, longer, "{rule}");
    }
}
