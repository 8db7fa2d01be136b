//! Recorded calls become those of a profile: counter values nanoseconds, and bytes named values.

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;

use thalweg_abi as shm;
use thalweg_abi::record as area;
use thalweg_abi::rules;
use thalweg_model as model;
use thalweg_rules::{When, decode_all};

use super::list::{CallList, Part};
use super::order;
use super::walk::{Call, End};
use crate::call_rules::tables::{self, About};
use crate::error::Result;
use crate::memory::Shared;
use crate::thread_registry::ThreadRegistry;

/// What counter values mean.
#[derive(Clone, Copy)]
pub struct Times {
    start: u64,
    end: u64,
    hz: f64,
}

impl Times {
    /// `end`: when calls that are open are taken to end.
    pub fn new(header: &shm::Header, hz: f64, end: u64) -> Times {
        Times {
            start: header.attach_ticks,
            end,
            hz,
        }
    }

    fn since_start(&self, ticks: u64) -> u64 {
        self.span(ticks.saturating_sub(self.start))
    }

    fn span(&self, ticks: u64) -> u64 {
        (ticks as f64 * 1e9 / self.hz).round() as u64
    }
}

/// A recording on its way into a profile, one part of the calls after the other.
pub struct Making<'a> {
    recorded: model::Recorded,
    namer: Namer,
    registry: &'a ThreadRegistry,
    times: Times,
    functions: u32,
    wanted: Vec<bool>,
    places: Vec<u32>,
    /// Of the calls that were looked at.
    seen: usize,
}

impl Making<'_> {
    pub fn new<'a>(
        calls: &CallList,
        shared: &Shared,
        header: &shm::Header,
        registry: &'a ThreadRegistry,
        times: Times,
    ) -> Result<Making<'a>> {
        let about = tables::about(shared, header)?;
        let mut recorded = model::Recorded {
            rules: rules_of(shared, header, &about)?,
            ..model::Recorded::default()
        };
        for slot in 0..u64::from(header.next_slot) {
            let at = shm::SLOTS_OFFSET + slot * shm::PAGE + area::STATE_OFFSET;
            let mut bytes = [0; 8];
            shared.read_bytes(at + offset_of!(area::State, dropped) as u64, &mut bytes)?;
            let dropped = u64::from_le_bytes(bytes);
            recorded.dropped = recorded.dropped.saturating_add(dropped);
        }
        // Callers whose callees are trees of their own have nothing left to show.
        let mut wanted = vec![false; calls.len()];
        for (index, call) in calls.last_first() {
            wanted[index] |= call.rule != area::NO_RULE;
            if let Some(parent) = call.parent
                && wanted[index]
            {
                wanted[parent as usize] = true;
            }
        }
        let count = wanted.iter().filter(|wanted| **wanted).count();
        recorded.calls.reserve_exact(count);
        Ok(Making {
            recorded,
            namer: Namer {
                about,
                numbers: HashMap::new(),
                names: Vec::new(),
            },
            registry,
            times,
            functions: header.functions,
            places: vec![0; wanted.len()],
            wanted,
            seen: 0,
        })
    }

    /// The next part; `slots`: those of all calls.
    pub fn add(&mut self, part: &Part, slots: &[u16]) {
        for call in part.calls() {
            let index = self.seen;
            self.seen += 1;
            if !self.wanted[index] || call.function >= self.functions {
                continue;
            }
            self.places[index] = self.recorded.calls.len() as u32;
            let made = self.made(part, call, slots[index]);
            self.recorded.calls.push(made);
        }
    }

    fn made(&mut self, part: &Part, call: &Call, slot: u16) -> model::Call {
        let times = self.times;
        let values = self
            .namer
            .values(part.read(call), &mut self.recorded.values);
        let rules = self.recorded.rules.len();
        let mut made = model::Call {
            // Below 2^53, so that readers of JSON that have no other numbers keep them apart.
            id: u64::from(slot) << 40 | call.position,
            parent: call.parent.map(|parent| self.places[parent as usize]),
            function: model::FuncId(call.function),
            rule: (call.rule.checked_sub(1)).filter(|rule| (*rule as usize) < rules),
            pid: self.registry.process(call.pid),
            tid: self.registry.thread(call.pid, call.tid),
            request: u64::from(call.request),
            entry_ns: times.since_start(call.entry),
            exit_ns: times.since_start(times.end),
            end: model::CallEnd::Open,
            values,
            ..model::Call::default()
        };
        match call.end {
            End::Open => {}
            End::Lost => {
                made.exit_ns = made.entry_ns;
                made.end = model::CallEnd::Lost;
            }
            End::Closed {
                exit,
                own,
                processor,
                slow,
                ..
            } => {
                made.exit_ns = times.since_start(exit);
                made.self_ns = times.span(own);
                let took = exit.saturating_sub(call.entry);
                made.waited_ns = times.span(took.saturating_sub(processor).saturating_sub(slow));
                made.end = if call.end.is_unwound() {
                    model::CallEnd::Unwound
                } else if call.end.is_suspended() {
                    model::CallEnd::Suspended
                } else if call.end.is_end_of_thread() {
                    model::CallEnd::ThreadEnded
                } else {
                    model::CallEnd::Returned
                };
            }
        }
        made
    }

    pub fn finish(mut self) -> model::Recorded {
        order::by_time(&mut self.recorded.calls);
        model::Recorded {
            names: self.namer.names,
            ..self.recorded
        }
    }
}

/// The rules, with how many calls each has chosen.
fn rules_of(shared: &Shared, header: &shm::Header, about: &About) -> Result<Vec<model::Rule>> {
    let mut all = Vec::new();
    for (index, rule) in about.rules.iter().enumerate() {
        let counter = header.rules_offset
            + rules::COUNTERS_OFFSET
            + (index as u64 + 1) % rules::MAX_RULES * rules::COUNTER_SIZE;
        let counter: rules::Counter = shared.read(counter)?;
        all.push(model::Rule {
            text: rule.text.clone(),
            kept: counter.kept,
        });
    }
    Ok(all)
}

/// Makes a call's bytes into named values.
struct Namer {
    about: About,
    numbers: HashMap<String, u32>,
    names: Vec<String>,
}

impl Namer {
    fn values(
        &mut self,
        (values, thrown): (&[u8], &[u8]),
        into: &mut model::CallValues,
    ) -> model::ValuesAt {
        if values.is_empty() && thrown.is_empty() {
            return model::ValuesAt::default();
        }
        let mut read = decode_all(&self.about.descriptions, values);
        // Several rules may have read the same.
        let mut known = HashSet::new();
        read.retain(|value| known.insert((value.name.clone(), value.when)));
        read.sort_by_key(|value| value.when != When::Entry);
        let mut thrown = decode_all(&self.about.thrown, thrown);
        // A rule may have asked for it itself.
        thrown.retain(|value| read.iter().all(|own| own.name != value.name));
        let all = read.into_iter().chain(thrown);
        let all: Vec<(u32, bool, String)> = all
            .map(|read| {
                let json = serde_json::to_string(&read.value).unwrap_or_else(|_| "null".into());
                let at_entry = read.when == When::Entry;
                (self.number(read.name), at_entry, json)
            })
            .collect();
        let values = all.iter().map(|(name, at_entry, json)| model::CallValue {
            name: *name,
            at_entry: *at_entry,
            json,
        });
        into.add(values)
    }

    fn number(&mut self, name: String) -> u32 {
        let names = &mut self.names;
        *self.numbers.entry(name).or_insert_with_key(|name| {
            names.push(name.clone());
            names.len() as u32 - 1
        })
    }
}
