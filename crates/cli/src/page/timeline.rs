//! The time line: of each thread when it was on a processor, in what, and what it waited for; as fine as the screen.
//!
//! A lane is told in runs of pieces that are alike.

use std::collections::BTreeSet;

use serde::Serialize;
use thalweg_analysis::{Bin, Lane, Lanes, Part, threads};
use thalweg_model::{Profile, Wait, WaitsOf, system_call_name};

use super::{ApiError, Query};

const DEFAULT_PIECES: usize = 600;
const MAX_PIECES: usize = 4096;
/// Threads that are shown: those that did most.
const MAX_LANES: usize = 200;
/// What the page draws otherwise than sleep.
const READY: &str = "ready, no processor";
/// How finely it is told what part of a piece a thread was on a processor.
const STEPS: u64 = 16;

#[derive(Serialize, Default)]
pub struct TimelineResponse {
    begin: u64,
    end: u64,
    t0: u64,
    t1: u64,
    /// Processor time that a sample stands for, the longest of any thread.
    period: u64,
    lanes: Vec<LaneHead>,
    /// Threads that did less than all that are shown.
    left_out: usize,
    /// Column by column: the lane, from when, how long, how many sixteenths of it on a processor, the function (-1: not known),
    /// and what was waited for (-1: not known, or nothing).
    lane: Vec<u32>,
    at: Vec<u64>,
    length: Vec<u64>,
    on: Vec<u8>,
    function: Vec<i64>,
    wait: Vec<i64>,
    waits: Vec<String>,
    marks: Vec<MarkOf>,
    /// Number, name and module of the functions: some were never called as far as others know.
    names: Vec<(u32, String, String)>,
}

#[derive(Serialize)]
struct LaneHead {
    thread: usize,
    pid: u32,
    tid: u32,
    name: String,
    start: u64,
    end: u64,
    /// In what is shown.
    on: u64,
    waiting: u64,
}

#[derive(Serialize)]
struct MarkOf {
    at: u64,
    text: String,
}

pub fn response(
    profile: &Profile,
    lanes: &Lanes,
    part: &Part,
    query: &Query,
) -> Result<TimelineResponse, ApiError> {
    if lanes.is_empty() {
        return Err(ApiError::missing(
            "no samples with times were taken: record with --samples",
        ));
    }
    let end = threads(profile).map(|(_, thread)| thread.end_ns);
    let spans = (0..threads(profile).count()).filter_map(|number| lanes.get(number)?.span());
    let end = end.chain(spans.map(|(_, end)| end)).max().unwrap_or(0);
    let end = end.max(profile.meta.duration_ns).max(1);
    let t0 = query.number("t0")?.unwrap_or(0).min(end - 1);
    let t1 = query.number("t1")?.unwrap_or(end).clamp(t0 + 1, end);
    let pieces = query.number("px")?.unwrap_or(DEFAULT_PIECES);
    let pieces = pieces.clamp(1, MAX_PIECES).min((t1 - t0) as usize);

    let mut found: Vec<(LaneHead, &Lane, Vec<Bin>)> = Vec::new();
    for (number, (process, thread)) in threads(profile).enumerate() {
        let is_wanted = part.threads.is_empty() || part.threads.contains(&(number as u32));
        let Some(lane) = lanes.get(number).filter(|_| is_wanted) else {
            continue;
        };
        let bins = lane.bins(t0, t1, pieces);
        let waits = lane.line().waits.iter();
        let waiting = waits.map(|wait| wait.end_ns.min(t1).saturating_sub(wait.start_ns.max(t0)));
        found.push((
            LaneHead {
                thread: number,
                pid: process.pid,
                tid: thread.tid,
                name: thread.name.clone(),
                start: thread.start_ns,
                end: thread.end_ns,
                on: bins.iter().map(|bin| bin.on_ns).sum(),
                waiting: waiting.sum(),
            },
            lane,
            bins,
        ));
    }
    let left_out = found.len().saturating_sub(MAX_LANES);
    if left_out > 0 {
        found.sort_by_key(|(head, ..)| std::cmp::Reverse(head.on));
        found.truncate(MAX_LANES);
        found.sort_by_key(|(head, ..)| head.thread);
    }

    let mut response = TimelineResponse {
        end,
        t0,
        t1,
        left_out,
        marks: marks(profile, t0, t1),
        ..TimelineResponse::default()
    };
    for (head, lane, bins) in found {
        response.period = response.period.max(lane.line().period_ns);
        response.add(head, lane, &bins);
    }
    let shown: BTreeSet<u32> = response
        .function
        .iter()
        .filter_map(|&function| u32::try_from(function).ok())
        .collect();
    let named = shown.into_iter().filter_map(|number| {
        let function = profile.functions.get(number as usize)?;
        let module = profile.modules.get(function.module as usize)?;
        Some((number, function.name.clone(), module.name.clone()))
    });
    response.names = named.collect();
    Ok(response)
}

fn marks(profile: &Profile, t0: u64, t1: u64) -> Vec<MarkOf> {
    let all = profile.marks.iter();
    let seen = all.filter(|mark| (t0..=t1).contains(&mark.at_ns));
    seen.map(|mark| MarkOf {
        at: mark.at_ns,
        text: mark.text.clone(),
    })
    .collect()
}

impl TimelineResponse {
    fn add(&mut self, head: LaneHead, lane: &Lane, bins: &[Bin]) {
        let number = self.lanes.len() as u32;
        self.lanes.push(head);
        let length = self.t1 - self.t0;
        let start = |bin: usize| {
            self.t0 + (u128::from(length) * bin as u128 / bins.len().max(1) as u128) as u64
        };
        let starts: Vec<u64> = (0..=bins.len()).map(start).collect();
        let mut last: Option<(u8, i64, i64)> = None;
        for (index, bin) in bins.iter().enumerate() {
            let whole = (starts[index + 1] - starts[index]).max(1);
            let on = bin.on_ns.saturating_mul(STEPS).div_ceil(whole).min(STEPS) as u8;
            let wait = bin.wait.filter(|_| u64::from(on) < STEPS);
            let wait = wait.map_or(-1, |wait| self.wait(&lane.line().waits[wait as usize]));
            let function = bin
                .function
                .filter(|_| on > 0)
                .map_or(-1, |function| i64::from(function.0));
            let what = (on, function, wait);
            if on == 0 && wait < 0 {
                last = None;
                continue;
            }
            if last == Some(what)
                && let Some(run) = self.length.last_mut()
            {
                *run += starts[index + 1] - starts[index];
                continue;
            }
            last = Some(what);
            self.lane.push(number);
            self.at.push(starts[index]);
            self.length.push(starts[index + 1] - starts[index]);
            self.on.push(on);
            self.function.push(function);
            self.wait.push(wait);
        }
    }

    fn wait(&mut self, wait: &Wait) -> i64 {
        let text = text(wait);
        let known = self.waits.iter().position(|known| *known == text);
        let place = known.unwrap_or_else(|| {
            self.waits.push(text);
            self.waits.len() - 1
        });
        place as i64
    }
}

/// `read of a pipe`, `futex`.
fn text(wait: &Wait) -> String {
    if wait.of == WaitsOf::Processor {
        return READY.to_string();
    }
    let name = match wait.system_call {
        None => return "asleep in no system call".to_string(),
        Some(number) => {
            system_call_name(number).map_or_else(|| format!("system call {number}"), str::to_string)
        }
    };
    match wait.of {
        WaitsOf::None => name,
        of => format!("{name}: {}", of.name()),
    }
}
