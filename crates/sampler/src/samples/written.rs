//! All that was seen, as bytes, for those who read the target while another looks.
//!
//! It is a profile of its own kind: its first module stands for the target's catalog, and a function of it has its number there in the
//! place of an address. A process stands in it once for each kind of events, whose name is its command.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use thalweg_model as model;
use thalweg_model::{Metric, Sampling};

use super::functions::{Function, FunctionId, Functions, ModuleName};
use super::looks::{Kind, Looks, Totals, Track, nodes, timeline};
use super::tree::{Seen, Tree};
use super::waits::Waits;
use crate::error::{Error, Result};

/// The module of functions that have probes.
const CATALOG: u32 = 0;

impl Looks {
    /// For another process; `more` is said as well.
    pub(super) fn encode(&self, more: Vec<String>) -> Result<Vec<u8>> {
        let mut profile = model::Profile {
            modules: vec![model::Module::default()],
            notes: self.notes.iter().cloned().chain(more).collect(),
            ..model::Profile::default()
        };
        let numbers = self.functions.encode(&mut profile, CATALOG);
        // It is refused without.
        profile.meta.sampling = Some(Sampling::default());
        for track in &self.tracks {
            let command = match track.kind {
                Kind::Timer => {
                    profile.meta.sampling = Some(track.sampling());
                    for function in track.waiting() {
                        if let Some(number) = numbers[function.0 as usize] {
                            profile.functions[number].waits = true;
                        }
                    }
                    Vec::new()
                }
                Kind::Metric(metric) => {
                    profile.meta.counting.push(track.counting(metric));
                    vec![metric.name().to_owned()]
                }
            };
            let first = profile.processes.len();
            for ((pid, tid), tree) in track.all() {
                let known = profile.processes[first..].iter().position(|p| p.pid == pid);
                let process = known.map_or_else(
                    || {
                        profile.processes.push(model::Process {
                            pid,
                            command: command.clone(),
                            ..model::Process::default()
                        });
                        profile.processes.len() - 1
                    },
                    |place| first + place,
                );
                let (samples, places) = nodes(tree, &numbers);
                let mut timeline = timeline(tree, &places, |ns| ns, |place| place);
                timeline.period_ns = track.every;
                if let Some(waits) = track.waits.of.get(&(pid, tid)) {
                    timeline.waits.clone_from(waits);
                }
                profile.processes[process].threads.push(model::Thread {
                    tid,
                    name: tree.name.clone(),
                    start_ns: tree.first_ns,
                    end_ns: tree.last_ns,
                    samples,
                    timeline,
                    ..model::Thread::default()
                });
            }
            if track.kind == Kind::Timer {
                add_waits(track, &mut profile);
            }
        }
        model::write(&profile)
            .map_err(|error| Error::Damaged(format!("looks cannot be written down: {error}")))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Looks> {
        let profile = model::read(&mut &*bytes).map_err(|error| {
            Error::Damaged(format!("the looks that the target carries: {error}"))
        })?;
        let modules: Vec<Arc<ModuleName>> = profile
            .modules
            .iter()
            .map(|module| {
                Arc::new(ModuleName {
                    name: module.name.clone(),
                    path: module.path.clone(),
                    build_id: module.build_id.clone(),
                    functions: module.functions_total,
                })
            })
            .collect();
        let mut functions = Functions::default();
        let ids = profile.functions.iter().map(|function| {
            functions.id(match function.module {
                CATALOG => Function::Probed(u32::try_from(function.address).unwrap_or(u32::MAX)),
                module => Function::Unprobed {
                    module: modules[module as usize].clone(),
                    address: function.address,
                    name: function.name.clone(),
                },
            })
        });
        let ids: Vec<FunctionId> = ids.collect();
        let mut tracks = tracks(&profile.meta);
        if let Some(timer) = tracks.iter_mut().find(|track| track.kind == Kind::Timer) {
            let all = ids.iter().zip(&profile.functions);
            let waiting = all.filter(|(_, function)| function.waits);
            timer.known_to_wait = waiting.map(|(id, _)| *id).collect();
        }
        for process in profile.processes {
            let name = process.command.first();
            let kind = name.map_or(Some(Kind::Timer), |name| {
                Metric::named(name).map(Kind::Metric)
            });
            let Some(track) = tracks.iter_mut().find(|track| Some(track.kind) == kind) else {
                continue;
            };
            for thread in process.threads {
                let seen = thread.samples.iter().map(|node| Seen {
                    parent: node.parent,
                    function: ids[node.function.index()],
                    counted: node.counted,
                    own: node.own,
                });
                let mut tree = Tree::new(thread.start_ns, thread.name);
                track.every = track.every.max(thread.timeline.period_ns);
                let times = thread.timeline.samples.iter();
                tree.times = times.map(|one| (one.at_ns, one.sample)).collect();
                let whose = (process.pid, thread.tid);
                track.waits.of.insert(whose, thread.timeline.waits);
                tree.nodes = seen.collect();
                tree.last_ns = thread.end_ns;
                if tree.nodes.is_empty() && tree.times.is_empty() {
                    continue;
                }
                track.ended.push(((process.pid, thread.tid), tree));
            }
        }
        Ok(Looks {
            functions,
            tracks,
            notes: profile.notes,
        })
    }
}

/// Of threads that only slept.
fn add_waits(track: &Track, profile: &mut model::Profile) {
    let seen: HashSet<(u32, u32)> = track.all().into_iter().map(|(whose, _)| whose).collect();
    let waits = track.waits.of.iter();
    for (&(pid, tid), waits) in waits.filter(|(whose, _)| !seen.contains(whose)) {
        let timeline = model::Timeline {
            waits: waits.clone(),
            ..model::Timeline::default()
        };
        let thread = model::Thread {
            tid,
            timeline,
            ..model::Thread::default()
        };
        profile.processes.push(model::Process {
            pid,
            threads: vec![thread],
            ..model::Process::default()
        });
    }
}

/// As they were written down, without trees. Nobody looked on a timer whose period is 0.
fn tracks(meta: &model::Meta) -> Vec<Track> {
    let track = |kind: Kind, period: u64, in_kernel: bool, totals: Totals| Track {
        kind,
        period,
        in_kernel,
        trees: HashMap::new(),
        ended: Vec::new(),
        totals,
        instructions: HashMap::new(),
        known_to_wait: BTreeSet::new(),
        every: 1,
        waits: Waits::default(),
    };
    let timer = meta.sampling.filter(|sampling| sampling.period_ns > 0);
    let timer = timer.map(|sampling| {
        let totals = Totals {
            looks: sampling.samples,
            lost: sampling.lost,
            cut_short: sampling.cut_short,
            in_probes: sampling.in_probes,
            no_room: 0,
        };
        track(Kind::Timer, sampling.period_ns, true, totals)
    });
    let counted = meta.counting.iter().map(|one| {
        let totals = Totals {
            looks: one.samples,
            lost: one.lost,
            cut_short: one.cut_short,
            in_probes: one.in_probes,
            no_room: one.nobodys,
        };
        track(Kind::Metric(one.metric), one.period, one.in_kernel, totals)
    });
    timer.into_iter().chain(counted).collect()
}
