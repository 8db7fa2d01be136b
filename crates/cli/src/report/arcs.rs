//! `report --arcs`: a stanza per function, its callers above it and its callees below: Parent, Self, Child.
//!
//! In each stanza the parents' Calls, Base and Cum add up to Self's, and the children's Cum to Self's Cum less its Base.

use std::io::{self, Write};

use serde::Serialize;
use thalweg_analysis::{Arc, Bounds, Caller, Stanza, stanzas, summary};
use thalweg_model::Profile;

use super::flat::{order, print_left_out};
use super::json::{NotShown, SiteOf, finish};
use super::sites::at_site;
use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{self, TIME_WIDTH, count, printable, share, time};
use super::{LeftOut, Selection};

/// Arcs below this share of their function share a row, unless told otherwise.
pub const LEAST_ARC_PERCENT: f64 = 0.5;

struct Chosen {
    stanzas: Vec<Stanza>,
    left_out: LeftOut,
}

fn choose(profile: &Profile, selection: &Selection) -> Chosen {
    let (mut shown, mut rest): (Vec<Stanza>, Vec<Stanza>) = stanzas(profile)
        .into_iter()
        .partition(|stanza| selection.keeps(profile, stanza.own.function));
    shown.sort_by(|a, b| {
        order(profile, selection.sort, &a.own, &b.own)
            .then_with(|| name(profile, a.own.function).cmp(name(profile, b.own.function)))
    });
    if let Some(limit) = selection.limit {
        rest.extend(shown.drain(limit.min(shown.len())..));
    }
    let mut left_out = LeftOut::default();
    rest.iter()
        .for_each(|stanza| left_out.add(stanza.own.calls, stanza.own.base));
    Chosen {
        stanzas: shown,
        left_out,
    }
}

fn name(profile: &Profile, function: u32) -> &str {
    &profile.functions[function as usize].name
}

pub fn print_arcs(
    profile: &Profile,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let chosen = choose(profile, selection);
    let timed = profile.meta.timed;
    let whole = summary(profile).time;
    let mut table = Table::new(style)
        .column("", Align::Left)
        .column("Calls", Align::Right);
    if timed {
        table = table
            .column("Self", Align::Right)
            .column(format!("{:>TIME_WIDTH$} {:>6}", "Total", "%"), Align::Right);
    }
    table = table.column("Name", Align::Left);

    let bounds = Bounds::of(profile);
    for stanza in &chosen.stanzas {
        table.text("", Paint::Plain);
        let mut row =
            |role: &str, calls: Option<(u64, bool)>, base: Option<u64>, cum: u64, label: String| {
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
                    cells.push(Cell::painted(base.map(time).unwrap_or_default(), paint));
                    let text = format!("{} {}", time(cum), share(cum, whole));
                    cells.push(Cell::painted(text, paint));
                }
                let indent = if role == "Self" { "" } else { "  " };
                cells.push(Cell::painted(format!("{indent}{label}"), paint));
                table.row(cells);
            };
        for (arc, label) in shown(profile, selection, stanza, &stanza.parents) {
            let is_bound = bounds.call(arc.other, stanza.own.function);
            let calls = Some((arc.calls, is_bound));
            row("Parent", calls, Some(arc.base), arc.cum, label);
        }
        let own = &stanza.own;
        let label = printable(name(profile, own.function)).into_owned();
        let calls = Some((own.calls, bounds.function(own.function)));
        row("Self", calls, Some(own.base), own.cum, label);
        for (arc, label) in shown(profile, selection, stanza, &stanza.children) {
            let calls = Some((arc.calls, is_bound_child(&bounds, own.function, &arc)));
            row("Child", calls, Some(arc.base), arc.cum, label);
        }
        if timed && let Some(unknown) = unknown_callees(stanza) {
            row("Child", None, None, unknown, "(not known)".to_string());
        }
    }
    table.print(out)?;
    print_left_out(profile, &chosen.left_out, out, style)
}

fn is_bound_child(bounds: &Bounds, own: u32, child: &Arc) -> bool {
    match child.other {
        Caller::Function(callee) => bounds.call(Caller::Function(own), callee),
        Caller::Outside | Caller::Unknown => bounds.function(own),
    }
}

/// Those with a share of the function that is worth a line, and the rest in one, so that the sums still hold.
fn shown(
    profile: &Profile,
    selection: &Selection,
    stanza: &Stanza,
    arcs: &[Arc],
) -> Vec<(Arc, String)> {
    let weight = |arc: &Arc| match profile.meta.timed {
        true => arc.cum,
        false => arc.calls,
    };
    let whole = match profile.meta.timed {
        true => stanza.own.cum,
        false => arcs
            .iter()
            .fold(0, |sum, arc| weight(arc).saturating_add(sum)),
    };
    let least = selection.min_percent.unwrap_or(0.0) / 100.0 * whole as f64;
    let (many, few): (Vec<&Arc>, Vec<&Arc>) =
        arcs.iter().partition(|arc| weight(arc) as f64 >= least);
    let mut shown: Vec<(Arc, String)> = many
        .into_iter()
        .map(|arc| (*arc, other(profile, arc)))
        .collect();
    match few.as_slice() {
        [] => {}
        [one] => shown.push((**one, other(profile, one))),
        [first, rest @ ..] => {
            let sum = rest.iter().fold(**first, |sum, arc| Arc {
                calls: sum.calls.saturating_add(arc.calls),
                base: sum.base.saturating_add(arc.base),
                cum: sum.cum.saturating_add(arc.cum),
                ..sum
            });
            shown.push((sum, format!("({} others)", count(few.len() as u64))));
        }
    }
    shown
}

/// Time that belongs to callees of which the tree has nothing.
fn unknown_callees(stanza: &Stanza) -> Option<u64> {
    u64::try_from(stanza.not_in_callees)
        .ok()
        .filter(|&time| time > 0)
}

fn other(profile: &Profile, arc: &Arc) -> String {
    match arc.other {
        Caller::Outside => "(start, or code that is not patched)".to_string(),
        Caller::Unknown => "(folded: not known)".to_string(),
        Caller::Function(function) => format!(
            "{}{}",
            printable(name(profile, function)),
            at_site(profile, arc.site)
        ),
    }
}

pub fn print_arcs_json(
    profile: &Profile,
    selection: &Selection,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        schema: &'static str,
        timed: bool,
        stanzas: Vec<StanzaOf<'a>>,
        not_shown: NotShown,
    }
    #[derive(Serialize)]
    struct StanzaOf<'a> {
        function: u32,
        name: &'a str,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        self_ns: u64,
        total_ns: u64,
        parents: Vec<ArcOf<'a>>,
        children: Vec<ArcOf<'a>>,
        not_in_callees: u64,
    }
    #[derive(Serialize)]
    struct ArcOf<'a> {
        /// `null` for the start of a thread, unpatched code, or folded calls.
        function: Option<u32>,
        name: Option<&'a str>,
        #[serde(flatten)]
        site: SiteOf<'a>,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        self_ns: u64,
        total_ns: u64,
    }
    let bounds = Bounds::of(profile);
    let arc_of = |arc: &Arc, calls_at_least: bool| {
        let function = match arc.other {
            Caller::Function(function) => Some(function),
            Caller::Outside | Caller::Unknown => None,
        };
        ArcOf {
            function,
            name: function.map(|function| name(profile, function)),
            site: SiteOf::of(profile, arc.site),
            calls: arc.calls,
            calls_at_least,
            self_ns: arc.base,
            total_ns: arc.cum,
        }
    };
    let chosen = choose(profile, selection);
    let stanzas = chosen.stanzas.iter().map(|stanza| StanzaOf {
        function: stanza.own.function,
        name: name(profile, stanza.own.function),
        calls: stanza.own.calls,
        calls_at_least: bounds.function(stanza.own.function),
        self_ns: stanza.own.base,
        total_ns: stanza.own.cum,
        parents: stanza
            .parents
            .iter()
            .map(|arc| arc_of(arc, bounds.call(arc.other, stanza.own.function)))
            .collect(),
        children: stanza
            .children
            .iter()
            .map(|arc| arc_of(arc, is_bound_child(&bounds, stanza.own.function, arc)))
            .collect(),
        not_in_callees: unknown_callees(stanza).unwrap_or(0),
    });
    finish(
        profile.meta.weighed_by,
        out,
        &Report {
            schema: "thalweg.report.arcs/1",
            timed: profile.meta.timed,
            stanzas: stanzas.collect(),
            not_shown: NotShown::of(chosen.left_out),
        },
    )
}
