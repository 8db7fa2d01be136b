//! Instructions with how often they ran, block by block, with both ways of each branch, and the source beside them.

use std::io::{self, Write};
use std::path::Path;

use thalweg_analysis::{Code, Insn, Place};
use thalweg_model::{Block, Ending, FuncId, ModuleBlocks, PER_CYCLE, Profile};
use thalweg_symbols::Text;

use super::code::disassembled;
use super::source::Sources;
use crate::report::{Style, count, printable};

/// Columns of an instruction's text where the source stands beside it.
const ASM_WIDTH: usize = 30;

/// Prints the functions with these numbers, one after the other.
pub fn print_asm(
    profile: &Profile,
    code: &Code,
    functions: &[FuncId],
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let mut sources = Sources::default();
    for (own, insns) in profile.blocks.iter().zip(&code.modules) {
        let wanted = |block: &Block| functions.contains(&block.function);
        if !own.blocks.iter().any(wanted) {
            continue;
        }
        let module = &profile.modules[own.module as usize];
        let Some(text) = Text::load(Path::new(&module.path), &module.build_id) else {
            writeln!(
                out,
                "{} is not there any more, or is another build: its code cannot be shown",
                printable(&module.path)
            )?;
            continue;
        };
        for &function in functions {
            let named = &profile.functions[function];
            if named.module != own.module {
                continue;
            }
            writeln!(
                out,
                "{} of {}",
                printable(&named.name),
                printable(&module.name)
            )?;
            writeln!(
                out,
                "\n{:>12}  {:>7}  {:>10}  instruction",
                "executions", "cycles", "address"
            )?;
            for (block, insns) in own.blocks.iter().zip(insns) {
                if block.function == function {
                    let mut view = View {
                        profile,
                        own,
                        code,
                        sources: &mut sources,
                        style,
                    };
                    view.block(&text, block, insns, out)?;
                }
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

struct View<'a> {
    profile: &'a Profile,
    own: &'a ModuleBlocks,
    code: &'a Code,
    sources: &'a mut Sources,
    style: Style,
}

impl View<'_> {
    fn block(
        &mut self,
        text: &Text,
        block: &Block,
        insns: &[Insn],
        out: &mut impl Write,
    ) -> io::Result<()> {
        let listed = disassembled(text, block);
        let (mut last, many) = (None, listed.len());
        for (index, one) in listed.into_iter().enumerate() {
            let mark = match (index, many) {
                (_, 1) => '╶',
                (0, _) => '┌',
                (n, many) if n + 1 == many => '└',
                _ => '│',
            };
            let executions = match (index, block.executions) {
                (0, 0) => "never".to_owned(),
                (_, 0) => String::new(),
                (_, executions) => count(executions),
            };
            let place = insns.get(index).and_then(|insn| insn.written);
            let beside = match place.filter(|_| place != last) {
                Some(place) => self.beside(place),
                None => String::new(),
            };
            last = place.or(last);
            let mut shown = one.text;
            if index + 1 == many {
                shown += &self.ending(block);
            }
            let cost = insns.get(index).map_or(0, |insn| insn.cost);
            let cycles = match cost {
                0 => String::new(),
                cost => format!("{:.3}", f64::from(cost) / f64::from(PER_CYCLE)),
            };
            let line = format!(
                "{executions:>12}  {cycles:>7}  {:>10x}  {mark} {shown}",
                one.address
            );
            self.line(&line, &beside, out)?;
        }
        Ok(())
    }

    /// What is known of the way on.
    fn ending(&self, block: &Block) -> String {
        match block.ending {
            Ending::Branch(_) => format!(
                "  ; {} taken, {} not",
                count(block.taken()),
                count(block.not_taken)
            ),
            Ending::Call(to) | Ending::Jump(to) => match self.name_of(to) {
                Some(name) => format!("  ; {name}"),
                None => String::new(),
            },
            _ => String::new(),
        }
    }

    fn name_of(&self, address: u64) -> Option<&str> {
        let block = self.own.at(address)?;
        let function = &self.profile.functions[block.function];
        (function.address == address).then_some(function.name.as_str())
    }

    fn beside(&mut self, place: Place) -> String {
        let text = self.sources.line(self.code, place).unwrap_or_default();
        let text = printable(text.trim()).into_owned();
        format!("{:>5} {text}", place.line)
    }

    fn line(&self, left: &str, right: &str, out: &mut impl Write) -> io::Result<()> {
        const BEFORE: usize = 37;
        let left = printable(left);
        let line = match right.is_empty() {
            true => left.trim_end().to_owned(),
            false => format!("{left:<width$} | {right}", width = BEFORE + ASM_WIDTH),
        };
        match self.style.width {
            Some(width) => writeln!(out, "{}", line.chars().take(width).collect::<String>()),
            None => writeln!(out, "{line}"),
        }
    }
}
