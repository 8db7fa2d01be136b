//! Source lines with how often they ran. In the margin stands which lines are one block; of a line with several the numbers of
//! each are told below it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use thalweg_analysis::{By, Code, LineCounts, Place, cycles, line_counts};
use thalweg_model::{FuncId, Profile};

use super::choose::{Chosen, is_file};
use super::list::{in_cycles, part};
use crate::report::{Style, count, counted, cut, printable};

/// Lines before the first and behind the last that have code.
const AROUND: u32 = 2;
/// A gap longer than this is cut out of a function's lines.
const LONGEST_GAP: u32 = 12;
/// No source file is longer.
const MOST_SOURCE_BYTES: u64 = 64 << 20;

/// What stands in a line's margin.
fn margin(before: Option<&LineCounts>, own: &LineCounts, after: Option<&LineCounts>) -> char {
    if own.blocks.len() > 1 {
        return '┼';
    }
    let same = |other: Option<&LineCounts>| other.is_some_and(|other| other.blocks == own.blocks);
    match (same(before), same(after)) {
        (false, false) => '╶',
        (false, true) => '┌',
        (true, true) => '│',
        (true, false) => '└',
    }
}

/// Prints what was chosen, one part for each file. `false`: nothing is known of its lines.
pub fn print_source(
    profile: &Profile,
    code: &Code,
    chosen: &Chosen,
    out: &mut impl Write,
    style: Style,
) -> io::Result<bool> {
    let lines = match chosen {
        Chosen::Functions(functions) => {
            line_counts(profile, code, By::Outer, |f| functions.contains(&f))
        }
        Chosen::File(name) => {
            let mut lines = line_counts(profile, code, By::Written, |_| true);
            lines.retain(|place, _| is_file(&code.files[place.file as usize], name));
            lines
        }
    };
    let mut by_file: BTreeMap<u32, BTreeMap<u32, LineCounts>> = BTreeMap::new();
    for (place, counts) in lines {
        by_file
            .entry(place.file)
            .or_default()
            .insert(place.line, counts);
    }
    let is_any = !by_file.is_empty();
    for (file, lines) in by_file {
        let shown = File {
            path: &code.files[file as usize],
            lines: &lines,
            profile,
        };
        shown.print(out, style)?;
    }
    Ok(is_any)
}

struct File<'a> {
    path: &'a str,
    lines: &'a BTreeMap<u32, LineCounts>,
    profile: &'a Profile,
}

impl File<'_> {
    fn print(&self, out: &mut impl Write, style: Style) -> io::Result<()> {
        let source = source(self.path);
        let counts = self.lines.values();
        let instructions = counts.fold(0u64, |sum, line| sum.saturating_add(line.instructions));
        let cost: u128 = self.lines.values().map(|line| line.cost).sum();
        let never = self
            .lines
            .values()
            .filter(|line| line.executions == 0)
            .count();
        let functions: BTreeSet<FuncId> = self
            .lines
            .values()
            .flat_map(|line| line.functions.iter().copied())
            .collect();
        writeln!(out, "{}", printable(self.path))?;
        writeln!(
            out,
            "{}, {}, {never} of them never executed, {} instructions{} ({} of all)",
            counted(functions.len() as u64, "function", "functions"),
            counted(self.lines.len() as u64, "line with code", "lines with code"),
            count(instructions),
            match &self.profile.cycles_of {
                Some(model) => format!(", {} cycles of {}", count(cycles(cost)), printable(model)),
                None => String::new(),
            },
            part(self.profile, cost, instructions).trim(),
        )?;
        if source.is_none() {
            writeln!(out, "(the source file is not here: lines by their numbers)")?;
        }
        writeln!(
            out,
            "\n{:>12}  {:>13}  {:>13}  {:>6}     line",
            "executions", "instructions", "cycles", "share"
        )?;
        for (first, last) in self.stretches(source.is_some()) {
            for number in first..=last {
                self.line(number, source.as_deref(), out, style)?;
            }
            writeln!(out)?;
        }
        Ok(())
    }

    /// The lines to show, from first to last.
    fn stretches(&self, has_source: bool) -> Vec<(u32, u32)> {
        let mut all: Vec<(u32, u32)> = Vec::new();
        let (around, gap) = match has_source {
            true => (AROUND, LONGEST_GAP),
            false => (0, 0),
        };
        for &number in self.lines.keys() {
            let (from, to) = (
                number.saturating_sub(around).max(1),
                number.saturating_add(around),
            );
            match all.last_mut() {
                Some((_, end)) if from <= end.saturating_add(gap + 1) => *end = to,
                _ => all.push((from, to)),
            }
        }
        all
    }

    fn line(
        &self,
        number: u32,
        source: Option<&[String]>,
        out: &mut impl Write,
        style: Style,
    ) -> io::Result<()> {
        let text = match source {
            Some(source) => match source.get(number as usize - 1) {
                Some(text) => text.as_str(),
                // Behind the file's end.
                None => return Ok(()),
            },
            None => "",
        };
        let Some(own) = self.lines.get(&number) else {
            if source.is_some() {
                row(out, style, ["", "", "", ""], ' ', number, text)?;
            }
            return Ok(());
        };
        let beside = |number: u32| self.lines.get(&number);
        let mark = margin(beside(number.wrapping_sub(1)), own, beside(number + 1));
        if own.executions == 0 && own.instructions == 0 {
            row(out, style, ["never", "", "", ""], mark, number, text)?;
        } else {
            let executions = count(own.executions);
            let instructions = count(own.instructions);
            let cycles = in_cycles(self.profile, own.cost);
            let part = part(self.profile, own.cost, own.instructions);
            row(
                out,
                style,
                [&executions, &instructions, &cycles, part.trim()],
                mark,
                number,
                text,
            )?;
        }
        blocks(own, out, style)
    }
}

/// Each block of a line that has several, where they do not run equally often.
fn blocks(own: &LineCounts, out: &mut impl Write, style: Style) -> io::Result<()> {
    let differ = own.blocks.windows(2).any(|pair| pair[0].1 != pair[1].1);
    if own.blocks.len() < 2 || !differ {
        return Ok(());
    }
    let times: Vec<String> = own.blocks.iter().map(|block| count(block.1)).collect();
    let text = format!("{:>52}╰ {} blocks: {}", "", times.len(), times.join(", "));
    match style.width {
        Some(width) => writeln!(out, "{}", cut(&text, width)),
        None => writeln!(out, "{text}"),
    }
}

fn row(
    out: &mut impl Write,
    style: Style,
    [executions, instructions, cycles, part]: [&str; 4],
    mark: char,
    number: u32,
    text: &str,
) -> io::Result<()> {
    let text = text.replace('\t', "    ");
    let text = printable(text.trim_end());
    let line = format!(
        "{executions:>12}  {instructions:>13}  {cycles:>13}  {part:>6}  {mark} {number:>5}  {text}"
    );
    let line = match style.width {
        Some(width) => cut_end(&line, width),
        None => line,
    };
    writeln!(out, "{}", line.trim_end())
}

/// The beginning of a line that is too long for the terminal.
fn cut_end(line: &str, width: usize) -> String {
    use unicode_width::UnicodeWidthChar;
    let mut used = 0;
    line.chars()
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= width
        })
        .collect()
}

/// The lines of a source file, if it is here.
pub fn source(path: &str) -> Option<Vec<String>> {
    use std::io::Read;
    let file = thalweg_symbols::open_regular(Path::new(path)).ok()?;
    let mut bytes = Vec::new();
    file.take(MOST_SOURCE_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(text.lines().map(str::to_owned).collect())
}

/// The text of one line, read once per file.
#[derive(Default)]
pub struct Sources(BTreeMap<u32, Option<Vec<String>>>);

impl Sources {
    pub fn line(&mut self, code: &Code, place: Place) -> Option<&str> {
        let known = self
            .0
            .entry(place.file)
            .or_insert_with(|| source(&code.files[place.file as usize]));
        known
            .as_ref()?
            .get(place.line as usize - 1)
            .map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_shows_where_a_block_begins_and_ends() {
        let of = |blocks: &[u64]| LineCounts {
            blocks: blocks.iter().map(|&start| (start, 1)).collect(),
            ..LineCounts::default()
        };
        let (one, other, several) = (of(&[1]), of(&[2]), of(&[1, 2]));
        assert_eq!(margin(None, &one, None), '╶');
        assert_eq!(margin(Some(&other), &one, Some(&one)), '┌');
        assert_eq!(margin(Some(&one), &one, Some(&one)), '│');
        assert_eq!(margin(Some(&one), &one, Some(&other)), '└');
        assert_eq!(margin(None, &several, None), '┼');
    }

    #[test]
    fn a_line_is_cut_at_the_terminals_width() {
        assert_eq!(cut_end("a─b", 2), "a─");
    }
}
