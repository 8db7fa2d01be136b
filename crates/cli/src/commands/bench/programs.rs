//! What `thalweg bench` runs: sources and scripts that are built into the command.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// The call-heavy microbenchmark; `-DFLOOR` is its hand-instrumented form.
pub const CALLS: &str = include_str!("../../../../../tests/targets/bench/calls.c");

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
            include_str!("../../../../../tests/targets/real/work.py"),
            1,
        )],
        profile_limit: Some(2.0),
    },
    Program {
        name: "lua",
        command: "lua5.4",
        what: "recursion, tables, strings, coroutines",
        arguments: &["work.lua", "120"],
        stdin: None,
        files: &[(
            "work.lua",
            include_str!("../../../../../tests/targets/real/work.lua"),
            1,
        )],
        profile_limit: None,
    },
    Program {
        name: "sqlite",
        command: "sqlite3",
        what: "inserts, joins and aggregates in memory",
        arguments: &[":memory:"],
        stdin: Some("work.sql"),
        files: &[(
            "work.sql",
            include_str!("../../../../../tests/targets/real/work.sql"),
            5,
        )],
        profile_limit: None,
    },
];

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
