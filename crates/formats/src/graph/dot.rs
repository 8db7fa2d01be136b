//! The same river in graphviz's language, for those who want to lay it out or edit it themselves.

use std::io::{self, Write};

use thalweg_model::Profile;

use super::draw::{self, Look};
use super::river::River;

pub fn write(profile: &Profile, river: &River, look: &Look, mut out: impl Write) -> io::Result<()> {
    let least = river
        .streams
        .iter()
        .map(|stream| river.share(stream.time))
        .filter(|&share| share > 0.0)
        .fold(1.0, f64::min);
    writeln!(out, "digraph thalweg {{")?;
    writeln!(
        out,
        "  rankdir=LR; label={}; labelloc=t;",
        quoted(&look.title)
    )?;
    writeln!(
        out,
        "  node [shape=box, style=\"filled,rounded\", fontname=\"sans-serif\"];"
    )?;
    writeln!(out, "  edge [color=\"#2166acb0\", arrowsize=0.5];")?;
    for (index, bank) in river.banks.iter().enumerate() {
        let Some(function) = bank.function else {
            writeln!(out, "  n{index} [label=\"START\", fillcolor=\"#ffffff\"];")?;
            continue;
        };
        let function = &profile.functions[function as usize];
        let own = river.share(bank.own);
        // Hue from yellow to red, paler where it is cold.
        let colour = format!(
            "{:.3} {:.3} 1.0",
            0.14 * (1.0 - own.min(1.0)),
            (own * 2.0).min(0.85)
        );
        let label = format!(
            "{}\n{:.1}%, own {:.1}%, {} calls",
            function.name,
            river.share(bank.total) * 100.0,
            own * 100.0,
            bank.calls
        );
        writeln!(
            out,
            "  n{index} [label={}, tooltip={}, fillcolor=\"{colour}\"];",
            quoted(&label),
            quoted(&profile.modules[function.module as usize].name)
        )?;
    }
    let closing = thalweg_graphics::closing(&draw::graph(river, look, |_| 0.0));
    for (stream, closes_cycle) in river.streams.iter().zip(closing) {
        let width = look.width.units(river.share(stream.time), least).max(0.3);
        let mark = match closes_cycle {
            true => format!(", label=\"rc={}\"", stream.calls),
            false => String::new(),
        };
        let style = match stream.through_hidden {
            true => ", style=dashed",
            false => "",
        };
        writeln!(
            out,
            "  n{} -> n{} [penwidth={width:.2}, weight={}, tooltip=\"{} calls, {:.1}%\"{mark}{style}];",
            stream.from,
            stream.to,
            1 + (river.share(stream.time) * 99.0) as u32,
            stream.calls,
            river.share(stream.time) * 100.0,
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
