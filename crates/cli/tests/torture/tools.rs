//! Command-line programs: an interpreter, a database, a compressor, a cipher benchmark, a compiler, a language's own tests.

use crate::batch::{Batch, printed, without_figures};
use crate::cycles::Generates;
use crate::support::build::{hash, targets};
use crate::support::long;
use crate::support::scratch::Scratch;
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
    // Levels cost about four times as much every three.
    let arguments =
        |amount: u32| words(&format!("/usr/bin/zstd -T2 -q -c -{} {input}", amount * 3));
    let answer = |output: &Output| format!("{:x}", hash(&output.stdout));
    Batch {
        answer: &answer,
        ..batch("zstd -T2", &arguments, 5)
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
    let (source, object) = (scratch.join("source.cc"), scratch.join("object.o"));
    let text = "#include <iostream>\n#include <map>\n#include <regex>\nint main() {\n  std::map<std::string, std::regex> m;\n  \
                m[\"a\"] = std::regex(\"a+b\");\n  std::cout << std::regex_match(\"aab\", m[\"a\"]) << '\\n';\n}\n";
    std::fs::write(&source, text).expect("source");
    let arguments = |amount: u32| {
        words(&format!(
            "/usr/bin/g++ -O{} -c {} -o {}",
            amount.min(2),
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
        ..batch("g++ -c", &arguments, 2)
    }
    .try_out();
}

/// What each of CPython's own tests came to, whatever order their threads printed it in.
fn results_of_tests(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    let all = String::from_utf8_lossy(&all).into_owned();
    let mut results: Vec<&str> = all
        .lines()
        .filter(|line| line.contains(" ... ") || line.starts_with("Tests result:"))
        .collect();
    results.sort();
    assert!(results.len() > 50, "too few tests ran: {all}");
    results.join("\n")
}

#[test]
fn python_regression_tests() {
    let few = "test_json test_struct test_generators test_exceptions";
    let many = "test_json test_struct test_generators test_exceptions test_dict test_list test_set test_re test_coroutines \
                test_signal test_threading test_thread test_queue test_ctypes test_contextlib test_descr test_deque \
                test_decimal test_fractions test_float test_int test_long test_bytes test_unicode test_io test_pickle \
                test_zlib test_bz2 test_lzma test_hashlib test_sqlite3 test_socket test_select test_subprocess test_os \
                test_sys test_traceback test_gc test_weakref test_enum test_dataclasses test_functools test_itertools \
                test_collections test_copy test_csv test_datetime test_email test_ast test_compile test_grammar \
                test_tokenize test_sort test_heapq test_statistics test_random test_string test_textwrap test_typing";
    let arguments = |amount: u32| {
        let tests = if long() && amount == 1 { many } else { few };
        let tests = [tests].repeat(amount as usize).join(" ");
        words(&format!("/usr/bin/python3.11 -m test -v {tests}"))
    };
    Batch {
        answer: &results_of_tests,
        ..batch("CPython's own tests", &arguments, 3)
    }
    .try_out();
}
