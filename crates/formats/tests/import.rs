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
const CHROME: &str = include_str!("../../../fuzz/seeds/two-threads.chrome");

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
fn traces_keep_every_call_with_its_times_and_its_context() {
    let (format, imported) = import(CHROME.as_bytes(), None).unwrap();
    assert_eq!(format, Format::Chrome);
    let expected = [
        // The second one is as long as the call that it was made in.
        ("inner", 2, 3_250 + 4_000, 3_250 + 4_000),
        ("main", 1, 10_001 - 3_000, 10_001),
        ("outer", 1, 10_000 - 3_250 - 4_000, 10_000),
        ("read", 1, 0, 0),
        // Called by itself, so that the outer call's time is all of it.
        ("work", 2, 3_000, 3_000),
    ];
    let expected = expected
        .map(|(name, calls, self_ns, total_ns)| (name.to_string(), calls, self_ns, total_ns));
    assert_eq!(rows(&imported), expected);
    let threads = &imported.processes[0].threads;
    let named: Vec<_> = threads.iter().map(|t| (t.tid, t.name.as_str())).collect();
    assert_eq!(named, [(10, "first"), (11, "second")]);
    assert_eq!((threads[0].start_ns, threads[0].end_ns), (0, 10_001));
    assert_eq!(threads[0].nodes[2].recursion, 1);
    assert_eq!(imported.meta.duration_ns, 34_000);

    // Whoever is killed leaves a list without an end, and calls without theirs.
    let cut = CHROME
        .split_once(",\n{\"ts\":1763596800000110.001")
        .unwrap()
        .0;
    let (_, imported) = import(cut.as_bytes(), None).unwrap();
    let main = rows(&imported).remove(0);
    assert_eq!(main, ("main".to_string(), 1, 1_000, 4_000));
    let notes = imported.notes.join("; ");
    assert!(
        notes.contains("cut short") && notes.contains("1 of the calls had not ended"),
        "{notes}"
    );
    let error = import(b"[]", None).unwrap_err();
    assert!(matches!(error, ImportError::Empty), "{error}");
    let error = import(b"{\"traceEvents\": [{\"ph\": 7]}", None).unwrap_err();
    assert!(matches!(error, ImportError::Malformed(_)), "{error}");
}

const TRACED: &str = "
    #include <pthread.h>
    #define FN __attribute__((noinline))
    volatile int sink;
    FN void leaf(int n) { for (int i = 0; i < n; i++) sink += i; }
    FN void mid(int n) { for (int i = 0; i < n; i++) leaf(i); sink++; }
    FN int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    FN void *work(void *unused) { mid(20); sink = fib(8); return unused; }
    int main(void) {
        pthread_t one;
        mid(10);
        pthread_create(&one, 0, work, 0);
        pthread_join(one, 0);
        return fib(10) == 55 ? 0 : 1;
    }";

#[test]
fn what_uftrace_traces_is_counted_as_uftrace_counts_it() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    std::fs::write(path("traced.c"), TRACED).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        let output = command.args(arguments).current_dir(scratch.path()).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(output.status.success(), "{program}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(
        "gcc",
        &["-O1", "-pg", "-pthread", "-o", "traced", "traced.c"],
    );
    run(
        "uftrace",
        &[
            "record",
            "--no-event",
            "--no-libcall",
            "-d",
            "data",
            "./traced",
        ],
    );
    let trace = run("uftrace", &["dump", "--chrome", "-d", "data"]);
    let report = run("uftrace", &["report", "-d", "data", "-f", "call"]);
    let (format, imported) = import(trace.as_bytes(), None).unwrap();
    assert_eq!(format, Format::Chrome);
    assert_eq!(
        imported.notes.len(),
        1,
        "all calls are whole: {:?}",
        imported.notes
    );
    let found: Vec<(String, u64)> = rows(&imported)
        .into_iter()
        .map(|(name, calls, ..)| (name, calls))
        .collect();
    let mut known: Vec<(String, u64)> = report
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let calls = words.next()?.parse().ok()?;
            Some((words.next()?.to_string(), calls))
        })
        .collect();
    known.sort();
    assert_eq!(found, known);
    let calls = |name: &str| found.iter().find(|(one, _)| one == name).map(|one| one.1);
    assert_eq!(
        ["leaf", "mid", "fib"].map(calls),
        [Some(30), Some(2), Some(67 + 177)]
    );
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
        Some(Format::Chrome),
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
    let texts = [PERF, CHROME].map(Vec::from);
    let all = [plain, callgrind_bytes(), folded_bytes()];
    prop::sample::select([&all[..], &texts].concat())
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
