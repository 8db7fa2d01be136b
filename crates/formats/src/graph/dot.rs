//! The same river in graphviz's language, for those who want to lay it out or edit it themselves.

use std::io::{self, Write};

use thalweg_model::Profile;

use super::draw::{self, Style};
use thalweg_analysis::{Bounds, FlowGraph};

pub fn write(
    profile: &Profile,
    flow: &FlowGraph,
    style: &Style,
    mut out: impl Write,
) -> io::Result<()> {
    let bounds = Bounds::from_profile(profile);
    let at_least = |is_bound: bool| if is_bound { ">= " } else { "" };
    let least = flow
        .edges
        .iter()
        .map(|edge| flow.share(edge.time))
        .filter(|&share| share > 0.0)
        .fold(1.0, f64::min);
    writeln!(out, "digraph thalweg {{")?;
    writeln!(
        out,
        "  rankdir=LR; label={}; labelloc=t;",
        quoted(&style.title)
    )?;
    writeln!(
        out,
        "  node [shape=box, style=\"filled,rounded\", fontname=\"sans-serif\"];"
    )?;
    writeln!(out, "  edge [color=\"#2166acb0\", arrowsize=0.5];")?;
    for (index, node) in flow.nodes.iter().enumerate() {
        let Some(function) = node.function else {
            writeln!(out, "  n{index} [label=\"START\", fillcolor=\"#ffffff\"];")?;
            continue;
        };
        let is_bound = at_least(bounds.function(function));
        let function = &profile.functions[function];
        let self_share = flow.share(node.self_time);
        // Hue from yellow to red, paler where it is cold.
        let colour = format!(
            "{:.3} {:.3} 1.0",
            0.14 * (1.0 - self_share.min(1.0)),
            (self_share * 2.0).min(0.85)
        );
        let label = format!(
            "{}\n{:.1}%, self {:.1}%, {is_bound}{} calls",
            function.name,
            flow.share(node.total) * 100.0,
            self_share * 100.0,
            node.calls
        );
        writeln!(
            out,
            "  n{index} [label={}, tooltip={}, fillcolor=\"{colour}\"];",
            quoted(&label),
            quoted(&profile.modules[function.module as usize].name)
        )?;
    }
    let closing = thalweg_graphics::closing(&draw::graph(flow, style, |_| 0.0));
    for (edge, closes_cycle) in flow.edges.iter().zip(closing) {
        let width = style.width.units(flow.share(edge.time), least).max(0.3);
        let is_bound = at_least(bounds.flow(flow, edge));
        let mark = match closes_cycle {
            true => format!(", label=\"rc={is_bound}{}\"", edge.calls),
            false => String::new(),
        };
        let style = match edge.through_hidden {
            true => ", style=dashed",
            false => "",
        };
        writeln!(
            out,
            "  n{} -> n{} [penwidth={width:.2}, weight={}, tooltip=\"{is_bound}{} calls, {:.1}%\"{mark}{style}];",
            edge.from,
            edge.to,
            1 + (flow.share(edge.time) * 99.0) as u32,
            edge.calls,
            flow.share(edge.time) * 100.0,
        )?;
    }
    writeln!(out, "}}")?;
    out.flush()
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push('\u{fffd}'),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
