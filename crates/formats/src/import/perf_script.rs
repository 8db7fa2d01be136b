//! What `perf script` prints: per sample a line about it, its stack from the inside out, an empty
//! line.
//!
//! ```text
//! python3 41/42 [001]  1234.567890:     250000 cpu-clock:u:
//!             55d0c0de _PyEval_EvalFrameDefault+0x1a (/usr/bin/python3.11)
//!             7f21a0de __libc_start_main+0x85 (/usr/lib/libc.so.6)
//! ```
//!
//! Without -g each sample is one line, with the place behind the event:
//!
//! ```text
//!  python3 41 1234.567890:  250000 cpu-clock:u:  55d0c0de _PyEval_Vector+0x1a (/usr/bin/python3)
//! ```
//!
//! Periods of clock events are nanoseconds; of other events each sample counts one.

use thalweg_model::{FuncId, Profile};

use super::ImportError;
use super::trees::Trees;

pub fn read(text: &str) -> Result<Profile, ImportError> {
    let mut trees = Trees::new("perf script");
    let mut sample: Option<Sample> = None;
    let mut clocked = true;
    let (mut earliest, mut latest) = (u64::MAX, 0);
    // The closing empty line, where the file lacks it.
    for line in text.lines().chain([""]) {
        if line.trim().is_empty() {
            if let Some(sample) = sample.take() {
                clocked &= sample.is_time;
                if let Some(at) = sample.at_ns {
                    earliest = earliest.min(at);
                    latest = latest.max(at);
                }
                sample.finish(&mut trees)?;
            }
        } else if line.starts_with('#') {
            // Comments stand before the samples.
        } else if line.starts_with(['\t', ' ']) && sample.is_some() && !is_head(line) {
            if let (Some(sample), Some(frame)) = (&mut sample, frame(line, &mut trees)) {
                sample.stack.push(frame);
            }
        } else {
            // Events without a stack have no empty line after them.
            if let Some(previous) = sample.take() {
                previous.finish(&mut trees)?;
            }
            sample = head(line, &mut trees);
        }
    }
    if earliest < latest {
        trees.meta.duration_ns = latest - earliest;
        trees.start_at(earliest);
    }
    trees.notes.push(match clocked {
        true => "imported from perf script: samples, whose periods are times; calls were not counted",
        false => "imported from perf script: times are samples, one shown as 1 ns; calls were not counted",
    }.to_string());
    trees.finish()
}

struct Sample {
    name: String,
    pid: u32,
    tid: u32,
    at_ns: Option<u64>,
    weight: u64,
    is_time: bool,
    /// The innermost function first.
    stack: Vec<FuncId>,
}

impl Sample {
    fn finish(self, trees: &mut Trees) -> Result<(), ImportError> {
        if self.stack.is_empty() {
            return Ok(());
        }
        let thread = trees.thread(self.pid, self.tid, &self.name);
        if let Some(at) = self.at_ns {
            trees.seen_at(thread, at);
        }
        trees.add(thread, self.stack.into_iter().rev(), 0, self.weight)
    }
}

/// `comm pid/tid [cpu] seconds: period event:`; most parts may be missing, and comm may have
/// blanks. Without stacks (`perf record` without -g) the place stands behind the event.
fn head(line: &str, trees: &mut Trees) -> Option<Sample> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ids = words.iter().skip(1).position(|word| is_ids(word))? + 1;
    let (pid, tid) = match words[ids].split_once('/') {
        Some((pid, tid)) => (pid.parse().ok()?, tid.parse().ok()?),
        None => {
            let tid = words[ids].parse().ok()?;
            (tid, tid)
        }
    };
    let rest = &words[ids + 1..];
    let at_ns = rest
        .iter()
        .filter_map(|word| word.strip_suffix(':'))
        .find_map(|word| word.parse::<f64>().ok())
        .filter(|seconds| (0.0..1e9).contains(seconds))
        .map(|seconds| (seconds * 1e9).round() as u64);
    let place = event_place(rest);
    let event = place.map(|place| rest[place]);
    let beside = place.map_or(String::new(), |place| rest[place + 1..].join(" "));
    let is_time = event.is_some_and(|event| event.contains("clock"));
    let period = rest.iter().find_map(|word| word.parse::<u64>().ok());
    Some(Sample {
        name: words[..ids].join(" "),
        pid,
        tid,
        at_ns,
        weight: if is_time { period.unwrap_or(1) } else { 1 },
        is_time: is_time && period.is_some(),
        stack: frame(&beside, trees).into_iter().collect(),
    })
}

/// `cpu-clock:u:`, and no time of day.
fn event_place(words: &[&str]) -> Option<usize> {
    words.iter().position(|word| {
        let number = word.trim_end_matches(':').parse::<f64>();
        word.ends_with(':') && number.is_err()
    })
}

/// A line about a sample, though blanks stand before it: process, time and event.
fn is_head(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ids = words.iter().skip(1).position(|word| is_ids(word));
    ids.is_some_and(|ids| event_place(&words[ids + 2..]).is_some())
}

fn is_ids(word: &str) -> bool {
    let mut parts = word.splitn(2, '/');
    parts.all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `address symbol+offset (module)`.
fn frame(line: &str, trees: &mut Trees) -> Option<FuncId> {
    let (address, rest) = line.trim().split_once(char::is_whitespace)?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let (symbol, module) = match rest.trim().rsplit_once(" (") {
        Some((symbol, module)) => (symbol.trim(), module.trim_end_matches(')')),
        None => (rest.trim(), ""),
    };
    let module = trees.module(module, "");
    // Only the function counts, not where in it the sample fell.
    let (name, start) = match symbol.rsplit_once("+0x") {
        Some((name, offset)) if u64::from_str_radix(offset, 16).is_ok() => (name, 0),
        _ if symbol == "[unknown]" => ("[unknown]", address),
        _ => (symbol, 0),
    };
    Some(match name {
        "[unknown]" => trees.function(module, &format!("sub_{start:x}"), start, None, 0),
        name => trees.function(module, name, 0, None, 0),
    })
}
