//! `report --callers F` and `--callees F`: the chains that led to a function, and all that it led to.

use std::io::{self, Write};

use serde::Serialize;
use thalweg_analysis::{callees, callers};
use thalweg_model::{Process, Profile, Thread};

use super::json::{NotShown, ThreadReport, finish};
use super::style::Style;
use super::text::printable;
use super::{Selection, tree};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Callers,
    Callees,
}

/// A profile whose only thread is the tree around one function.
fn around(profile: &Profile, function: u32, direction: Direction, depth: Option<u32>) -> Profile {
    let of = match direction {
        Direction::Callers => callers,
        Direction::Callees => callees,
    };
    Profile {
        meta: profile.meta.clone(),
        modules: profile.modules.clone(),
        functions: profile.functions.clone(),
        sites: profile.sites.clone(),
        switched: profile.switched.clone(),
        processes: vec![Process {
            threads: vec![of(profile, function, depth)],
            ..Process::default()
        }],
        ..Profile::default()
    }
}

/// Shares are those of the function, which is the root.
fn whole(around: &Profile) -> u64 {
    let root = &around.processes[0].threads[0].nodes[0];
    match around.meta.timed {
        true => root.cum,
        false => root.calls,
    }
}

pub fn print_around(
    profile: &Profile,
    functions: &[u32],
    direction: Direction,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    for (number, &function) in functions.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let of = &profile.functions[function as usize];
        let module = &profile.modules[of.module as usize].name;
        let around = around(profile, function, direction, selection.depth);
        let title = |_: &Process, _: &Thread| match direction {
            Direction::Callers => format!(
                "Callers of {} ({}): its calls and its times, by the chain that led to it",
                printable(&of.name),
                printable(module)
            ),
            Direction::Callees => format!(
                "Callees of {} ({}), all its contexts together",
                printable(&of.name),
                printable(module)
            ),
        };
        let selection = Selection {
            depth: None,
            ..selection.clone()
        };
        tree::print_tree_of(&around, &selection, whole(&around), title, out, style)?;
    }
    Ok(())
}

pub fn print_around_json(
    profile: &Profile,
    functions: &[u32],
    direction: Direction,
    selection: &Selection,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report<T> {
        schema: &'static str,
        timed: bool,
        functions: Vec<T>,
    }
    #[derive(Serialize)]
    struct FunctionOf<'a, T> {
        function: u32,
        name: &'a str,
        tree: T,
        not_shown: NotShown,
    }
    let all: Vec<Profile> = functions
        .iter()
        .map(|&function| around(profile, function, direction, selection.depth))
        .collect();
    let selection = Selection {
        depth: None,
        ..selection.clone()
    };
    let rows: Vec<tree::Rows> = all
        .iter()
        .map(|around| tree::rows_of(around, &selection, whole(around)))
        .collect();
    let functions = functions
        .iter()
        .zip(&rows)
        .map(|(&function, rows)| FunctionOf {
            function,
            name: &profile.functions[function as usize].name,
            tree: ThreadReport {
                profile,
                rows: &rows.threads[0],
            },
            not_shown: NotShown::of(rows.left_out),
        });
    finish(
        profile.meta.weighed_by,
        out,
        &Report {
            schema: match direction {
                Direction::Callers => "thalweg.report.callers/1",
                Direction::Callees => "thalweg.report.callees/1",
            },
            timed: profile.meta.timed,
            functions: functions.collect(),
        },
    )
}
