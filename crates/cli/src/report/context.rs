//! `report --context F` and `--context 'F -> G'`: one function, or one function's calls of another, split by thread.

use std::io::{self, Write};

use thalweg_analysis::Caller;
use thalweg_model::{FuncId, Profile};
use thalweg_views::context::{Contexts, Wanted};

use super::functions_matching;
use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{TIME_WIDTH, Weights, at_least, count, cut, printable, share};

/// `F`, `F@1` for threads of that nesting level, or `F -> G`, where F may also have made threads that began in G. Where a
/// name means several functions, all that have anything to split.
pub fn wanted(profile: &Profile, text: &str) -> anyhow::Result<Vec<Wanted>> {
    // Operators of C++ have arrows in their names, and no blanks around them.
    let Some((caller, callee)) = text.split_once(" -> ") else {
        if let Some((name, level)) = at_level(profile, text) {
            return of_level(profile, name, level);
        }
        let functions = functions_matching(profile, "--context", text)?.into_iter();
        return Ok(functions.map(Wanted::Function).collect());
    };
    let callers = functions_matching(profile, "--context", caller.trim())?;
    let callees = functions_matching(profile, "--context", callee.trim())?;
    let mut wanted = Vec::new();
    for edge in thalweg_analysis::edges(profile) {
        if let Caller::Function(caller) = edge.caller
            && callers.contains(&caller)
            && callees.contains(&edge.callee)
        {
            let callee = edge.callee;
            wanted.push(Wanted::Call { caller, callee });
        }
    }
    for (maker, first) in thalweg_analysis::creations(profile) {
        if callers.contains(&maker) && callees.contains(&first) {
            wanted.push(Wanted::Creation { maker, first });
        }
    }
    if wanted.is_empty() {
        anyhow::bail!(
            "'{}' never called '{}', nor made a thread that began in it",
            caller.trim(),
            callee.trim()
        );
    }
    Ok(wanted)
}

/// `start_thread@1`, unless a function has that very name.
fn at_level<'a>(profile: &Profile, text: &'a str) -> Option<(&'a str, u32)> {
    let (name, level) = text.rsplit_once('@')?;
    let is_name = profile.functions.iter().any(|one| one.name == text);
    (!is_name).then_some((name, level.parse().ok()?))
}

fn of_level(profile: &Profile, name: &str, level: u32) -> anyhow::Result<Vec<Wanted>> {
    let functions = functions_matching(profile, "--context", name)?.into_iter();
    let ran = |function: &FuncId| {
        !thalweg_analysis::function_at_level(profile, *function, level).is_empty()
    };
    let wanted: Vec<Wanted> = functions
        .filter(ran)
        .map(|function| Wanted::FunctionAt { function, level })
        .collect();
    if wanted.is_empty() {
        anyhow::bail!(
            "'{name}' ran in no thread of level {level}: 'thalweg threads' has the levels"
        );
    }
    Ok(wanted)
}

pub fn print_context(
    profile: &Profile,
    wanted: &[Wanted],
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let view = Contexts::new(profile, wanted);
    let weights = Weights::of_profile(profile);
    for (number, context) in view.contexts.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let shares = &context.threads;
        let title = cut(&context.title, style.width.unwrap_or(usize::MAX));
        writeln!(out, "{}", style.paint(Paint::Title, &title))?;
        let timed = view.timed;
        let mut table = Table::new(style)
            .column("Made", Align::Left)
            .column("Calls", Align::Right);
        if timed {
            table = table
                .column(format!("{:>TIME_WIDTH$} {:>6}", "Self", "%"), Align::Right)
                .column("Total", Align::Right);
        }
        table = table
            .column("Contexts", Align::Right)
            .dispensable(1)
            .column("Process", Align::Right)
            .column("Thread", Align::Right)
            .column("Name", Align::Left);
        let whole = shares
            .iter()
            .fold(0u64, |sum, s| sum.saturating_add(s.self_ns));
        for share_of in shares {
            let mut cells = vec![
                Cell::new(made(share_of.thread, share_of.made_by)),
                Cell::new(at_least(share_of.calls_at_least, count(share_of.calls))),
            ];
            if timed {
                let text = format!(
                    "{} {}",
                    weights.text(share_of.self_ns),
                    share(share_of.self_ns, whole)
                );
                cells.push(Cell::painted(text, style.heat(share_of.self_ns, whole)));
                cells.push(Cell::new(weights.text(share_of.total_ns)));
            }
            cells.extend([
                Cell::new(count(share_of.contexts)),
                Cell::new(share_of.pid.to_string()),
                Cell::new(share_of.tid.to_string()),
                Cell::new(printable(share_of.thread_name)).tail(made_in(profile, share_of.made_in)),
            ]);
            table.row(cells);
        }
        table.print(out)?;
    }
    Ok(())
}

/// `0->1`: thread 0 made thread 1. Threads are numbered as `thalweg threads` lists them.
pub fn made(thread: u32, made_by: Option<u32>) -> String {
    match made_by {
        Some(maker) => format!("{maker}->{thread}"),
        None => thread.to_string(),
    }
}

pub fn made_in(profile: &Profile, function: Option<FuncId>) -> String {
    match function {
        Some(function) => {
            let name = printable(&profile.functions[function].name);
            format!(" (made in {name})")
        }
        None => String::new(),
    }
}
