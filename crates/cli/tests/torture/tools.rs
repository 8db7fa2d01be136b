//! Command-line programs: an interpreter, a database, a compressor, a cipher benchmark, a compiler, a language's own tests.

use crate::batch::{Batch, printed, without_figures};
use crate::cycles::Generates;
use crate::support::build::{hash, targets};
use crate::support::long;
use crate::support::scratch::Scratch;
use std::path::Path;
use std::process::Output;

fn real(name: &str) -> String {
    let path = targets().join("real").join(name);
    path.to_str().expect("UTF-8").to_owned()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Fields that most programs have alike.
fn batch<'a>(
    program: &'a str,
    arguments: &'a (dyn Fn(u32) -> Vec<String> + Sync),
    long: u32,
) -> Batch<'a> {
    Batch {
        program,
        generates: Generates::Nothing,
        arguments,
        answer: &printed,
        long,
        rate: None,
        child: None,
    }
}

#[test]
fn lua() {
    let script = real("work.lua");
    let arguments = |amount: u32| words(&format!("/usr/bin/lua5.4 {script} {}", amount * 50));
    batch("lua5.4", &arguments, 60).try_out();
}

#[test]
fn sqlite() {
    let script = format!(".read {}", real("work.sql"));
    let arguments = |amount: u32| {
        let mut all = words("/usr/bin/sqlite3 :memory:");
        all.extend(std::iter::repeat_n(script.clone(), amount as usize * 20));
        all
    };
    batch("sqlite3", &arguments, 20).try_out();
}

#[test]
fn zstd() {
    let input = env!("CARGO_BIN_EXE_thalweg");
    let arguments = |amount: u32| {
        let mut all = words("/usr/bin/zstd -T2 -q -c -9");
        all.extend(std::iter::repeat_n(input.to_owned(), amount as usize));
        all
    };
    let answer = |output: &Output| format!("{:x}", hash(&output.stdout));
    Batch {
        answer: &answer,
        ..batch("zstd -T2", &arguments, 4)
    }
    .try_out();
}

#[test]
fn openssl_speed() {
    let arguments = |amount: u32| {
        words(&format!(
            "/usr/bin/openssl speed -seconds {amount} -bytes 1024 sha256 rsa2048"
        ))
    };
    // "sha256 953819.43k"
    let rate = |output: &Output| {
        let out = printed(output);
        let line = out.lines().find(|line| line.starts_with("sha256 "));
        let figure = line.and_then(|line| line.split_whitespace().nth(1));
        let figure = figure.and_then(|figure| figure.trim_end_matches('k').parse().ok());
        figure.unwrap_or_else(|| panic!("no figure for sha256 in {out}"))
    };
    Batch {
        answer: &without_figures,
        rate: Some(&rate),
        ..batch("openssl speed", &arguments, 2)
    }
    .try_out();
}

#[test]
fn gxx_compiles() {
    let scratch = Scratch::new();
    let object = scratch.join("object.o");
    // Each type of traits makes the compiler instantiate the whole of <regex> once more.
    let arguments = |amount: u32| {
        let mut text = "#include <regex>\n".to_owned();
        for i in 0..amount {
            text += &format!(
                "struct T{i} : std::regex_traits<char> {{}};\n\
                 bool f{i}(const char *s) {{ return std::regex_match(s, std::basic_regex<char, T{i}>(\"a+b\")); }}\n"
            );
        }
        let source = scratch.join(&format!("source{amount}.cc"));
        std::fs::write(&source, text).expect("source");
        words(&format!(
            "/usr/bin/g++ -O2 -c {} -o {}",
            source.display(),
            object.display()
        ))
    };
    let answer = |_: &Output| {
        let compiled = std::fs::read(&object).expect("the compiler writes its object");
        std::fs::remove_file(&object).expect("the object can be removed");
        format!("{:x}", hash(&compiled))
    };
    Batch {
        answer: &answer,
        child: Some("cc1plus"),
        ..batch("g++ -c", &arguments, 4)
    }
    .try_out();
}

/// What each of CPython's own tests came to, from the report that they write: `<testcase name="..." .../>`, or with a
/// `<failure>`, `<error>` or `<skipped>` inside.
fn results_of_tests(report: &Path) -> String {
    let all = std::fs::read_to_string(report).expect("the tests write their report");
    let cases = all.split("<testcase name=\"").skip(1);
    let mut results: Vec<String> = cases
        .map(|case| {
            let name = case.split('"').next().unwrap_or_default();
            let result = ["<failure", "<error", "<skipped"];
            let result = result.iter().find(|kind| case.contains(**kind));
            format!("{name} {}", result.unwrap_or(&"passed"))
        })
        .collect();
    // Repeated modules are told apart by nothing.
    results.sort();
    assert!(results.len() > 50, "too few tests ran: {all}");
    results.join("\n")
}

#[test]
fn python_regression_tests() {
    let few = "test_json test_struct test_generators test_exceptions";
    let many = "test_json test_struct test_generators test_exceptions test_dict test_list test_set test_re test_coroutines \
                test_signal test_thread test_queue test_ctypes test_contextlib test_descr test_deque test_fractions \
                test_float test_int test_long test_bytes test_io test_pickle test_zlib test_bz2 test_hashlib test_select \
                test_os test_sys test_traceback test_gc test_faulthandler test_threadsignals test_fork1 test_posix";
    let scratch = Scratch::new();
    let report = scratch.join("report.xml");
    let arguments = |amount: u32| {
        let tests = if long() && amount == 1 { many } else { few };
        let tests = [tests].repeat(amount as usize).join(" ");
        let report = report.display();
        words(&format!(
            "/usr/bin/python3.11 -m test -q --junit-xml {report} {tests}"
        ))
    };
    let answer = |_: &Output| results_of_tests(&report);
    Batch {
        answer: &answer,
        ..batch("CPython's own tests", &arguments, 2)
    }
    .try_out();
}
