//! speedscope's own JSON: per thread one profile of the kind "sampled", with one weighted stack per
//! context.
//!
//! Samples of that kind have weights and no times. Their order is that of the tree, not of the run:
//! "Left Heavy" and "Sandwich" are the views to look at.

use std::io::{self, Write};

use serde::Serialize;
use thalweg_model::{Metric, Node, Profile, Thread, Unit};

use crate::each::Each;
use crate::stacks::{outermost_first, own_weight, thread_name, title};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

pub fn write(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Document<P, F> {
        #[serde(rename = "$schema")]
        schema: &'static str,
        name: String,
        exporter: String,
        #[serde(rename = "activeProfileIndex")]
        active: usize,
        shared: Shared<F>,
        profiles: P,
    }
    #[derive(Serialize)]
    struct Shared<F> {
        frames: F,
    }

    let threads: Vec<&Thread> = profile.processes.iter().flat_map(|p| &p.threads).collect();
    let busiest = (0..threads.len()).max_by_key(|&index| {
        // The first of equals.
        (total(profile, threads[index]), std::cmp::Reverse(index))
    });
    let document = Document {
        schema: SCHEMA,
        name: title(profile),
        exporter: format!("thalweg {}", profile.meta.version),
        active: busiest.unwrap_or(0),
        shared: Shared {
            frames: Each(|| profile.functions.iter().map(Frame::from_function)),
        },
        profiles: Each(|| threads.iter().map(|thread| sampled(profile, thread))),
    };
    serde_json::to_writer(&mut out, &document)?;
    out.write_all(b"\n")?;
    out.flush()
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl Frame<'_> {
    fn from_function(function: &thalweg_model::Function) -> Frame<'_> {
        Frame {
            name: &function.name,
            file: function.file.as_deref(),
            line: Some(function.line).filter(|&line| line > 0),
        }
    }
}

fn total(profile: &Profile, thread: &Thread) -> u64 {
    let weights = thread.nodes.iter().map(|node| own_weight(profile, node));
    weights.fold(0, u64::saturating_add)
}

fn sampled<'a>(profile: &'a Profile, thread: &'a Thread) -> impl Serialize + 'a {
    #[derive(Serialize)]
    struct Sampled<S, W> {
        #[serde(rename = "type")]
        kind: &'static str,
        name: String,
        unit: &'static str,
        #[serde(rename = "startValue")]
        start: u64,
        #[serde(rename = "endValue")]
        end: u64,
        samples: S,
        weights: W,
    }
    let weighty = move || {
        let nodes = thread.nodes.iter();
        nodes.filter(move |node: &&Node| own_weight(profile, node) > 0)
    };
    Sampled {
        kind: "sampled",
        name: format!("{} ({})", thread_name(thread), thread.tid),
        unit: match profile.meta.weighed_by.map(Metric::unit) {
            Some(Unit::Bytes) => "bytes",
            None if profile.meta.timed => "nanoseconds",
            _ => "none",
        },
        start: 0,
        end: total(profile, thread),
        samples: Each(move || weighty().map(move |node| outermost_first(thread, node))),
        weights: Each(move || weighty().map(move |node| own_weight(profile, node))),
    }
}
