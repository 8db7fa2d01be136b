//! Recorded calls for other tools: JSON lines, one object per call, and a trace of events with true
//! timestamps that Chrome's and Perfetto's viewers show as a time line.

use crate::tracks::Tracks;
use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::value::RawValue;
use thalweg_model::{Call, CallBlock, CallEnd, Profile};

/// One line of the JSON lines.
#[derive(Serialize)]
struct Line<'a> {
    id: u64,
    parent: Option<u64>,
    request: Option<u64>,
    rule: Option<&'a str>,
    function: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<&'a str>,
    module: &'a str,
    pid: u32,
    tid: u32,
    thread: &'a str,
    /// Nanoseconds since 1970.
    entry_unix_ns: u64,
    exit_unix_ns: Option<u64>,
    total_ns: u64,
    self_ns: u64,
    waiting_ns: u64,
    end: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entry: BTreeMap<&'a str, &'a RawValue>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    exit: BTreeMap<&'a str, &'a RawValue>,
}

/// The recorded calls of a profile, with the names that they refer to.
pub struct Calls<'a> {
    profile: &'a Profile,
    threads: BTreeMap<(u32, u32), &'a str>,
    /// Those of all calls of a file, where the profile has only some of them.
    ids: Option<&'a [u64]>,
}

impl<'a> Calls<'a> {
    pub fn new(profile: &'a Profile) -> Calls<'a> {
        let processes = profile.processes.iter();
        let threads = processes.flat_map(|process| {
            let threads = process.threads.iter();
            threads.map(|thread| ((process.pid, thread.tid), thread.name.as_str()))
        });
        Calls {
            profile,
            threads: threads.collect(),
            ids: None,
        }
    }

    /// Some of a file's.
    pub fn of_block(block: &CallBlock<'a>) -> Calls<'a> {
        Calls {
            ids: Some(block.ids),
            ..Calls::new(block.profile)
        }
    }

    pub fn all(&self) -> &'a [Call] {
        &self.profile.recorded.calls
    }

    pub fn function(&self, call: &Call) -> &'a str {
        let function = self.profile.functions.get(call.function.index());
        function.map_or("?", |function| &function.name)
    }

    /// How the function is declared: by debug information, or by its name if that has its
    /// arguments.
    pub fn signature(&self, call: &Call) -> Option<&'a str> {
        let declared = self.profile.recorded.signature(call.function);
        declared.or_else(|| Some(self.function(call)).filter(|name| name.contains('(')))
    }

    pub fn module(&self, call: &Call) -> &'a str {
        let function = self.profile.functions.get(call.function.index());
        let module = function.and_then(|f| self.profile.modules.get(f.module as usize));
        module.map_or("?", |module| &module.name)
    }

    pub fn thread(&self, call: &Call) -> &'a str {
        let name = self.threads.get(&(call.pid, call.tid));
        name.copied().unwrap_or_default()
    }

    pub fn rule(&self, call: &Call) -> Option<&'a str> {
        let rule = self.profile.recorded.rules.get(call.rule? as usize)?;
        Some(&rule.text)
    }

    /// Name, whether it was read when the call began, and the value as JSON.
    pub fn values(&self, call: &'a Call) -> impl Iterator<Item = (&'a str, bool, &'a str)> {
        let recorded = &self.profile.recorded;
        recorded.values.at(call.values).filter_map(|value| {
            let name = recorded.names.get(value.name as usize)?;
            Some((name.as_str(), value.at_entry, value.json))
        })
    }

    /// Nanoseconds since 1970.
    pub fn unix_ns(&self, since_start: u64) -> u64 {
        self.profile
            .meta
            .created_unix_ns
            .saturating_add(since_start)
    }

    fn json_values(&self, call: &'a Call, at_entry: bool) -> BTreeMap<&'a str, &'a RawValue> {
        let chosen = self.values(call).filter(|value| value.1 == at_entry);
        chosen
            .filter_map(|(name, _, json)| Some((name, serde_json::from_str(json).ok()?)))
            .collect()
    }

    /// One call, as one line.
    pub fn write_line(&self, call: &'a Call, out: &mut impl Write) -> io::Result<()> {
        let id_of = |index: u32| match self.ids {
            Some(ids) => ids.get(index as usize).copied(),
            None => self.all().get(index as usize).map(|call| call.id),
        };
        let line = Line {
            id: call.id,
            parent: call.parent.and_then(id_of),
            request: (call.request != 0).then_some(call.request),
            rule: self.rule(call),
            function: self.function(call),
            signature: self.signature(call),
            module: self.module(call),
            pid: call.pid,
            tid: call.tid,
            thread: self.thread(call),
            entry_unix_ns: self.unix_ns(call.entry_ns),
            exit_unix_ns: has_ended(call).then(|| self.unix_ns(call.exit_ns)),
            total_ns: call.total_ns(),
            self_ns: call.self_ns,
            waiting_ns: call.waited_ns,
            end: call.end.word(),
            entry: self.json_values(call, true),
            exit: self.json_values(call, false),
        };
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)
    }
}

fn has_ended(call: &Call) -> bool {
    !matches!(call.end, CallEnd::Open | CallEnd::Lost)
}

pub fn write_lines(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    let calls = Calls::new(profile);
    for call in calls.all() {
        calls.write_line(call, &mut out)?;
    }
    out.flush()
}

/// Trace events: complete ones with their duration, times in microseconds.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    ph: &'static str,
    cat: &'static str,
    pid: u32,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: BTreeMap<&'a str, serde_json::Value>,
}

pub fn write_trace(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    let calls = Calls::new(profile);
    let microseconds = |ns: u64| ns as f64 / 1e3;
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut first = true;
    let mut put = |event: &Event| -> io::Result<()> {
        if !std::mem::take(&mut first) {
            writeln!(out, ",")?;
        }
        serde_json::to_writer(&mut out, event)?;
        Ok(())
    };
    for ((pid, tid), name) in &calls.threads {
        put(&Event {
            name: "thread_name",
            ph: "M",
            cat: "__metadata",
            pid: *pid,
            tid: *tid,
            ts: 0.0,
            dur: None,
            args: BTreeMap::from([("name", (*name).into())]),
        })?;
    }
    let tracks = Tracks::new(calls.all());
    for (place, call) in calls.all().iter().enumerate() {
        let mut args: BTreeMap<&str, serde_json::Value> = BTreeMap::new();
        args.insert("id", call.id.into());
        args.insert("self_us", microseconds(call.self_ns).into());
        args.insert("waiting_us", microseconds(call.waited_ns).into());
        args.insert("end", call.end.word().into());
        if let Some(rule) = calls.rule(call) {
            args.insert("rule", rule.into());
        }
        if let Some(signature) = calls.signature(call) {
            args.insert("signature", signature.into());
        }
        if call.request != 0 {
            args.insert("request", call.request.into());
        }
        for (name, _, json) in calls.values(call) {
            let value = serde_json::from_str(json).unwrap_or(serde_json::Value::Null);
            args.insert(name, value);
        }
        put(&Event {
            name: calls.function(call),
            ph: "X",
            cat: "call",
            pid: call.pid,
            tid: tracks.at(place),
            ts: microseconds(call.entry_ns),
            dur: Some(microseconds(call.total_ns())),
            args,
        })?;
    }
    writeln!(out, "]}}")?;
    out.flush()
}
