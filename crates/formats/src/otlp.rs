//! OpenTelemetry's profiles signal: one `ProfilesData` message
//! (`opentelemetry.proto.profiles.v1development`).
//!
//! Per process one resource, and in it one profile per kind of figure: calls, and time in the
//! function itself. Calls that are a lower bound have the attribute `thalweg.calls.at_least`.
//! Names, stacks and threads stand once in the dictionary. Index 0 of every table is its empty
//! element, as the format wants it. Samples carry no timestamps: the format lets them be sums over
//! the time of the profile.

use std::collections::HashMap;
use std::io::{self, Write};

use thalweg_analysis::Bounds;
use thalweg_model::{FuncId, Metric, Process, Profile, Thread, Unit};

use crate::protobuf::Message;
use crate::stacks::innermost_first;

/// Fields of `ProfilesDictionary`.
const MAPPINGS: u32 = 1;
const LOCATIONS: u32 = 2;
const FUNCTIONS: u32 = 3;
const LINKS: u32 = 4;
const STRINGS: u32 = 5;
const ATTRIBUTES: u32 = 6;
const STACKS: u32 = 7;

pub fn write(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    let mut dictionary = Dictionary::from_profile(profile);
    let mut data = Message::new();
    for process in &profile.processes {
        data.message(1, |resource_profiles| {
            resource_profiles.message(1, |resource| resource_attributes(process, resource));
            resource_profiles.message(2, |scope_profiles| {
                scope_profiles.message(1, |scope| {
                    scope.text(1, "thalweg");
                    scope.text(2, &profile.meta.version);
                });
                process_profiles(profile, process, &mut dictionary, scope_profiles);
            });
        });
        // Resource by resource, so that only the dictionary has to wait for the end.
        out.write_all(data.as_bytes())?;
        data.clear();
    }
    data.element(2, dictionary.message.as_bytes());
    out.write_all(data.as_bytes())?;
    out.flush()
}

struct Dictionary {
    message: Message,
    strings: HashMap<String, u64>,
    stacks: u64,
    attributes: u64,
}

impl Dictionary {
    fn from_profile(profile: &Profile) -> Dictionary {
        let mut message = Message::new();
        for table in [
            MAPPINGS, LOCATIONS, FUNCTIONS, LINKS, STRINGS, ATTRIBUTES, STACKS,
        ] {
            message.element(table, &[]);
        }
        let mut dictionary = Dictionary {
            message,
            strings: HashMap::from([(String::new(), 0)]),
            stacks: 1,
            attributes: 1,
        };
        for module in &profile.modules {
            let file = dictionary.string(match module.path.as_str() {
                "" => &module.name,
                path => path,
            });
            let build_id = (!module.build_id.is_empty()).then(|| {
                dictionary.attribute("process.executable.build_id.gnu", |value| {
                    value.text(1, &module.build_id);
                })
            });
            dictionary.message.message(MAPPINGS, |mapping| {
                mapping.number(4, file);
                mapping.numbers(5, build_id);
            });
        }
        for (index, function) in (1u64..).zip(&profile.functions) {
            let name = dictionary.string(&function.name);
            let file = dictionary.string(function.file.as_deref().unwrap_or_default());
            dictionary.message.message(FUNCTIONS, |wire| {
                wire.number(1, name);
                wire.number(2, name);
                wire.number(3, file);
                wire.number(4, function.line.into());
            });
            dictionary.message.message(LOCATIONS, |location| {
                location.number(1, u64::from(function.module) + 1);
                location.number(2, function.address);
                location.message(3, |line| {
                    line.number(1, index);
                    line.number(2, function.line.into());
                });
            });
        }
        dictionary
    }

    fn string(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.strings.get(text) {
            return number;
        }
        let number = self.strings.len() as u64;
        self.strings.insert(text.to_string(), number);
        self.message.element(STRINGS, text.as_bytes());
        number
    }

    fn attribute(&mut self, key: &str, value: impl FnOnce(&mut Message)) -> u64 {
        let key = self.string(key);
        self.message.message(ATTRIBUTES, |attribute| {
            attribute.number(1, key);
            attribute.message(2, value);
        });
        self.attributes += 1;
        self.attributes - 1
    }

    fn stack(&mut self, functions: impl Iterator<Item = FuncId>) -> u64 {
        self.message.message(STACKS, |stack| {
            stack.numbers(1, functions.map(|function| u64::from(function) + 1));
        });
        self.stacks += 1;
        self.stacks - 1
    }
}

fn resource_attributes(process: &Process, resource: &mut Message) {
    let mut attribute = |key: &str, fill: &dyn Fn(&mut Message)| {
        resource.message(1, |pair| {
            pair.text(1, key);
            pair.message(2, fill);
        });
    };
    attribute("process.pid", &|value| value.number(3, process.pid.into()));
    if let Some(program) = process.command.first() {
        attribute("process.executable.path", &|value| value.text(1, program));
        attribute("process.command_line", &|value| {
            value.text(1, &process.command.join(" "));
        });
        let name = program.rsplit('/').next().unwrap_or(program);
        attribute("service.name", &|value| value.text(1, name));
    }
}

/// One sample of each kind per context; the kinds share the stacks.
fn process_profiles(
    profile: &Profile,
    process: &Process,
    dictionary: &mut Dictionary,
    out: &mut Message,
) {
    let mut calls = Kind::new(dictionary, "calls", "{call}");
    let mut time = profile.meta.timed.then(|| match profile.meta.weighed_by {
        None => Kind::new(dictionary, "time", "ns"),
        Some(metric) => Kind::for_metric(dictionary, metric),
    });
    let others = profile.meta.metrics.iter();
    let mut others: Vec<(Metric, Kind)> = others
        .filter(|_| profile.meta.weighed_by.is_none())
        .map(|&metric| (metric, Kind::for_metric(dictionary, metric)))
        .collect();
    let bounds = Bounds::from_profile(profile);
    let at_least = bounds
        .any()
        .then(|| dictionary.attribute("thalweg.calls.at_least", |value| value.number(2, 1)));
    for thread in &process.threads {
        let attributes = thread_attributes(thread, dictionary);
        let of_bounds: Vec<u64> = attributes.iter().copied().chain(at_least).collect();
        let are_bounds = bounds.contexts(&thread.nodes);
        for (index, node) in (0..).zip(&thread.nodes) {
            let metrics = thread.metrics.at(index);
            if node.calls == 0 && node.self_ns == 0 && metrics.is_empty() {
                continue;
            }
            let stack = dictionary.stack(innermost_first(thread, node));
            let of_calls = match are_bounds[index as usize] {
                true => &of_bounds,
                false => &attributes,
            };
            calls.sample(stack, of_calls, node.calls);
            if let Some(time) = &mut time {
                time.sample(stack, &attributes, node.self_ns);
            }
            for (metric, kind) in &mut others {
                kind.sample(stack, &attributes, metrics.get(*metric));
            }
        }
    }
    let others = others.into_iter().map(|(_, kind)| kind);
    for kind in std::iter::once(calls).chain(time).chain(others) {
        out.message(2, |wire| {
            wire.message(1, |sample_type| {
                sample_type.number(1, kind.name);
                sample_type.number(2, kind.unit);
            });
            for sample in &kind.samples {
                wire.element(2, sample.as_bytes());
            }
            wire.fixed64(3, profile.meta.created_unix_ns);
            wire.number(4, profile.meta.duration_ns);
        });
    }
}

fn thread_attributes(thread: &Thread, dictionary: &mut Dictionary) -> Vec<u64> {
    let id = dictionary.attribute("thread.id", |value| value.number(3, thread.tid.into()));
    let name = (!thread.name.is_empty())
        .then(|| dictionary.attribute("thread.name", |value| value.text(1, &thread.name)));
    std::iter::once(id).chain(name).collect()
}

struct Kind {
    name: u64,
    unit: u64,
    samples: Vec<Message>,
}

impl Kind {
    fn new(dictionary: &mut Dictionary, name: &str, unit: &str) -> Kind {
        Kind {
            name: dictionary.string(name),
            unit: dictionary.string(unit),
            samples: Vec::new(),
        }
    }

    fn for_metric(dictionary: &mut Dictionary, metric: Metric) -> Kind {
        let unit = match metric.unit() {
            Unit::Bytes => "By",
            Unit::Nanoseconds => "ns",
            Unit::Count => "1",
        };
        Kind::new(dictionary, metric.name(), unit)
    }

    fn sample(&mut self, stack: u64, attributes: &[u64], value: u64) {
        if value == 0 {
            return;
        }
        let mut sample = Message::new();
        sample.number(1, stack);
        sample.numbers(2, attributes.iter().copied());
        sample.numbers(4, [value]);
        self.samples.push(sample);
    }
}
