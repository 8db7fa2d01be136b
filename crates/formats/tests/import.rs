//! Other tools' files: what they say is kept, what they do not say is not made up, and no file can
//! harm us.

mod support;

use proptest::prelude::*;
use support::profile;
use thalweg_analysis::{Caller, edges, flat};
use thalweg_formats::import::{Format, ImportError, Unit, read};
use thalweg_formats::{callgrind, folded, pprof};
use thalweg_model::{FuncId, Profile};

fn import(bytes: &[u8], format: Option<Format>) -> Result<(Format, Profile), ImportError> {
    read(bytes, format, Unit::Samples)
}

/// Name, calls, self, total of each function, sorted.
fn rows(profile: &Profile) -> Vec<(String, u64, u64, u64)> {
    let mut rows: Vec<_> = flat(profile)
        .into_iter()
        .map(|row| {
            let name = profile.functions[row.function].name.clone();
            (name, row.calls, row.self_ns, row.total_ns)
        })
        .filter(|(_, calls, self_ns, total_ns)| calls + self_ns + total_ns > 0)
        .collect();
    rows.sort();
    rows
}

fn pprof_bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    pprof::write(&profile(), &mut bytes).unwrap();
    bytes
}

fn callgrind_bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    callgrind::write(&profile(), &mut bytes).unwrap();
    bytes
}

fn folded_bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    folded::write(&profile(), &mut bytes).unwrap();
    bytes
}

const PERF: &str = include_str!("../../../fuzz/seeds/two-threads.perf");

#[test]
fn pprof_comes_back_as_it_went() {
    let (format, imported) = import(&pprof_bytes(), None).unwrap();
    assert_eq!(format, Format::Pprof);
    assert_eq!(rows(&imported), rows(&profile()));
    assert_eq!(imported.processes[0].threads.len(), 2);
    assert_eq!(imported.processes[0].threads[1].tid, 42);
    assert_eq!(imported.meta.duration_ns, 300_000);
}

#[test]
fn folded_stacks_keep_their_stacks_and_say_that_calls_are_unknown() {
    let text = b"main;a;b 10\nmain;a 5\n# comment\nmain;b;b 2.4\n";
    let (format, imported) = import(text, None).unwrap();
    assert_eq!(format, Format::Folded);
    let expected = [("a", 0, 5, 15), ("b", 0, 12, 12), ("main", 0, 0, 17)];
    let expected = expected
        .map(|(name, calls, self_ns, total_ns)| (name.to_string(), calls, self_ns, total_ns));
    assert_eq!(rows(&imported), expected);
    assert!(imported.notes[0].contains("calls were not counted"));
    let (_, timed) = read(&text[..], None, Unit::Milliseconds).unwrap();
    assert_eq!(rows(&timed)[0].2, 5_000_000);
}

#[test]
fn callgrind_keeps_costs_of_functions_and_pairs() {
    let (format, imported) = import(&callgrind_bytes(), None).unwrap();
    assert_eq!(format, Format::Callgrind);
    let mut without_start = rows(&imported);
    without_start.retain(|(name, ..)| name != "START");
    assert_eq!(without_start, rows(&profile()));

    let of = |profile: &Profile, caller: &str, callee: &str| {
        let name = |function: FuncId| profile.functions[function].name.clone();
        let edge = edges(profile).into_iter().find(|edge| {
            matches!(edge.caller, Caller::Function(f) if name(f) == caller)
                && name(edge.callee) == callee
        });
        edge.map(|edge| (edge.calls, edge.total_ns))
    };
    for pair in [("easy", "work"), ("hard", "work"), ("main", "hard")] {
        assert_eq!(
            of(&imported, pair.0, pair.1),
            of(&profile(), pair.0, pair.1),
            "{pair:?}"
        );
    }
}

#[test]
fn valgrinds_own_files_are_understood() {
    let text = "version: 1\ncreator: callgrind-3.19\ncmd: ./a b\npositions: line\nevents: Ir Dr\n\
        fl=(1) a.c\nfn=(1) main\n3 10 2\ncfn=(2) work\ncalls=2 7\n+1 300 7\n\n\
        fn=(2)\n7 200\n* 100\ntotals: 310 9\n";
    let (_, imported) = import(text.as_bytes(), None).unwrap();
    let expected = [
        ("main".to_string(), 0, 10, 310),
        ("work".to_string(), 2, 300, 300),
    ];
    assert_eq!(rows(&imported), expected);
    assert!(
        imported.notes[0].contains("times are Ir"),
        "{:?}",
        imported.notes
    );
}

#[test]
fn perf_script_keeps_threads_times_and_periods() {
    let (format, imported) = import(PERF.as_bytes(), None).unwrap();
    assert_eq!(format, Format::PerfScript);
    assert_eq!(imported.meta.duration_ns, 250_000_000);
    let threads = &imported.processes[0].threads;
    assert_eq!(
        (threads[0].tid, threads[1].name.as_str()),
        (42, "my worker")
    );
    let names: Vec<_> = rows(&imported)
        .into_iter()
        .map(|row| (row.0, row.3))
        .collect();
    let expected = [
        ("_PyEval_EvalFrameDefault", 250_000),
        ("main", 500_000),
        ("sub_7f210000", 250_000),
    ];
    assert_eq!(
        names,
        expected.map(|(name, total_ns)| (name.to_string(), total_ns))
    );
}

#[test]
fn what_is_no_profile_is_refused_with_a_reason() {
    for (bytes, words) in [
        (&b""[..], "none of"),
        (b"hello", "none of"),
        (b"\x1f\x8b\x08broken", "cannot be read"),
        (b"events: Ir\nfn=(1)\n", "not given before"),
        (b"events: Ir\n5 5\n", "before any fn="),
        (b"\n\n# nothing\n", "none of"),
    ] {
        let message = import(bytes, None).unwrap_err().to_string();
        assert!(message.contains(words), "{bytes:?}: {message}");
    }
    let message = import(b"main;a x\n", Some(Format::Folded))
        .unwrap_err()
        .to_string();
    assert!(message.starts_with("line 1:"), "{message}");
}

#[test]
fn a_stack_that_grows_without_end_is_stopped() {
    // One location that stands for many inlined functions, many times over in each sample.
    let mut location = vec![0x08, 1];
    for _ in 0..20_000 {
        location.extend([0x22, 2, 0x08, 1]);
    }
    let mut bytes = vec![0x0a, 4, 0x08, 0, 0x10, 0];
    let mut push = |field: u8, body: &[u8]| {
        bytes.push(field << 3 | 2);
        let mut length = body.len();
        while length >= 0x80 {
            bytes.push(length as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend(body);
    };
    push(4, &location);
    let mut stack = vec![0x0a, 0x90, 0x4e];
    stack.extend(vec![1; 10_000]);
    push(2, &stack);
    let error = import(&bytes, Some(Format::Pprof)).unwrap_err();
    assert!(matches!(error, ImportError::TooLarge(_)), "{error}");
}

fn any_format() -> impl Strategy<Value = Option<Format>> {
    prop::sample::select(vec![
        None,
        Some(Format::Pprof),
        Some(Format::Callgrind),
        Some(Format::Folded),
        Some(Format::PerfScript),
    ])
}

/// Files of ours before compression, so that what is changed is the content.
fn valid() -> impl Strategy<Value = Vec<u8>> {
    let mut plain = Vec::new();
    std::io::Read::read_to_end(
        &mut flate2::read::GzDecoder::new(&pprof_bytes()[..]),
        &mut plain,
    )
    .unwrap();
    prop::sample::select(vec![plain, callgrind_bytes(), folded_bytes(), PERF.into()])
}

proptest! {
    #[test]
    fn no_bytes_make_an_importer_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        format in any_format(),
    ) {
        let _ = import(&bytes, format);
    }

    #[test]
    fn no_change_of_a_valid_file_makes_an_importer_panic(
        mut bytes in valid(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        format in any_format(),
    ) {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok((_, profile)) = import(&bytes, format) {
            prop_assert!(profile.validate().is_ok());
        }
    }
}
