//! The page as one file that needs no server: it holds the answers to the questions that it may ask.
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
use super::{Question, Subject};
use crate::report;

/// Functions whose callers and callees are held.
const FUNCTIONS: usize = 3000;
/// The same, by each metric.
const WEIGHED_FUNCTIONS: usize = 300;
/// Functions that can be the virtual root.
const ROOTS: usize = 16;
/// Boxes of a river that is held in each form, and in its usual form.
const BOXES_OF_EACH_FORM: usize = 90;
const BOXES: usize = 400;
const CONTEXTS: usize = 5000;
/// Recorded calls whose trees are held.
const RECORDED: usize = 400;
/// Bytes of these trees in all.
const TREES: usize = 4_000_000;
/// Bytes of the tables below virtual roots, each of which may be as large as that of all functions.
const ROOT_TABLES: usize = 32_000_000;

pub fn write(subject: &Subject, out: &mut impl Write) -> io::Result<()> {
    let answers = answers(subject);
    // The best takes ten times as long on a large profile for a few percent.
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    serde_json::to_writer(&mut packed, &answers)?;
    let packed = STANDARD.encode(packed.finish()?);
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    let head = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{}'; \
         style-src 'sha256-{}'; img-src data:; base-uri 'none'; form-action 'none'\">\n<style>{STYLE}</style>\n",
        hash(SCRIPT),
        hash(STYLE)
    );
    // The answers first: the script looks for them when it starts.
    let body = format!(
        "<script type=\"application/octet-stream\" id=\"answers\">{packed}</script>\n<script type=\"module\">{SCRIPT}</script>\n"
    );
    let command = report::command_line(&subject.profile().meta.command);
    out.write_all(page(&format!("thalweg: {command}"), &head, &body).as_bytes())
}

fn answers(subject: &Subject) -> BTreeMap<String, Box<RawValue>> {
    let mut answers = BTreeMap::new();
    let mut ask = |question: String| -> Option<usize> {
        let answer = subject.answer(&Question::parse(&question)).ok()?;
        let length = answer.len();
        let text = String::from_utf8(answer).ok()?;
        answers.insert(question, RawValue::from_string(text).ok()?);
        Some(length)
    };
    for table in ["meta", "functions", "threads", "summary", "compare"] {
        ask(table.to_string());
    }
    ask(format!("tree?limit={CONTEXTS}"));
    ask(format!("tree?limit={CONTEXTS}&metric=calls"));

    let timed = subject.profile().meta.timed;
    let mut rows = thalweg_analysis::flat(subject.profile());
    rows.sort_by_key(|row| std::cmp::Reverse(if timed { row.cum } else { row.calls }));
    for row in rows.iter().take(FUNCTIONS) {
        ask(format!("function?f={}", row.function));
        ask(format!("sites?f={}", row.function));
    }

    for metric in &subject.profile().meta.metrics {
        let metric = format!("metric={}", metric.name());
        for question in [
            "functions?",
            "summary?",
            "compare?",
            "river?",
            "river?dir=down&",
        ] {
            ask(format!("{question}{metric}"));
        }
        ask(format!("tree?limit={CONTEXTS}&{metric}"));
        for row in rows.iter().take(WEIGHED_FUNCTIONS) {
            ask(format!("function?f={}&{metric}", row.function));
        }
    }

    ask("calls".to_string());
    ask("callline".to_string());
    let recorded = &subject.profile().recorded.calls;
    let mut room = TREES;
    for call in recorded
        .iter()
        .filter(|call| call.rule.is_some() || call.parent.is_none())
        .take(RECORDED)
    {
        room = room.saturating_sub(ask(format!("call?id={}", call.id)).unwrap_or(0));
        if room == 0 {
            break;
        }
    }

    ask("river".to_string());
    let whole: u64 = rows.iter().map(|row| row.base).fold(0, u64::saturating_add);
    for down in ["", "dir=down"] {
        for width in ["", "width=adaptive", "width=log", "width=none"] {
            let usual = down.is_empty() && width.is_empty();
            let most = if usual { BOXES } else { BOXES_OF_EACH_FORM };
            ask(question(&[down, width]));
            for step in STEPS.iter().rev() {
                let least = step / 100.0 * whole as f64;
                if rows.iter().filter(|row| row.cum as f64 >= least).count() > most {
                    break;
                }
                ask(question(&[&format!("cut={step}"), down, width]));
            }
        }
    }
    let mut room = ROOT_TABLES;
    for row in rows.iter().take(ROOTS) {
        let root = format!("root={}", row.function);
        room = room.saturating_sub(ask(format!("functions?{root}")).unwrap_or(0));
        ask(question(&[&root]));
        ask(format!("tree?limit={CONTEXTS}&{root}"));
        if room == 0 {
            break;
        }
    }
    answers
}

fn question(parameters: &[&str]) -> String {
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
