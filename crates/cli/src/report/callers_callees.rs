//! `report --callers F` and `--callees F`: the chains that led to a function, and all that it led to.

use std::io::{self, Write};

use thalweg_model::{FuncId, Process, Profile, Thread};
use thalweg_views::Selection;
use thalweg_views::callers_callees::{Direction, Surroundings};

use super::style::Style;
use super::text::printable;
use super::tree;

pub fn print_callers_callees(
    profile: &Profile,
    functions: &[FuncId],
    direction: Direction,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    for (number, &function) in functions.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let of = &profile.functions[function];
        let module = &profile.modules[of.module as usize].name;
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
        let around = Surroundings::new(profile, function, direction, selection.depth);
        let selection = Selection {
            depth: None,
            ..selection.clone()
        };
        let tree = around.tree(&selection);
        tree::print_tree_of(&around.profile, &tree, &selection, title, out, style)?;
    }
    Ok(())
}
