//! `report --arcs`: a stanza per function, its callers above it and its callees below: Parent, Self, Child.
//!
//! In each stanza the parents' calls, self and total add up to the function's, and the children's total to
//! the function's total less its self.

use std::io::{self, Write};

use thalweg_analysis::{Caller, summary};
use thalweg_model::Profile;
use thalweg_views::Selection;
use thalweg_views::arcs::{ArcOf, Stanza, Stanzas};

use super::flat::print_left_out;
use super::sites::at_site;
use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{self, TIME_WIDTH, Weights, count, printable, share};

/// Arcs below this share of their function share a row, unless told otherwise.
pub const DEFAULT_MIN_ARC_PERCENT: f64 = 0.5;

pub fn print_arcs(
    profile: &Profile,
    selection: &Selection,
    wide: bool,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let view = Stanzas::new(profile, selection);
    let timed = view.timed;
    let whole = summary(profile).time;
    let mut table = Table::new(style)
        .column("", Align::Left)
        .column("Calls", Align::Right);
    if timed {
        table = table
            .column("Self", Align::Right)
            .column(format!("{:>TIME_WIDTH$} {:>6}", "Total", "%"), Align::Right);
    }
    if timed && wide {
        table = table
            .column("Min", Align::Right)
            .column("Max", Align::Right);
    }
    table = table.column("Name", Align::Left);

    let weights = Weights::of_profile(profile);
    for stanza in &view.stanzas {
        table.text("", Paint::Plain);
        let mut row = |role: &str,
                       calls: Option<(u64, bool)>,
                       self_ns: Option<u64>,
                       total_ns: u64,
                       extremes: [Option<u64>; 2],
                       label: String| {
            let paint = match role {
                "Self" => Paint::Title,
                _ => Paint::Plain,
            };
            let mut cells = vec![
                Cell::painted(role, paint),
                Cell::painted(
                    calls
                        .map(|(made, is_bound)| {
                            text::at_least(is_bound, text::calls(profile, made))
                        })
                        .unwrap_or_default(),
                    paint,
                ),
            ];
            if timed {
                let own = self_ns.map(|own| weights.text(own));
                cells.push(Cell::painted(own.unwrap_or_default(), paint));
                let text = format!("{} {}", weights.text(total_ns), share(total_ns, whole));
                cells.push(Cell::painted(text, paint));
            }
            if timed && wide {
                let texts = extremes.map(|time| weights.text_if(time.is_some(), time.unwrap_or(0)));
                cells.extend(texts.map(|text| Cell::painted(text, paint)));
            }
            let indent = if role == "Self" { "" } else { "  " };
            cells.push(Cell::painted(format!("{indent}{label}"), paint));
            table.row(cells);
        };
        for (arc, label) in shown(profile, selection, stanza, &stanza.parents) {
            let calls = Some((arc.calls, arc.calls_at_least));
            let extremes = [arc.min_ns, arc.max_ns];
            row(
                "Parent",
                calls,
                Some(arc.self_ns),
                arc.total_ns,
                extremes,
                label,
            );
        }
        let label = printable(stanza.name).into_owned();
        let calls = Some((stanza.calls, stanza.calls_at_least));
        let extremes = [stanza.min_ns, stanza.max_ns];
        row(
            "Self",
            calls,
            Some(stanza.self_ns),
            stanza.total_ns,
            extremes,
            label,
        );
        for (arc, label) in shown(profile, selection, stanza, &stanza.children) {
            let calls = Some((arc.calls, arc.calls_at_least));
            let extremes = [arc.min_ns, arc.max_ns];
            row(
                "Child",
                calls,
                Some(arc.self_ns),
                arc.total_ns,
                extremes,
                label,
            );
        }
        if timed && stanza.not_in_callees > 0 {
            let label = "(not known)".to_string();
            row("Child", None, None, stanza.not_in_callees, [None; 2], label);
        }
    }
    table.print(out)?;
    print_left_out(profile, &view.not_shown, out, style)
}

/// Those with a share of the function that is worth a line, and the rest in one, so that the sums still hold.
fn shown<'a>(
    profile: &Profile,
    selection: &Selection,
    stanza: &Stanza,
    arcs: &[ArcOf<'a>],
) -> Vec<(ArcOf<'a>, String)> {
    let weight = |arc: &ArcOf| match profile.meta.timed {
        true => arc.total_ns,
        false => arc.calls,
    };
    let whole = match profile.meta.timed {
        true => stanza.total_ns,
        false => arcs
            .iter()
            .fold(0, |sum, arc| weight(arc).saturating_add(sum)),
    };
    let least = selection.min_percent.unwrap_or(0.0) / 100.0 * whole as f64;
    let (many, few): (Vec<&ArcOf>, Vec<&ArcOf>) =
        arcs.iter().partition(|arc| weight(arc) as f64 >= least);
    let mut shown: Vec<(ArcOf, String)> = many.into_iter().map(|arc| (*arc, other(arc))).collect();
    match few.as_slice() {
        [] => {}
        [one] => shown.push((**one, other(one))),
        [first, rest @ ..] => {
            let sum = rest.iter().fold(**first, |sum, arc| ArcOf {
                calls: sum.calls.saturating_add(arc.calls),
                self_ns: sum.self_ns.saturating_add(arc.self_ns),
                total_ns: sum.total_ns.saturating_add(arc.total_ns),
                min_ns: sum.min_ns.into_iter().chain(arc.min_ns).min(),
                max_ns: sum.max_ns.max(arc.max_ns),
                ..sum
            });
            shown.push((sum, format!("({} others)", count(few.len() as u64))));
        }
    }
    shown
}

fn other(arc: &ArcOf) -> String {
    match (arc.other, arc.name) {
        (Caller::Outside, _) => "(start, or code that is not patched)".to_string(),
        (Caller::Unknown, _) => "(folded: not known)".to_string(),
        (Caller::Function(_), name) => {
            let name = printable(name.unwrap_or_default());
            format!("{name}{}", at_site(&arc.site))
        }
    }
}
