//! Attach and detach, again and again, on a process that works meanwhile.

use crate::support::in_short_or_long;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, text};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How many cycles each program goes through; planning a large one takes seconds of the short form's three minutes.
pub fn count() -> u32 {
    in_short_or_long(2, 50) as u32
}

/// Whether the program generates code, so that executable memory comes and goes by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Generates {
    Code,
    Nothing,
}

/// Until `count` cycles were survived. `victim` names the process for the next one: programs end and begin anew meanwhile.
#[track_caller]
pub fn survive(count: u32, generates: Generates, mut victim: impl FnMut() -> u32) -> u32 {
    let scratch = Scratch::new();
    let mut survived = 0;
    for attempt in 0..count * 6 {
        let pid = victim();
        let before = anonymous(pid);
        let id = pid.to_string();
        let mut steps: Vec<Vec<&str>> = vec![vec![
            "record",
            "--budget",
            "off",
            "-p",
            &id,
            "-d",
            "300ms",
            "-q",
            "--no-report",
            "-o",
            "p.thalweg",
        ]];
        if attempt % 2 == 1 {
            steps = vec![
                vec!["attach", "--budget", "off", &id],
                vec!["detach", &id, "-q"],
            ];
        }
        for step in &steps {
            let output = command()
                .args(step)
                .current_dir(scratch.path())
                .output()
                .expect("thalweg starts");
            assert!(
                output.status.success() || !lives(pid),
                "cycle {attempt}, {step:?}: {}",
                text(&output)
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        if !lives(pid) {
            continue;
        }
        let wrong = complaints(pid, &before, generates);
        // What it looked like is of no account if it ended while being looked at.
        if lives(pid) {
            assert!(wrong.is_empty(), "cycle {attempt}, pid {pid}: {wrong:#?}");
            survived += 1;
        }
        if survived == count {
            return survived;
        }
    }
    panic!("only {survived} of {count} cycles found a process that lived until they were over");
}

/// It runs, and is neither stopped nor traced.
pub fn lives(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

struct Executable {
    line: String,
    range: (u64, u64),
    offset: u64,
    path: String,
}

fn executable(pid: u32) -> Vec<Executable> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let lines = maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?;
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        let path = fields.nth(2).unwrap_or_default().to_owned();
        let number = |text| u64::from_str_radix(text, 16).ok();
        (permissions.contains('x') && !path.starts_with("[v")).then_some(Executable {
            line: line.to_owned(),
            range: (number(start)?, number(end)?),
            offset,
            path,
        })
    });
    lines.collect()
}

fn anonymous(pid: u32) -> BTreeSet<(u64, u64)> {
    let all = executable(pid).into_iter();
    all.filter(|m| !m.path.starts_with('/'))
        .map(|m| m.range)
        .collect()
}

/// A detached process is untraced, its mapped files have their own bytes, and no code was left in it.
fn complaints(pid: u32, before: &BTreeSet<(u64, u64)>, generates: Generates) -> Vec<String> {
    let mut wrong = Vec::new();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if status.contains("\nTracerPid:\t") && !status.contains("\nTracerPid:\t0\n") {
        wrong.push("is still traced".to_owned());
    }
    if status.contains("\nState:\tT") || status.contains("\nState:\tt") {
        wrong.push("is left stopped".to_owned());
    }
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else {
        return wrong;
    };
    for mapping in executable(pid) {
        if !mapping.path.starts_with('/') {
            if generates == Generates::Nothing && !before.contains(&mapping.range) {
                wrong.push(format!("left behind: {}", mapping.line));
            }
            continue;
        }
        let len = (mapping.range.1 - mapping.range.0) as usize;
        let (mut in_memory, mut in_file) = (vec![0; len], Vec::new());
        let read = File::open(&mapping.path).and_then(|file| {
            let mut rest = file;
            std::io::Seek::seek(&mut rest, std::io::SeekFrom::Start(mapping.offset))?;
            rest.take(len as u64).read_to_end(&mut in_file)
        });
        if read.is_err()
            || memory
                .read_exact_at(&mut in_memory, mapping.range.0)
                .is_err()
        {
            continue;
        }
        let differs = in_memory.iter().zip(&in_file).position(|(a, b)| a != b);
        if let Some(at) = differs {
            wrong.push(format!(
                "differs from its file at +{at:#x}: {}",
                mapping.line
            ));
        }
    }
    wrong
}
