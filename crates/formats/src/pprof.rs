//! pprof's `profile.proto`, gzipped: what `go tool pprof` and most continuous profilers read.
//!
//! One sample per context with two values, calls and time in the function itself; pprof adds up the
//! rest and counts nothing twice under recursion. Where call sites were recorded, each caller's
//! location is the place of its call.
//!
//! Process and thread are labels, and so is `calls: at least` where a function was off for a while:
//! its calls are a lower bound. The profile's notes, which say so too, are comments. Samples carry
//! no timestamps, and none are needed.
//!
//! Written field by field: only names stand in memory twice.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use thalweg_analysis::Bounds;
use thalweg_model::{FuncId, Metric, Node, Profile, SiteId, Thread};

use crate::protobuf::Message;

/// Field numbers of `Profile`, for writer and reader.
pub(crate) mod field {
    pub const SAMPLE_TYPE: u32 = 1;
    pub const SAMPLE: u32 = 2;
    pub const MAPPING: u32 = 3;
    pub const LOCATION: u32 = 4;
    pub const FUNCTION: u32 = 5;
    pub const STRING: u32 = 6;
    pub const TIME_NANOS: u32 = 9;
    pub const DURATION_NANOS: u32 = 10;
    pub const COMMENT: u32 = 13;
    pub const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

pub fn write(profile: &Profile, out: impl Write) -> io::Result<()> {
    let mut writer = Writer {
        out: GzEncoder::new(out, Compression::default()),
        strings: HashMap::new(),
        sites: HashMap::new(),
        message: Message::new(),
    };
    writer.string("")?;
    writer.head(profile)?;
    writer.tables(profile)?;
    for process in &profile.processes {
        for thread in &process.threads {
            writer.samples(profile, process.pid, thread)?;
        }
    }
    writer.out.finish()?.flush()
}

/// What has values of its own beside calls and time.
fn beside(profile: &Profile) -> impl Iterator<Item = Metric> {
    let all = profile.meta.metrics.iter().copied();
    all.filter(|_| profile.meta.weighed_by.is_none())
}

struct Writer<W: Write> {
    out: GzEncoder<W>,
    /// Strings written so far, by their number.
    strings: HashMap<String, u64>,
    /// Locations of call sites, by the function that they count as.
    sites: HashMap<(FuncId, SiteId), u64>,
    message: Message,
}

impl<W: Write> Writer<W> {
    fn string(&mut self, text: &str) -> io::Result<u64> {
        if let Some(&number) = self.strings.get(text) {
            return Ok(number);
        }
        let number = self.strings.len() as u64;
        self.strings.insert(text.to_string(), number);
        let mut message = Message::new();
        message.element(field::STRING, text.as_bytes());
        self.out.write_all(message.as_bytes())?;
        Ok(number)
    }

    fn emit(&mut self, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        self.message.clear();
        fill(&mut self.message);
        self.out.write_all(self.message.as_bytes())
    }

    fn head(&mut self, profile: &Profile) -> io::Result<()> {
        let mut kinds = vec![("calls", "count")];
        if let Some(metric) = profile.meta.weighed_by {
            kinds.push((metric.name(), metric.unit().name()));
        } else if profile.meta.timed {
            kinds.push(("time", "nanoseconds"));
        }
        let shown = kinds[kinds.len() - 1].0;
        for metric in beside(profile) {
            kinds.push((metric.name(), metric.unit().name()));
        }
        for (kind, unit) in &kinds {
            let (kind, unit) = (self.string(kind)?, self.string(unit)?);
            self.emit(|message| {
                message.message(field::SAMPLE_TYPE, |value_type| {
                    value_type.number(1, kind);
                    value_type.number(2, unit);
                });
            })?;
        }
        let default = self.string(shown)?;
        self.emit(|message| {
            message.number(field::TIME_NANOS, profile.meta.created_unix_ns);
            message.number(field::DURATION_NANOS, profile.meta.duration_ns);
            message.number(field::DEFAULT_SAMPLE_TYPE, default);
        })?;
        for note in &profile.notes {
            let note = self.string(note)?;
            self.emit(|message| message.number(field::COMMENT, note))?;
        }
        Ok(())
    }

    /// Mapping, location and function numbers are our indices, counted from 1. A location is the
    /// start of its function.
    fn tables(&mut self, profile: &Profile) -> io::Result<()> {
        let mut ends = vec![0u64; profile.modules.len()];
        for function in &profile.functions {
            let end = &mut ends[function.module as usize];
            *end = (*end).max(function.address.saturating_add(1));
        }
        for ((id, module), end) in (1u64..).zip(&profile.modules).zip(ends) {
            let file = self.string(match module.path.as_str() {
                "" => &module.name,
                path => path,
            })?;
            let build_id = self.string(&module.build_id)?;
            self.emit(|message| {
                message.message(field::MAPPING, |mapping| {
                    mapping.number(1, id);
                    mapping.number(3, end);
                    mapping.number(5, file);
                    mapping.number(6, build_id);
                    // Symbols are here already: functions, file names, line numbers.
                    mapping.number(7, 1);
                    mapping.number(8, 1);
                    mapping.number(9, 1);
                });
            })?;
        }
        for (id, function) in (1u64..).zip(&profile.functions) {
            let name = self.string(&function.name)?;
            let file = self.string(function.file.as_deref().unwrap_or_default())?;
            self.emit(|message| {
                message.message(field::FUNCTION, |wire| {
                    wire.number(1, id);
                    wire.number(2, name);
                    wire.number(3, name);
                    wire.number(4, file);
                    wire.number(5, function.line.into());
                });
                message.message(field::LOCATION, |location| {
                    location.number(1, id);
                    location.number(2, u64::from(function.module) + 1);
                    location.number(3, function.address);
                    location.message(4, |line| {
                        line.number(1, id);
                        line.number(2, function.line.into());
                    });
                });
            })?;
        }
        Ok(())
    }

    /// The innermost function, and where each of the others called the one before it.
    fn locations(
        &mut self,
        profile: &Profile,
        thread: &Thread,
        node: &Node,
    ) -> io::Result<Vec<u64>> {
        let mut locations = vec![u64::from(node.function) + 1];
        let mut below = node;
        while let Some(parent) = below.parent {
            let caller = &thread.nodes[parent as usize];
            locations.push(self.calling(profile, caller.function, below.site)?);
            below = caller;
        }
        Ok(locations)
    }

    fn calling(
        &mut self,
        profile: &Profile,
        function: FuncId,
        site: Option<SiteId>,
    ) -> io::Result<u64> {
        let plain = u64::from(function) + 1;
        let Some(id) = site else { return Ok(plain) };
        let site = &profile.sites[id.index() as usize];
        if !site.is_in(&profile.functions[function]) {
            return Ok(plain);
        }
        if let Some(&known) = self.sites.get(&(function, id)) {
            return Ok(known);
        }
        let number = (profile.functions.len() + self.sites.len()) as u64 + 1;
        self.sites.insert((function, id), number);
        self.emit(|message| {
            message.message(field::LOCATION, |location| {
                location.number(1, number);
                location.number(2, u64::from(site.module) + 1);
                location.number(3, site.address);
                location.message(4, |line| {
                    line.number(1, plain);
                    line.number(2, site.line.into());
                });
            });
        })?;
        Ok(number)
    }

    fn samples(&mut self, profile: &Profile, pid: u32, thread: &Thread) -> io::Result<()> {
        let (pid_key, tid_key) = (self.string("pid")?, self.string("tid")?);
        let (name_key, name) = (self.string("thread")?, self.string(&thread.name)?);
        let bounds = Bounds::from_profile(profile);
        let at_least = match bounds.any() {
            true => bounds.contexts(&thread.nodes),
            false => vec![false; thread.nodes.len()],
        };
        let (calls_key, bound) = match bounds.any() {
            true => (self.string("calls")?, self.string("at least")?),
            false => (0, 0),
        };
        for (index, node) in (0..).zip(&thread.nodes) {
            let metrics = thread.metrics.at(index);
            if node.calls == 0 && node.self_ns == 0 && metrics.is_empty() {
                continue;
            }
            let locations = self.locations(profile, thread, node)?;
            self.emit(|message| {
                message.message(field::SAMPLE, |sample| {
                    sample.numbers(1, locations.iter().copied());
                    let time = profile.meta.timed.then_some(node.self_ns);
                    let others = beside(profile).map(|metric| metrics.get(metric));
                    sample.numbers(2, std::iter::once(node.calls).chain(time).chain(others));
                    for (key, number) in [(pid_key, pid), (tid_key, thread.tid)] {
                        sample.message(3, |label| {
                            label.number(1, key);
                            label.number(3, number.into());
                        });
                    }
                    if at_least[index as usize] {
                        sample.message(3, |label| {
                            label.number(1, calls_key);
                            label.number(2, bound);
                        });
                    }
                    if name != 0 {
                        sample.message(3, |label| {
                            label.number(1, name_key);
                            label.number(2, name);
                        });
                    }
                });
            })?;
        }
        Ok(())
    }
}
