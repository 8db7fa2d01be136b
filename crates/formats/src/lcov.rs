//! lcov's tracefile, which `genhtml` makes pages of: lines, functions and branches of every file
//! whose code was counted, those that never ran included.

use std::collections::BTreeMap;
use std::io::{self, Write};

use thalweg_analysis::{Code, Executed, LineCounts};
use thalweg_model::Profile;

use crate::covered::{Covered, Files};

pub fn write(profile: &Profile, code: &Code, mut out: impl Write) -> io::Result<()> {
    let files = Files::of(profile, code);
    for file in files.each() {
        writeln!(out, "TN:\nSF:{}", one_line(file.path))?;
        functions(profile, &file, &mut out)?;
        branches(file.lines, &mut out)?;
        for (number, line) in file.lines {
            writeln!(out, "DA:{number},{}", line.executions)?;
        }
        let hit = file
            .lines
            .values()
            .filter(|line| line.executions > 0)
            .count();
        writeln!(out, "LF:{}\nLH:{hit}\nend_of_record", file.lines.len())?;
    }
    out.flush()
}

fn functions(profile: &Profile, file: &Covered, out: &mut impl Write) -> io::Result<()> {
    let named = |one: &Executed| {
        let function = &profile.functions[one.function];
        (function.line, one_line(&function.name))
    };
    for one in &file.functions {
        let (line, name) = named(one);
        writeln!(out, "FN:{line},{name}")?;
    }
    for one in &file.functions {
        writeln!(out, "FNDA:{},{}", one.calls, named(one).1)?;
    }
    let hit = file.functions.iter().filter(|one| one.calls > 0).count();
    writeln!(out, "FNF:{}\nFNH:{hit}", file.functions.len())
}

fn branches(lines: &BTreeMap<u32, LineCounts>, out: &mut impl Write) -> io::Result<()> {
    let (mut found, mut hit) = (0, 0);
    for (number, line) in lines {
        for (index, branch) in line.branches.iter().enumerate() {
            let was_met = branch.taken > 0 || branch.not_taken > 0;
            for (way, times) in [branch.taken, branch.not_taken].into_iter().enumerate() {
                let times = match was_met {
                    true => times.to_string(),
                    false => "-".into(),
                };
                writeln!(out, "BRDA:{number},{index},{way},{times}")?;
            }
            found += 2;
            hit += usize::from(branch.taken > 0) + usize::from(branch.not_taken > 0);
        }
    }
    writeln!(out, "BRF:{found}\nBRH:{hit}")
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}
