//! What the benchmark runs: sources and scripts that are built into it.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// The call-heavy microbenchmark; `-DFLOOR` is its hand-instrumented form.
pub const CALLS: &str = include_str!("../../tests/targets/bench/calls.c");
pub const COUNTED: &str = include_str!("../../tests/targets/bench/counted.c");

/// Functions that enter the kernel.
pub const ENTERING: &str = include_str!("../../tests/targets/bench/entering.c");

/// A function with arguments of each kind, for rules.
pub const RULED: &str = include_str!("../../tests/targets/bench/ruled.c");

/// Functions of all sizes and shapes, for how true the figures are.
pub const TRUTH_C: &str = include_str!("../../tests/targets/bench/truth.c");

/// One busy thread among others that call little, for budgets.
pub const HOT: &str = include_str!("../../tests/targets/bench/hot.c");

/// Goroutines that call short functions, for budgets.
pub const HOT_GO: &str = include_str!("../../tests/targets/bench/hot.go");

pub struct Program {
    pub name: &'static str,
    pub command: &'static str,
    pub what: &'static str,
    pub arguments: &'static [&'static str],
    /// One of `files`, if it is read from standard input.
    pub stdin: Option<&'static str>,
    /// (name, text, how often the text is repeated in the file)
    files: &'static [(&'static str, &'static str, usize)],
    /// Megabytes that the profile may take.
    pub profile_limit: Option<f64>,
    /// Nothing about the compensation was chosen by looking at it.
    pub held_out: bool,
    /// A server's: how many requests of each kind it gets before it is told to end.
    pub requests: u32,
}

/// About a tenth of a second each when nobody looks: long enough that starting a profiler is not all that is measured.
const PROGRAMS: &[Program] = &[
    Program {
        name: "cpython",
        command: "python3.11",
        what: "start-up, JSON and recursion",
        arguments: &["work.py", "200"],
        stdin: None,
        files: &[(
            "work.py",
            include_str!("../../tests/targets/real/work.py"),
            1,
        )],
        profile_limit: Some(2.0),
        held_out: false,
        requests: 0,
    },
    Program {
        name: "lua",
        command: "lua5.4",
        what: "recursion, tables, strings, coroutines",
        arguments: &["work.lua", "120"],
        stdin: None,
        files: &[(
            "work.lua",
            include_str!("../../tests/targets/real/work.lua"),
            1,
        )],
        profile_limit: None,
        held_out: false,
        requests: 0,
    },
    Program {
        name: "sqlite",
        command: "sqlite3",
        what: "inserts, joins and aggregates in memory",
        arguments: &[":memory:"],
        stdin: Some("work.sql"),
        files: &[("work.sql", WORK_SQL, 5)],
        profile_limit: None,
        held_out: false,
        requests: 0,
    },
];

pub const WORK_SQL: &str = include_str!("../../tests/targets/real/work.sql");

/// A script that is not part of another benchmark.
macro_rules! script {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../tests/targets/bench/", $name)),
            1,
        )
    };
}

/// A program that the compensation was made while looking at.
const fn seen(
    name: &'static str,
    command: &'static str,
    what: &'static str,
    arguments: &'static [&'static str],
    files: &'static [(&'static str, &'static str, usize)],
) -> Program {
    Program {
        name,
        command,
        what,
        arguments,
        stdin: None,
        files,
        profile_limit: None,
        held_out: false,
        requests: 0,
    }
}

const fn held_out(program: Program) -> Program {
    Program {
        held_out: true,
        ..program
    }
}

/// A case of the program with functions of all sizes.
const fn case(
    name: &'static str,
    what: &'static str,
    arguments: &'static [&'static str],
) -> Program {
    held_out(seen(name, "truth", what, arguments, &[]))
}

/// Half a second or so when nobody looks: long enough for looks to tell shares.
pub const TRUTH: &[Program] = &[
    case("leaf", "2 ns under a slow parent", &["leaf", "3000000"]),
    case("recursion", "fibonacci", &["recursion", "1500000"]),
    case("fan-out", "64 callees of a nanosecond", &["fan", "6000000"]),
    case("mixed", "2 ns to 1 us", &["mixed", "12000000"]),
    case(
        "threads",
        "the same in two threads",
        &["threads", "6000000"],
    ),
    seen(
        "cpython",
        "python3.11",
        PROGRAMS[0].what,
        &["work.py", "2500"],
        PROGRAMS[0].files,
    ),
    seen(
        "lua",
        "lua5.4",
        PROGRAMS[1].what,
        &["work.lua", "2000"],
        PROGRAMS[1].files,
    ),
    seen(
        "sqlite",
        "sqlite3",
        PROGRAMS[2].what,
        &[":memory:", ".read work.sql"],
        &[("work.sql", WORK_SQL, 120)],
    ),
    seen(
        "perl",
        "perl",
        "hashes, strings, sorting",
        &["work.pl"],
        &[script!("work.pl")],
    ),
    seen(
        "awk",
        "mawk",
        "arrays, strings",
        &["-f", "work.awk"],
        &[script!("work.awk")],
    ),
    seen("gzip", "gzip", "a text", &["-c", "text"], &[TEXT]),
    seen("xz", "xz", "a text", &["-1", "-T1", "-c", "text"], &[TEXT]),
    held_out(seen(
        "bash",
        "bash",
        "loops, strings, functions",
        &["work.sh"],
        &[script!("work.sh")],
    )),
    held_out(seen(
        "sed",
        "sed",
        "a text",
        &[
            "-E",
            "-n",
            r"s/([a-z]+) (the|of) ([a-z]+)/\3 \2 \1/p",
            "text",
        ],
        &[SHORT_TEXT],
    )),
    held_out(seen(
        "bzip2",
        "bzip2",
        "a text",
        &["-c", "text"],
        &[("text", TEXT.1, 100)],
    )),
    held_out(seen(
        "sort",
        "sort",
        "a text",
        &["--parallel=1", "-S", "200M", "text"],
        &[("text", TEXT.1, 400)],
    )),
    held_out(seen(
        "objdump",
        "objdump",
        "a program's code",
        &["-d", "/usr/bin/perl"],
        &[],
    )),
    held_out(seen(
        "bc",
        "bc",
        "pi",
        &["-l", "-q", "pi.bc"],
        &[("pi.bc", "scale=1200\n4*a(1)\nquit\n", 1)],
    )),
    held_out(seen(
        "jq",
        "jq",
        "objects, grouped",
        &[
            "-n",
            "[range(0;60000) | {a: ., b: (. * 2 | tostring)}] | group_by(.a % 7) | map(length)",
        ],
        &[],
    )),
    held_out(seen(
        "tcl",
        "tclsh",
        "loops, lists, strings",
        &["work.tcl"],
        &[(
            "work.tcl",
            "proc fib n { if {$n < 2} {return $n}; expr {[fib [expr {$n-1}]] + [fib [expr {$n-2}]]} }\nfib 21\nset l {}\nfor {set i 0} {$i < 60000} {incr i} { lappend l [string repeat x [expr {$i % 17}]] }\nputs [llength [lsort -unique $l]]\n",
            1,
        )],
    )),
];

/// The same for some seconds: what a budget keeps has to be found out first.
pub const LONG: &[Program] = &[
    case("leaf", "2 ns under a slow parent", &["leaf", "16000000"]),
    case("recursion", "fibonacci", &["recursion", "10000000"]),
    case(
        "fan-out",
        "64 callees of a nanosecond",
        &["fan", "45000000"],
    ),
    case("mixed", "2 ns to 1 us", &["mixed", "65000000"]),
    case(
        "threads",
        "the same in two threads",
        &["threads", "32000000"],
    ),
    seen(
        "cpython",
        "python3.11",
        PROGRAMS[0].what,
        &["work.py", "12000"],
        PROGRAMS[0].files,
    ),
    seen(
        "lua",
        "lua5.4",
        PROGRAMS[1].what,
        &["work.lua", "12000"],
        PROGRAMS[1].files,
    ),
    seen(
        "sqlite",
        "sqlite3",
        PROGRAMS[2].what,
        &[":memory:", ".read work.sql"],
        &[("work.sql", WORK_SQL, 600)],
    ),
    Program {
        requests: 1_000_000,
        ..seen(
            "redis",
            "redis-server",
            "set, get, lpush and lpop by redis-benchmark",
            super::redis::ARGUMENTS,
            &[],
        )
    },
];

/// Words of a licence by chance, seldom ones seldom, so that no part of it comes again soon.
const TEXT: (&str, &str, usize) = (
    "text",
    include_str!("../../tests/targets/bench/text.txt"),
    3000,
);
const SHORT_TEXT: (&str, &str, usize) = (TEXT.0, TEXT.1, 600);

impl Program {
    pub fn all() -> &'static [Program] {
        PROGRAMS
    }

    pub fn write_files(&self, folder: &Path) -> anyhow::Result<()> {
        for (name, text, times) in self.files {
            fs::write(folder.join(name), text.repeat(*times))
                .with_context(|| format!("cannot write {name}"))?;
        }
        Ok(())
    }
}
