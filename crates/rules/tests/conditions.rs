//! Conditions decide as they read: against regular expressions, against plain evaluation, and at
//! the entry as at the exit.

use std::path::Path;

use proptest::prelude::*;
use thalweg_bytecode::{
    Call, Header, Machine, Memory, Nowhere, Out, Status, Verdict, entry, exit, op,
};
use thalweg_rules::{Compiled, FunctionInfo, Options, Rule, compile};

/// One text at a known address.
struct Text<'a>(&'a [u8]);

const AT: u64 = 0x1000;

impl Memory for Text<'_> {
    fn read(&mut self, at: u64, into: &mut [u8]) -> usize {
        let Some(from) = at.checked_sub(AT).filter(|n| *n < self.0.len() as u64) else {
            return 0;
        };
        let rest = &self.0[from as usize..];
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    }
}

fn compiled(rule: &str) -> Compiled {
    let function = FunctionInfo {
        number: 0,
        name: "f",
        linkage_name: None,
        module: Path::new("/nonexistent"),
        address: 0,
        go: false,
        managed: false,
    };
    let rule = Rule::parse(rule).unwrap_or_else(|e| panic!("{e}"));
    compile(&[rule], &[function], &Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn program(rule: &str) -> Vec<u8> {
    compiled(rule).programs.remove(0)
}

#[test]
fn a_text_that_is_read_at_each_call_though_the_end_decides_is_noted() {
    for (rule, noted) in [
        ("f: duration > 5ms; record arg1:str", true),
        (
            "f: arg2:int > 100 or ret:int < 0; record arg1:str, arg2:int",
            true,
        ),
        ("f: ret:int < 0; record exit(arg1:str)", false),
        ("f: arg2:int > 100 and ret:int < 0; record arg1:str", false),
        ("f: arg2:int > 100; record arg1:str", false),
        ("f; record arg1:str", false),
        ("f: duration > 5ms; record arg2:int", false),
    ] {
        let notes = compiled(rule).notes;
        assert_eq!(!notes.is_empty(), noted, "{rule}: {notes:?}");
        assert!(notes.iter().all(|note| note.contains("exit(arg1:str) is")));
    }
}

fn verdict(program: &[u8], machine: &Machine, text: &[u8]) -> Verdict {
    let mut buffer = [0; 256];
    let mut out = Out::new(&mut buffer);
    entry(
        program,
        machine,
        &mut Text(text),
        &Nowhere,
        &Call::default(),
        &mut out,
    )
}

/// Expressions over `a` and `b`, with the odd parts that automata get wrong.
fn regex() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "a", "b", ".", "[^a]", "^", "$", "ab", "", "(?i)B", "\\d", "\\bab\\b",
    ]);
    leaf.prop_map(str::to_owned)
        .prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}{b}")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("(?:{a}|{b})")),
                inner.clone().prop_map(|a| format!("(?:{a})*")),
                inner.clone().prop_map(|a| format!("(?:{a})?")),
                inner.prop_map(|a| format!("(?:{a}){{2}}")),
            ]
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_target_decides_regular_expressions_as_everybody_does(
        pattern in regex(), texts in prop::collection::vec("[abB1 \n]{0,150}", 1..6),
    ) {
        let program = program(&format!("f: arg1:str =~ /{pattern}/"));
        let regex = regex::bytes::RegexBuilder::new(&pattern).unicode(false).build().unwrap();
        for text in texts {
            let machine = Machine { int: [AT, 0, 0, 0, 0, 0, 0, 0, 0], ..Machine::default() };
            let terminated = [text.as_bytes(), b"\0more"].concat();
            let found = verdict(&program, &machine, &terminated) == Verdict::Yes;
            prop_assert_eq!(found, regex.is_match(text.as_bytes()), "{} {:?}", pattern, text);
        }
    }

    #[test]
    fn texts_are_equal_to_themselves_alone(text in "[ab]{0,140}", other in "[ab]{0,140}") {
        let program = program(&format!("f: arg1:str == \"{text}\""));
        let machine = Machine { int: [AT, 0, 0, 0, 0, 0, 0, 0, 0], ..Machine::default() };
        prop_assert_eq!(verdict(&program, &machine, &[text.as_bytes(), b"\0"].concat()), Verdict::Yes);
        let same = verdict(&program, &machine, &[other.as_bytes(), b"\0x"].concat()) == Verdict::Yes;
        prop_assert_eq!(same, text == other);
        // Without its end nobody knows, unless it differs before.
        prop_assert_ne!(verdict(&program, &machine, text.as_bytes()), Verdict::Yes);
    }
}

#[derive(Clone, Debug)]
enum Tree {
    /// A value of the call, and what it is compared with.
    Atom(usize, u64),
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
    Not(Box<Tree>),
}

/// The last one cannot be read.
const ATOMS: [&str; 6] = [
    "arg1:long > N",
    "arg2:long == N",
    "ret:long > N",
    "duration > Nns",
    "errno == N",
    "arg3:str == \"N\"",
];

impl Tree {
    fn text(&self) -> String {
        match self {
            Tree::Atom(which, n) => ATOMS[*which].replace('N', &n.to_string()),
            Tree::And(a, b) => format!("({} and {})", a.text(), b.text()),
            Tree::Or(a, b) => format!("({} or {})", a.text(), b.text()),
            Tree::Not(a) => format!("not ({})", a.text()),
        }
    }

    /// `None`: unknown.
    fn value(&self, values: &[u64; 5]) -> Option<bool> {
        match self {
            Tree::Atom(5, _) => None,
            Tree::Atom(which @ (1 | 4), n) => Some(values[*which] == *n),
            Tree::Atom(which, n) => Some(values[*which] > *n),
            Tree::And(a, b) => match (a.value(values), b.value(values)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Tree::Or(a, b) => match (a.value(values), b.value(values)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Tree::Not(a) => a.value(values).map(|value| !value),
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = (0..ATOMS.len(), 0u64..4).prop_map(|(which, n)| Tree::Atom(which, n));
    leaf.prop_recursive(4, 16, 2, |inner| {
        let both = (inner.clone(), inner.clone());
        prop_oneof![
            both.clone()
                .prop_map(|(a, b)| Tree::And(a.into(), b.into())),
            both.prop_map(|(a, b)| Tree::Or(a.into(), b.into())),
            inner.prop_map(|a| Tree::Not(a.into())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_condition_decides_as_it_reads_and_the_entry_never_contradicts_the_exit(tree in tree(), values in prop::array::uniform5(0u64..5)) {
        let program = program(&format!("f: {}; record arg1:long, ret:long", tree.text()));
        let [a, b, ret, total_ns, errno] = values;
        let machine = Machine { int: [a, b, 1, 0, 0, 0, 0, 0, 0], ret: [ret, 0], errno: errno as i64, ..Machine::default() };
        let call = Call { total_ns, ..Call::default() };
        let mut buffer = [0; 512];
        let mut out = Out::new(&mut buffer);
        let verdict = entry(&program, &machine, &mut Text(b""), &Nowhere, &call, &mut out);
        let values_at_entry = out.written().to_vec();
        // Registers have other contents by then.
        let machine = Machine { int: [9; thalweg_bytecode::INTS], ..machine };
        let mut buffer = [0; 512];
        let mut out = Out::new(&mut buffer);
        let kept = verdict != Verdict::No
            && exit(&program, &machine, &mut Text(b""), &call, &values_at_entry, &mut out);
        prop_assert_eq!(kept, tree.value(&values) == Some(true), "{}", tree.text());
        if verdict == Verdict::Yes {
            prop_assert!(kept);
        }
        let header = Header::read(&program).unwrap();
        if kept {
            prop_assert!(total_ns >= header.min_total_ns);
        }
        prop_assert!((values_at_entry.len() + out.len()) as u32 <= header.max_out);
    }
}

#[test]
fn the_shortest_call_that_can_be_kept_is_known_beforehand() {
    for (rule, least) in [
        ("f: duration > 5ms", 5_000_001),
        ("f: duration >= 5ms and arg1:int == 3", 5_000_000),
        ("f: 5ms < duration or duration > 1ms", 1_000_001),
        ("f: duration > 5ms or arg1:int == 3", 0),
        ("f: not duration > 5ms", 0),
    ] {
        assert_eq!(
            Header::read(&program(rule)).unwrap().min_total_ns,
            least,
            "{rule}"
        );
    }
}

/// Is a call that ended so kept?
fn kept(rule: &str, call: &Call<'_>) -> bool {
    let program = program(rule);
    let mut buffer = [0; 512];
    let mut out = Out::new(&mut buffer);
    let machine = Machine::default();
    let verdict = entry(&program, &machine, &mut Text(b""), &Nowhere, call, &mut out);
    let values = out.written().to_vec();
    verdict != Verdict::No && exit(&program, &machine, &mut Text(b""), call, &values, &mut out)
}

#[test]
fn exceptions_are_known_by_type_and_message_and_leave_no_result() {
    let mut buffer = [0; 128];
    let mut thrown = Out::new(&mut buffer);
    thrown.push(op::thrown::TYPE, Status::Ok, b"N3net7timeoutE");
    thrown.push(op::thrown::MESSAGE, Status::Ok, b"no answer");
    let left = Call {
        unwound: true,
        exception: thrown.written(),
        ..Call::default()
    };
    let jumped = Call {
        unwound: true,
        ..Call::default()
    };
    for (rule, by_exception, by_jump, by_return) in [
        ("f: exception", true, true, false),
        ("f: not exception", false, false, true),
        ("f: exception == \"net::timeout\"", true, false, false),
        ("f: exception == \"timeout\"", false, false, false),
        ("f: exception =~ /^net::time/", true, false, false),
        ("f: exception.message =~ /^no/", true, false, false),
        ("f: exception.message == \"no\"", false, false, false),
        ("f: ret:int == 0", false, false, true),
        ("f: ret:int == 0 or exception", true, true, true),
    ] {
        let found = (
            kept(rule, &left),
            kept(rule, &jumped),
            kept(rule, &Call::default()),
        );
        assert_eq!(found, (by_exception, by_jump, by_return), "{rule}");
    }
}

#[test]
fn each_nth_call_is_the_nth_that_the_rule_has_seen() {
    let numbers = (1..=10).filter(|number| {
        let call = Call {
            number: *number,
            ..Call::default()
        };
        kept("f: every 3", &call)
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [3, 6, 9]);
}
