//! The page as one file that needs no server: it holds the responses to the queries that it may ask.
//!
//! Which ones: every table; each function's surroundings, the heaviest first; the tree of the heaviest contexts; the river at each
//! step of the time filter that shows a readable number of functions, in both directions and with each rule of width;
//! the first of the recorded calls; and the river below each of the functions that most time goes through. What is not held the page does not offer.

use std::collections::BTreeMap;
use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::assets::{SCRIPT, STYLE, page};
use super::river::STEPS;
use super::{ProfileView, Query};

/// Functions whose callers and callees are held.
const HELD_FUNCTIONS: usize = 3000;
/// The same, by each metric.
const HELD_FUNCTIONS_BY_METRIC: usize = 300;
/// Functions that can be the virtual root.
const HELD_ROOTS: usize = 16;
/// Boxes of a river that is held in each form, and in its usual form.
const HELD_BOXES_OF_EACH_FORM: usize = 90;
const HELD_BOXES: usize = 400;
const HELD_CONTEXTS: usize = 5000;
/// Recorded calls whose trees are held.
const HELD_CALLS: usize = 400;
/// Bytes of these trees in all.
const HELD_TREES_BYTES: usize = 4_000_000;
/// Bytes of the tables below virtual roots, each of which may be as large as that of all functions.
const HELD_ROOT_TABLES_BYTES: usize = 32_000_000;

pub fn write(view: &ProfileView, out: &mut impl Write) -> io::Result<()> {
    let responses = responses(view);
    // The best takes ten times as long on a large profile for a few percent.
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    serde_json::to_writer(&mut packed, &responses)?;
    let packed = STANDARD.encode(packed.finish()?);
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    let head = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{}'; \
         style-src 'sha256-{}'; img-src data:; base-uri 'none'; form-action 'none'\">\n<style>{STYLE}</style>\n",
        hash(SCRIPT),
        hash(STYLE)
    );
    // The responses first: the script samples for them when it starts.
    let body = format!(
        "<script type=\"application/octet-stream\" id=\"responses\">{packed}</script>\n<script type=\"module\">{SCRIPT}</script>\n"
    );
    let command = thalweg_views::command_line(&view.profile().meta.command);
    out.write_all(page(&format!("thalweg: {command}"), &head, &body).as_bytes())
}

fn responses(view: &ProfileView) -> BTreeMap<String, Box<RawValue>> {
    let mut responses = BTreeMap::new();
    let mut ask = |query: String| -> Option<usize> {
        let response = view.response(&Query::parse(&query)).ok()?;
        let length = response.len();
        let text = String::from_utf8(response).ok()?;
        responses.insert(query, RawValue::from_string(text).ok()?);
        Some(length)
    };
    for table in [
        "meta",
        "functions",
        "threads",
        "summary",
        "compare",
        "timeline",
    ] {
        ask(table.to_string());
    }
    ask(format!("tree?limit={HELD_CONTEXTS}"));
    ask(format!("tree?limit={HELD_CONTEXTS}&metric=calls"));

    let timed = view.profile().meta.timed;
    let mut rows = thalweg_analysis::flat(view.profile());
    rows.sort_by_key(|row| std::cmp::Reverse(if timed { row.total_ns } else { row.calls }));
    for row in rows.iter().take(HELD_FUNCTIONS) {
        ask(format!("function?f={}", row.function));
        ask(format!("sites?f={}", row.function));
    }

    for metric in &view.profile().meta.metrics {
        let metric = format!("metric={}", metric.name());
        for query in [
            "functions?",
            "summary?",
            "compare?",
            "river?",
            "river?dir=down&",
        ] {
            ask(format!("{query}{metric}"));
        }
        ask(format!("tree?limit={HELD_CONTEXTS}&{metric}"));
        for row in rows.iter().take(HELD_FUNCTIONS_BY_METRIC) {
            ask(format!("function?f={}&{metric}", row.function));
        }
    }

    ask("calls".to_string());
    ask("callline".to_string());
    ask("calldurations".to_string());
    let recorded = &view.profile().recorded.calls;
    let mut room = HELD_TREES_BYTES;
    for call in recorded
        .iter()
        .filter(|call| call.rule.is_some() || call.parent.is_none())
        .take(HELD_CALLS)
    {
        room = room.saturating_sub(ask(format!("call?id={}", call.id)).unwrap_or(0));
        if room == 0 {
            break;
        }
    }

    ask("river".to_string());
    let whole: u64 = rows
        .iter()
        .map(|row| row.self_ns)
        .fold(0, u64::saturating_add);
    for down in ["", "dir=down"] {
        for width in ["", "width=adaptive", "width=log", "width=none"] {
            let usual = down.is_empty() && width.is_empty();
            let most = if usual {
                HELD_BOXES
            } else {
                HELD_BOXES_OF_EACH_FORM
            };
            ask(query(&[down, width]));
            for step in STEPS.iter().rev() {
                let least = step / 100.0 * whole as f64;
                if rows
                    .iter()
                    .filter(|row| row.total_ns as f64 >= least)
                    .count()
                    > most
                {
                    break;
                }
                ask(query(&[&format!("cut={step}"), down, width]));
            }
        }
    }
    let mut room = HELD_ROOT_TABLES_BYTES;
    for row in rows.iter().take(HELD_ROOTS) {
        let root = format!("root={}", row.function);
        room = room.saturating_sub(ask(format!("functions?{root}")).unwrap_or(0));
        ask(query(&[&root]));
        ask(format!("tree?limit={HELD_CONTEXTS}&{root}"));
        if room == 0 {
            break;
        }
    }
    responses
}

fn query(parameters: &[&str]) -> String {
    let given: Vec<&str> = parameters
        .iter()
        .copied()
        .filter(|parameter| !parameter.is_empty())
        .collect();
    match given.is_empty() {
        true => "river".to_string(),
        false => format!("river?{}", given.join("&")),
    }
}
