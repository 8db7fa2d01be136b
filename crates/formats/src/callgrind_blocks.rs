//! Callgrind's format for profiles of blocks: instructions executed and virtual cycles, by instruction and line.
//! KCachegrind and `callgrind_annotate --auto=yes` show them beside the source.

use std::collections::HashMap;
use std::io::{self, Write};

use thalweg_analysis::{Code, cost_of_blocks, cycles, total_executed};
use thalweg_model::Profile;

pub fn write(profile: &Profile, code: &Code, mut out: impl Write) -> io::Result<()> {
    let mut events = Events::of(profile);
    writeln!(out, "# callgrind format\nversion: 1")?;
    writeln!(out, "creator: thalweg-{}", line(&profile.meta.version))?;
    writeln!(out, "cmd: {}", line(&profile.meta.command.join(" ")))?;
    writeln!(out, "positions: instr line")?;
    writeln!(out, "event: Ir : Instructions executed")?;
    if events.has_cycles {
        writeln!(out, "event: Cy : Virtual cycles")?;
    }
    writeln!(out, "events: {}", events.names())?;
    writeln!(out, "summary: {}\n", events.total)?;
    let mut files: HashMap<&str, usize> = HashMap::new();
    for (own, insns) in profile.blocks.iter().zip(&code.modules) {
        let module = &profile.modules[own.module as usize];
        let object = match module.path.as_str() {
            "" => &module.name,
            path => path,
        };
        writeln!(out, "ob={}", line(object))?;
        let mut current = None;
        let mut order: Vec<usize> = (0..own.blocks.len()).collect();
        order.sort_by_key(|&index| (own.blocks[index].function, own.blocks[index].start));
        for index in order {
            let block = &own.blocks[index];
            if block.executions == 0 {
                continue;
            }
            let function = &profile.functions[block.function];
            let home = function.file.as_deref().unwrap_or("???");
            if current != Some(block.function) {
                current = Some(block.function);
                file(&mut out, "fl", home, &mut files)?;
                writeln!(out, "fn=({}) {}", block.function, line(&function.name))?;
            }
            if insns[index].is_empty() {
                writeln!(
                    out,
                    "{:#x} {} {}",
                    block.start,
                    function.line,
                    events.next(block.executed(), block.cost_of_all())
                )?;
                continue;
            }
            let mut here = home;
            for insn in &insns[index] {
                let place = insn
                    .written
                    .map(|place| (code.files[place.file as usize].as_str(), place.line));
                let (path, number) = place.unwrap_or((home, 0));
                if path != here {
                    let key = if path == home { "fe" } else { "fi" };
                    file(&mut out, key, path, &mut files)?;
                    here = path;
                }
                let cost = u128::from(block.executions) * u128::from(insn.cost);
                let figures = events.next(block.executions, cost);
                writeln!(out, "{:#x} {number} {figures}", insn.address)?;
            }
            if here != home {
                file(&mut out, "fe", home, &mut files)?;
            }
        }
        writeln!(out)?;
    }
    writeln!(out, "totals: {}", events.total)?;
    out.flush()
}

/// Instructions, and cycles where they are known. The format has whole numbers only: what is cut off one line's cycles is the next
/// one's, so that their sum is right.
struct Events {
    has_cycles: bool,
    total: String,
    cost_until_now: u128,
}

impl Events {
    fn of(profile: &Profile) -> Events {
        let has_cycles = profile.cycles_of.is_some();
        let mut total = total_executed(profile).to_string();
        if has_cycles {
            total += &format!(" {}", cycles(cost_of_blocks(profile)));
        }
        Events {
            has_cycles,
            total,
            cost_until_now: 0,
        }
    }

    fn names(&self) -> &'static str {
        match self.has_cycles {
            true => "Ir Cy",
            false => "Ir",
        }
    }

    fn next(&mut self, instructions: u64, cost: u128) -> String {
        let before = cycles(self.cost_until_now);
        self.cost_until_now += cost;
        match self.has_cycles {
            true => format!("{instructions} {}", cycles(self.cost_until_now) - before),
            false => instructions.to_string(),
        }
    }
}

fn file<'a>(
    out: &mut impl Write,
    key: &str,
    path: &'a str,
    files: &mut HashMap<&'a str, usize>,
) -> io::Result<()> {
    let next = files.len() + 1;
    match files.get(path) {
        Some(number) => writeln!(out, "{key}=({number})"),
        None => {
            files.insert(path, next);
            writeln!(out, "{key}=({next}) {}", line(path))
        }
    }
}

/// Text that stays on its line, and is some.
fn line(text: &str) -> String {
    match text.replace(char::is_control, " ").trim() {
        "" => "???".to_string(),
        text => text.to_string(),
    }
}
