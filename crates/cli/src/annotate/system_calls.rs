//! System calls that counted blocks made, by what is known of their cost: fixed, of a part that is known and a part for each byte or
//! page, or not known at all, because they wait for somebody.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use thalweg_cycles::system_call_number;
use thalweg_model::{Ending, FuncId, Profile, SystemCall};
use thalweg_symbols::Text;

use crate::calibration::Calibration;
use crate::report::{Align, Cell, Style, Table, count, counted, printable};

/// What is known of how long a system call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The same each time.
    Fixed,
    /// As long as there is to do: so much for each byte, page or entry.
    Variable,
    /// Until somebody else has done something, or not known. In no figure.
    Indeterminate,
}

/// Those that do a little that does not depend on what they are asked for. Sorted.
const FIXED: [&str; 62] = [
    "alarm",
    "arch_prctl",
    "capget",
    "clock_getres",
    "clock_gettime",
    "dup",
    "dup2",
    "dup3",
    "epoll_create1",
    "epoll_ctl",
    "eventfd2",
    "fcntl",
    "getcpu",
    "getegid",
    "geteuid",
    "getgid",
    "getitimer",
    "getpeername",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "getsid",
    "getsockname",
    "getsockopt",
    "gettid",
    "gettimeofday",
    "getuid",
    "kill",
    "lseek",
    "membarrier",
    "pipe",
    "pipe2",
    "prctl",
    "prlimit64",
    "restart_syscall",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sched_setaffinity",
    "set_robust_list",
    "set_tid_address",
    "setitimer",
    "setsockopt",
    "sigaltstack",
    "socket",
    "sysinfo",
    "tgkill",
    "time",
    "times",
    "umask",
    "uname",
];

/// Those whose cost grows with bytes, pages or entries. Sorted.
const VARIABLE: [&str; 40] = [
    "access",
    "brk",
    "chdir",
    "clone",
    "clone3",
    "close",
    "execve",
    "exit",
    "exit_group",
    "faccessat2",
    "fchmod",
    "fork",
    "fstat",
    "ftruncate",
    "getcwd",
    "getdents64",
    "getrandom",
    "lstat",
    "madvise",
    "mincore",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    "newfstatat",
    "open",
    "openat",
    "pread64",
    "preadv",
    "pwrite64",
    "pwritev",
    "read",
    "readlink",
    "readlinkat",
    "readv",
    "stat",
    "statx",
    "vfork",
    "write",
    "writev",
];

pub fn kind_of(name: &str) -> Kind {
    if FIXED.binary_search(&name).is_ok() {
        Kind::Fixed
    } else if VARIABLE.binary_search(&name).is_ok() {
        Kind::Variable
    } else {
        Kind::Indeterminate
    }
}

#[derive(Serialize)]
pub struct Row {
    name: String,
    kind: Kind,
    calls: u64,
    /// Cycles of one call. `None`: not calibrated here, or not known at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles_each: Option<f64>,
    /// It is not known how long this one takes: the least that any takes.
    at_least: bool,
    /// Of a file that is in memory, where that was measured: cycles of one byte, and of each byte more.
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles_of_bytes: Option<(f64, f64)>,
    functions: Vec<String>,
}

impl Row {
    /// What all of its calls add.
    fn adds(&self) -> Option<u64> {
        Some((self.cycles_each? * self.calls as f64).round() as u64)
    }
}

/// All that were made, by kind and number of calls.
pub fn rows(profile: &Profile) -> Vec<Row> {
    let mut made: BTreeMap<Option<u32>, (u64, BTreeSet<FuncId>)> = BTreeMap::new();
    for own in &profile.blocks {
        let all = own.blocks.iter();
        let mut calls = all
            .filter(|block| block.ending == Ending::SystemCall && block.executions > 0)
            .peekable();
        if calls.peek().is_none() {
            continue;
        }
        let module = &profile.modules[own.module as usize];
        let text = Text::load(Path::new(&module.path), &module.build_id);
        for block in calls {
            let number = text.as_ref().and_then(|text| {
                system_call_number(text.bytes_at(block.start, block.bytes.into()))
            });
            let (times, functions) = made.entry(number).or_default();
            *times = times.saturating_add(block.executions);
            functions.insert(block.function);
        }
    }
    let known = Calibration::kept().map_or_else(Vec::new, |kept| kept.system_calls);
    let least = known.iter().map(|cost| cost.base_ns).reduce(f64::min);
    let cycles = |ns: f64| ns * profile.meta.clock_hz / 1e9;
    let mut rows: Vec<Row> = made
        .into_iter()
        .map(|(number, (calls, functions))| {
            let name = SystemCall { number, times: 1 }.name();
            let kind = kind_of(&name);
            let own = known.iter().find(|cost| cost.name == name);
            let is_known = kind == Kind::Fixed && own.is_some();
            let ns = match kind {
                Kind::Indeterminate => None,
                _ if is_known => own.map(|own| own.base_ns),
                _ => least,
            };
            let of_bytes = own.filter(|own| own.each_ns > 0.0);
            let functions = functions.into_iter();
            Row {
                kind,
                calls,
                cycles_each: ns.map(cycles),
                at_least: !is_known,
                cycles_of_bytes: of_bytes.map(|own| (cycles(own.base_ns), cycles(own.each_ns))),
                functions: functions
                    .map(|f| profile.functions[f].name.clone())
                    .collect(),
                name,
            }
        })
        .collect();
    rows.sort_by(|one, other| {
        let key = |row: &Row| (row.kind, std::cmp::Reverse(row.calls), row.name.clone());
        key(one).cmp(&key(other))
    });
    rows
}

/// What stands above the table, and says what the sums are.
fn head(rows: &[Row]) -> Vec<String> {
    let of = |kind: Kind| rows.iter().filter(move |row| row.kind == kind);
    let calls = |kind: Kind| of(kind).map(|row| row.calls).sum::<u64>();
    let cycles = |kind: Kind| {
        let sum: u64 = of(kind).filter_map(Row::adds).sum();
        let is_least = of(kind).any(|row| row.at_least);
        match of(kind).all(|row| row.cycles_each.is_none()) {
            true => "not measured here: run thalweg calibrate".to_owned(),
            false if is_least => format!("at least {} cycles", count(sum)),
            false => format!("{} cycles", count(sum)),
        }
    };
    let line = |kind: Kind, what: &str| {
        format!(
            "{} of {what} cost: {}",
            counted(calls(kind), "system call", "system calls"),
            cycles(kind)
        )
    };
    vec![
        line(Kind::Fixed, "fixed"),
        line(Kind::Variable, "variable"),
        format!(
            "{} that may wait, for a person too: in no figure",
            counted(calls(Kind::Indeterminate), "system call", "system calls"),
        ),
    ]
}

pub fn print_system_calls(
    profile: &Profile,
    limit: usize,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let rows = rows(profile);
    for line in head(&rows) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    let mut table = Table::new(style)
        .column("Kind", Align::Left)
        .column("Calls", Align::Right)
        .column("Cycles each", Align::Right)
        .column("By bytes", Align::Right)
        .column("Adds", Align::Right)
        .column("Name", Align::Left);
    for row in rows.iter().take(limit) {
        let least = if row.at_least { ">= " } else { "" };
        let kind = match row.kind {
            Kind::Fixed => "fixed",
            Kind::Variable => "variable",
            Kind::Indeterminate => "may wait",
        };
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        table.row(vec![
            Cell::new(kind),
            Cell::new(count(row.calls)),
            Cell::new(or_none(
                row.cycles_each
                    .map(|cycles| format!("{least}{}", count(cycles.round() as u64))),
            )),
            Cell::new(or_none(
                row.cycles_of_bytes
                    .map(|(one, each)| format!("{one:.0} + {each:.3} n")),
            )),
            Cell::new(or_none(
                row.adds().map(|cycles| format!("{least}{}", count(cycles))),
            )),
            Cell::new(row.name.clone()).aside(printable(&row.functions.join(", "))),
        ]);
    }
    table.print(out)
}

pub fn print_system_calls_json(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &rows(profile))?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_looked_up_in_sorted_lists_of_names_that_there_are() {
        assert!(FIXED.is_sorted() && VARIABLE.is_sorted());
        let all: BTreeSet<&str> = (0..512)
            .filter_map(thalweg_model::system_call_name)
            .collect();
        for name in FIXED.iter().chain(&VARIABLE) {
            assert!(all.contains(name), "{name}");
        }
        assert_eq!(kind_of("getppid"), Kind::Fixed);
        assert_eq!(kind_of("read"), Kind::Variable);
        assert_eq!(kind_of("futex"), Kind::Indeterminate);
        assert_eq!(kind_of("(not a constant)"), Kind::Indeterminate);
    }
}
