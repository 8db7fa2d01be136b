//! All that was seen, as bytes, for those who read the target while another looks.
//!
//! It is a profile of its own kind: its first module stands for the target's catalog, and a function of it has its number there in the
//! place of an address. A process stands in it once for each kind of events, whose name is its command.

use std::collections::HashMap;
use std::sync::Arc;

use thalweg_model as model;
use thalweg_model::{Metric, Sampling};

use super::functions::{Function, FunctionId, Functions, ModuleName};
use super::looks::{Kind, Looks, Totals, Track, nodes};
use super::tree::{Seen, Tree};
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
                profile.processes[process].threads.push(model::Thread {
                    tid,
                    name: tree.name.clone(),
                    start_ns: tree.first_ns,
                    end_ns: tree.last_ns,
                    samples: nodes(tree, &numbers),
                    ..model::Thread::default()
                });
            }
        }
        model::write(&profile)
            .map_err(|error| Error::Other(format!("looks cannot be written down: {error}")))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Looks> {
        let profile = model::read(&mut &*bytes)
            .map_err(|error| Error::Other(format!("the looks that the target carries: {error}")))?;
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
                    function: ids[node.function as usize],
                    counted: node.counted,
                    own: node.own,
                });
                let mut tree = Tree::new(thread.start_ns, thread.name);
                tree.nodes = seen.collect();
                tree.last_ns = thread.end_ns;
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

/// As they were written down, without trees. Nobody looked on a timer whose period is 0.
fn tracks(meta: &model::Meta) -> Vec<Track> {
    let track = |kind: Kind, period: u64, in_kernel: bool, totals: Totals| Track {
        kind,
        period,
        in_kernel,
        trees: HashMap::new(),
        ended: Vec::new(),
        totals,
    };
    let timer = meta.sampling.filter(|sampling| sampling.period_ns > 0);
    let timer = timer.map(|sampling| {
        let totals = Totals {
            looks: sampling.looks,
            lost: sampling.lost,
            cut_short: sampling.cut_short,
            in_probes: sampling.in_probes,
            no_room: 0,
        };
        track(Kind::Timer, sampling.period_ns, true, totals)
    });
    let counted = meta.counting.iter().map(|one| {
        let totals = Totals {
            looks: one.looks,
            lost: one.lost,
            cut_short: one.cut_short,
            in_probes: one.in_probes,
            no_room: one.nobodys,
        };
        track(Kind::Metric(one.metric), one.period, one.in_kernel, totals)
    });
    timer.into_iter().chain(counted).collect()
}
