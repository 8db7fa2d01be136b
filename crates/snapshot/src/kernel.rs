//! System calls: from the functions that make them, which the planner knows, and how often those were called.
//!
//! ```text
//! survey   which functions of a module have `syscall` instructions, and what one call of each makes   patch/kernel.rs
//!          all of them are counted, whatever the filters say; those that cannot be are named in a note
//!          where it differs from call to call there is a probe before the instruction               patch/entering.rs
//! snapshot  calls of a context x system calls of a call = system calls of the context
//!          or what its children for system calls have counted                                          shm::kernel
//! ```
//!
//! A system call's time is that of the function which makes it: its own, waiting included.

use thalweg_abi as shm;
use thalweg_model::{self as model, FuncId, Metric, NodeFlags};

use crate::error::Result;
use crate::memory::Shared;

/// System calls that were counted where they were made, of one thread.
#[derive(Default)]
pub struct Counted {
    /// Index of the context, number, how many.
    calls: Vec<(u32, u32, u64)>,
    /// Those of which nobody knows who made them.
    stray: u64,
}

impl Counted {
    pub fn add(&mut self, context: Option<u32>, number: u32, calls: u64) {
        match context {
            Some(context) => self.calls.push((context, number, calls)),
            None => self.stray = self.stray.saturating_add(calls),
        }
    }

    /// Charges the contexts with them. In a function that has no probe at each of its system calls those that have one
    /// count nothing.
    pub fn charge(self, thread: &mut model::Thread, functions: &mut [model::EntersKernel]) -> u64 {
        let mut stray = self.stray;
        for (context, number, calls) in self.calls {
            let function = thread.nodes[context as usize].function;
            let found = functions.binary_search_by_key(&function, |one| one.function);
            match found.map(|index| &mut functions[index].made) {
                Ok(model::Made::Counted(by_number)) => {
                    let place = by_number.iter().position(|known| known.0 == number);
                    match place {
                        Some(place) => {
                            by_number[place].1 = by_number[place].1.saturating_add(calls)
                        }
                        None => by_number.push((number, calls)),
                    }
                    let mut metrics = model::Metrics::default();
                    metrics.set(Metric::SyscallCalls, calls);
                    thread.metrics.add(context, &metrics);
                }
                Ok(_) => {}
                Err(_) => stray = stray.saturating_add(calls),
            }
        }
        stray
    }
}

/// Those of contexts that were cut or found no room: the function, the number, how many.
pub fn cut(shared: &Shared) -> Result<Vec<(FuncId, u32, u64)>> {
    let len = shm::kernel::CUTS * shm::kernel::CUT_SIZE;
    let bytes = shared.read_vec(shm::CUT_SYSTEM_CALLS_OFFSET, len)?;
    let (words, _) = bytes.as_chunks::<8>();
    let entries = words.chunks_exact(2).map(|pair| {
        let [key, calls] = [pair[0], pair[1]].map(u64::from_le_bytes);
        (shm::kernel::of_cut_key(key), calls)
    });
    let known = entries.filter_map(|(key, calls)| {
        let (function, number) = key.filter(|_| calls > 0)?;
        Some((FuncId(function), number, calls))
    });
    Ok(known.collect())
}

/// Charges functions with what their contexts had made that were cut: beside what else is known of these, in the process's first thread.
/// Says of how many nobody knows who made them.
pub fn charge_cut(profile: &mut model::Profile, cut: &[(FuncId, u32, u64)]) -> u64 {
    let (functions, processes) = (&mut profile.enters_kernel, &mut profile.processes);
    let thread = processes.first_mut().and_then(|p| p.threads.first_mut());
    let Some(thread) = thread.filter(|_| !cut.is_empty()) else {
        let calls = cut.iter().map(|(.., calls)| *calls);
        return calls.fold(0, u64::saturating_add);
    };
    let mut counted = Counted::default();
    for &(function, number, calls) in cut {
        let known = functions.binary_search_by_key(&function, |one| one.function);
        if known.is_err() {
            counted.add(None, number, calls);
            continue;
        }
        let folded = |node: &model::Node| {
            node.flags.contains(NodeFlags::FOLDED) && node.function == function
        };
        let place = thread.nodes.iter().rposition(folded).unwrap_or_else(|| {
            thread.nodes.push(model::Node {
                function,
                flags: NodeFlags::FOLDED,
                ..model::Node::default()
            });
            thread.nodes.len() - 1
        });
        counted.add(Some(place as u32), number, calls);
    }
    counted.charge(thread, functions)
}

/// What is said of those of which nobody knows who made them.
pub fn stray(calls: u64) -> Option<String> {
    (calls > 0)
        .then(|| format!("{calls} system calls are in no figure: it is not known who made them"))
}

/// Charges every context with the system calls that its calls have made.
pub fn charge(profile: &mut model::Profile) {
    if profile.enters_kernel.is_empty() {
        return;
    }
    let mut times = vec![0u64; profile.functions.len()];
    for one in &profile.enters_kernel {
        times[one.function.index()] = one.times();
    }
    let threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    for thread in threads {
        let mut of_callees = vec![0u64; thread.nodes.len()];
        for node in &thread.nodes {
            if let Some(parent) = node.parent {
                let sum = &mut of_callees[parent as usize];
                *sum = sum.saturating_add(node.wall_ns);
            }
        }
        for ((index, node), of_callees) in (0..).zip(&thread.nodes).zip(of_callees) {
            let times = times[node.function.index()];
            let counted = thread.metrics.at(index).get(Metric::SyscallCalls);
            let calls = counted.saturating_add(node.calls.saturating_mul(times));
            if calls == 0 {
                continue;
            }
            // Callees of contexts that found no room are in their cum.
            let of_callees = match node.flags.contains(NodeFlags::FOLDED) {
                true => node.total_ns.saturating_sub(node.self_ns),
                false => of_callees,
            };
            let own = node.wall_ns.saturating_sub(of_callees);
            thread.metrics.set(index, Metric::SyscallCalls, calls);
            thread.metrics.set(index, Metric::SyscallTime, own);
        }
    }
}
