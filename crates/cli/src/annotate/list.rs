//! What there is to annotate: functions by the instructions that ran in them; and those that never ran.

use std::collections::BTreeMap;
use std::io::{self, Write};

use thalweg_analysis::{Executed, cost_of_blocks, cycles, executed, total_executed};
use thalweg_model::Profile;

use crate::report::{Align, Cell, Style, Table, count, counted, printable, share};

/// The functions in which most instructions ran.
pub fn print_list(
    profile: &Profile,
    limit: usize,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let mut all = executed(profile);
    all.sort_by_key(|one| {
        let most = (one.cost, one.instructions);
        (std::cmp::Reverse(most), one.function)
    });
    let total = total_executed(profile);
    let run = all.iter().filter(|one| one.blocks_run > 0).count();
    let blocks: (u64, u64) = all.iter().fold((0, 0), |sum, one| {
        (
            sum.0 + u64::from(one.blocks_run),
            sum.1 + u64::from(one.blocks),
        )
    });
    writeln!(
        out,
        "{} instructions executed in {} of {} functions, {} of {} blocks",
        count(total),
        count(run as u64),
        count(all.len() as u64),
        count(blocks.0),
        count(blocks.1),
    )?;
    if let Some(model) = &profile.cycles_of {
        let all = cycles(cost_of_blocks(profile));
        writeln!(out, "{} virtual cycles of {}", count(all), printable(model))?;
    }
    writeln!(out)?;
    let mut table = Table::new(style)
        .column("Cycles", Align::Right)
        .column("Instructions", Align::Right)
        .column("Share", Align::Right)
        .column("Calls", Align::Right)
        .column("Blocks run", Align::Right)
        .dispensable(1)
        .column("Function", Align::Left);
    for one in all.iter().filter(|one| one.blocks_run > 0).take(limit) {
        let function = &profile.functions[one.function];
        let module = &profile.modules[function.module as usize];
        table.row(vec![
            Cell::new(in_cycles(profile, one.cost)),
            Cell::new(count(one.instructions)),
            Cell::new(part(profile, one.cost, one.instructions)),
            Cell::new(count(one.calls)),
            Cell::new(format!("{} of {}", one.blocks_run, one.blocks)),
            Cell::new(printable(&function.name)).aside(printable(&module.name)),
        ]);
    }
    table.print(out)?;
    let more = run.saturating_sub(limit);
    if more > 0 {
        writeln!(
            out,
            "and {}",
            counted(more as u64, "function more", "functions more")
        )?;
    }
    Ok(())
}

/// Cycles, where they are known.
pub fn in_cycles(profile: &Profile, cost: u128) -> String {
    match profile.cycles_of {
        Some(_) => count(cycles(cost)),
        None => String::new(),
    }
}

/// The share of all cycles, or of all instructions where no cycles are known.
pub fn part(profile: &Profile, cost: u128, instructions: u64) -> String {
    match profile.cycles_of {
        Some(_) => share(cycles(cost), cycles(cost_of_blocks(profile))),
        None => share(instructions, total_executed(profile)),
    }
}

/// Functions that never ran, by module and, where it is known, by file.
pub fn print_never(
    profile: &Profile,
    limit: usize,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let mut groups: BTreeMap<(u32, &str), Vec<Executed>> = BTreeMap::new();
    for one in executed(profile) {
        let function = &profile.functions[one.function];
        let file = function.file.as_deref().unwrap_or_default();
        groups.entry((function.module, file)).or_default().push(one);
    }
    let mut table = Table::new(style)
        .column("Never run", Align::Right)
        .column("of", Align::Right)
        .column("", Align::Right)
        .column("Module, file, functions", Align::Left);
    for ((module, file), all) in &groups {
        let never: Vec<&str> = all
            .iter()
            .filter(|one| one.blocks_run == 0)
            .map(|one| profile.functions[one.function].name.as_str())
            .collect();
        if never.is_empty() {
            continue;
        }
        let module = &profile.modules[*module as usize].name;
        table.row(vec![
            Cell::new(count(never.len() as u64)),
            Cell::new(count(all.len() as u64)),
            Cell::new(share(never.len() as u64, all.len() as u64)),
            Cell::new(printable(module)).aside(printable(file)),
        ]);
        for name in never.iter().take(limit) {
            let blank = || Cell::new("");
            table.row(vec![
                blank(),
                blank(),
                blank(),
                Cell::new(format!("    {}", printable(name))),
            ]);
        }
        if never.len() > limit {
            let more = format!("    and {} more", never.len() - limit);
            let blank = || Cell::new("");
            table.row(vec![blank(), blank(), blank(), Cell::new(more)]);
        }
    }
    table.print(out)
}
