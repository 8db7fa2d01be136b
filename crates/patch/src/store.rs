//! Plans as bytes: they depend on the file alone, and are kept with its module (`thalweg_symbols::store`).

use crate::interface::{
    Event, FragmentPlan, FunctionPlan, Method, ModulePlan, PatchForm, Probe, SkipReason, Skipped,
    Window,
};
use crate::kernel::{EntersKernel, Made};
use crate::limiting::Watched;
use thalweg_symbols::store::{In, Out};

/// Reasons stand in each other for a few levels only.
const MOST_REASONS: u32 = 16;

impl ModulePlan {
    pub fn store(&self, out: &mut Out) {
        let ModulePlan {
            functions,
            fragments,
            skipped,
            entering,
            watching,
            stub_bytes,
            paced,
        } = self;
        let mut last = 0;
        out.list(functions, |out, plan| {
            let FunctionPlan {
                function,
                keep_flags,
                leaf,
                method,
                exits,
                windows,
                needs,
                stub_bytes,
            } = plan;
            out.size(*function);
            out.number(*stub_bytes);
            out.flag(*keep_flags);
            out.flag(*leaf);
            out.0.push(*method as u8);
            out.size(*exits);
            store_windows(out, windows, &mut last);
            store_indices(out, needs);
        });
        out.list(fragments, |out, plan| {
            let FragmentPlan {
                function,
                keep_flags,
                windows,
                continues_in,
                hosts,
            } = plan;
            out.size(*function);
            out.flag(*keep_flags);
            store_windows(out, windows, &mut last);
            store_indices(out, continues_in);
            store_indices(out, hosts);
        });
        out.list(skipped, |out, one| one.store(out));
        store_indices(out, entering);
        out.list(watching, |out, &site| out.number(site));
        out.number(*stub_bytes);
        out.optional(*paced, |out, (low, high)| {
            out.number(low);
            out.number(high);
        });
    }

    /// What [`ModulePlan::store`] was given, for a module with so many functions.
    pub fn restore(stored: &mut In<'_>, functions: usize) -> Option<ModulePlan> {
        let limit = functions;
        let mut last = 0;
        let functions = stored.list(|i| {
            Some(FunctionPlan {
                function: index(i, limit)?,
                stub_bytes: i.number()?,
                keep_flags: i.flag()?,
                leaf: i.flag()?,
                method: restore_method(i)?,
                exits: i.size()?,
                windows: restore_windows(i, &mut last, limit)?,
                needs: restore_indices(i, limit)?,
            })
        })?;
        let fragments = stored.list(|i| {
            Some(FragmentPlan {
                function: index(i, limit)?,
                keep_flags: i.flag()?,
                windows: restore_windows(i, &mut last, limit)?,
                continues_in: restore_indices(i, limit)?,
                hosts: restore_indices(i, limit)?,
            })
        })?;
        let skipped = stored.list(|i| Skipped::restore(i, limit))?;
        Some(ModulePlan {
            functions,
            fragments,
            skipped,
            entering: restore_indices(stored, limit)?,
            watching: stored.list(In::number)?,
            stub_bytes: stored.number()?,
            paced: stored.optional(|i| Some((i.number()?, i.number()?)))?,
        })
    }
}

impl Skipped {
    pub fn store(&self, out: &mut Out) {
        out.size(self.function);
        store_reason(out, &self.reason);
    }

    /// What [`Skipped::store`] was given, for a module with so many functions.
    pub fn restore(stored: &mut In<'_>, functions: usize) -> Option<Skipped> {
        Some(Skipped {
            function: index(stored, functions)?,
            reason: restore_reason(stored, MOST_REASONS)?,
        })
    }
}

impl EntersKernel {
    pub fn store(&self, out: &mut Out) {
        let EntersKernel {
            function,
            made,
            sites,
        } = self;
        out.size(*function);
        match made {
            Made::Each(calls) => {
                out.0.push(0);
                out.list(calls, |out, &(which, times)| {
                    out.optional(which, |out, number| out.number(number.into()));
                    out.number(times.into());
                });
            }
            Made::Between(least, most) => {
                out.0.push(1);
                out.number((*least).into());
                out.optional(*most, |out, most| out.number(most.into()));
            }
            Made::Unknown => out.0.push(2),
        }
        out.list(sites, |out, &site| out.number(site));
    }

    pub fn restore(stored: &mut In<'_>, functions: usize) -> Option<EntersKernel> {
        let function = index(stored, functions)?;
        let made = match stored.byte()? {
            0 => Made::Each(stored.list(|i| Some((i.optional(small)?, small(i)?)))?),
            1 => Made::Between(small(stored)?, stored.optional(small)?),
            2 => Made::Unknown,
            _ => return None,
        };
        Some(EntersKernel {
            function,
            made,
            sites: stored.list(In::number)?,
        })
    }
}

impl Watched {
    pub fn store(&self, out: &mut Out) {
        let Watched { function, sites } = self;
        out.size(*function);
        out.list(sites, |out, &site| out.number(site));
    }

    pub fn restore(stored: &mut In<'_>, functions: usize) -> Option<Watched> {
        Some(Watched {
            function: index(stored, functions)?,
            sites: stored.list(In::number)?,
        })
    }
}

fn small(stored: &mut In<'_>) -> Option<u32> {
    u32::try_from(stored.number()?).ok()
}

fn index(stored: &mut In<'_>, limit: usize) -> Option<usize> {
    stored.size().filter(|&index| index < limit)
}

fn store_indices(out: &mut Out, indices: &[usize]) {
    out.list(indices, |out, &index| out.size(index));
}

fn restore_indices(stored: &mut In<'_>, limit: usize) -> Option<Vec<usize>> {
    stored.list(|i| index(i, limit))
}

fn restore_method(stored: &mut In<'_>) -> Option<Method> {
    let number = stored.byte()?;
    let all = [
        Method::Direct,
        Method::Springboard,
        Method::CallMoved,
        Method::Retargeted,
        Method::Relocated,
    ];
    all.into_iter().find(|&method| method as u8 == number)
}

fn store_windows(out: &mut Out, windows: &[Window], last: &mut u64) {
    out.list(windows, |out, window| {
        let Window {
            start,
            end,
            patch,
            events,
            prefix,
            padding,
            rank,
            keeps_from,
        } = window;
        out.step(*last, *start);
        out.step(*start, *end);
        *last = *start;
        match *patch {
            PatchForm::Near => out.0.push(0),
            PatchForm::Short { springboard } => {
                out.0.push(1);
                out.step(*start, springboard);
            }
            PatchForm::Pun { springboard } => {
                out.0.push(2);
                out.step(*start, springboard);
            }
        }
        out.list(events, |out, event| {
            out.step(*start, event.at);
            store_probe(out, event.probe);
        });
        out.optional(*prefix, |out, byte| out.0.push(byte));
        out.list(padding, |out, &(from, to)| {
            out.step(*start, from);
            out.step(from, to);
        });
        out.number((*rank).into());
        out.optional(*keeps_from, |out, byte| out.0.push(byte));
    });
}

fn restore_windows(stored: &mut In<'_>, last: &mut u64, limit: usize) -> Option<Vec<Window>> {
    stored.list(|i| {
        let start = i.step(*last)?;
        let end = i.step(start)?;
        *last = start;
        let patch = match i.byte()? {
            0 => PatchForm::Near,
            form @ (1 | 2) => {
                let springboard = i.step(start)?;
                match form {
                    1 => PatchForm::Short { springboard },
                    _ => PatchForm::Pun { springboard },
                }
            }
            _ => return None,
        };
        Some(Window {
            start,
            end,
            patch,
            events: i.list(|i| {
                Some(Event {
                    at: i.step(start)?,
                    probe: restore_probe(i, limit)?,
                })
            })?,
            prefix: i.optional(In::byte)?,
            padding: i.list(|i| {
                let from = i.step(start)?;
                Some((from, i.step(from)?))
            })?,
            rank: small(i)?,
            keeps_from: i.optional(In::byte)?,
        })
    })
}

fn store_probe(out: &mut Out, probe: Probe) {
    match probe {
        Probe::Entry { function, loops } => {
            out.0.push(if loops { 1 } else { 0 });
            out.size(function);
        }
        Probe::Return => out.0.push(2),
        Probe::Exit => out.0.push(3),
        Probe::TailMark => out.0.push(4),
        Probe::TailUnknown => out.0.push(5),
        Probe::Switch {
            function,
            jumps,
            unwinds,
        } => {
            out.0.push(6);
            out.size(function);
            out.flag(jumps);
            out.flag(unwinds);
        }
        Probe::Kernel { function } => {
            out.0.push(7);
            out.optional(function, Out::size);
        }
        Probe::GoEntry { function } => {
            out.0.push(8);
            out.size(function);
        }
        Probe::GoReturn => out.0.push(9),
        Probe::GoLeave { own } => out.0.push(if own { 11 } else { 10 }),
        Probe::GoArrive => out.0.push(12),
        Probe::Watch => out.0.push(13),
        Probe::Leaf { function } => {
            out.0.push(14);
            out.size(function);
        }
    }
}

fn restore_probe(stored: &mut In<'_>, limit: usize) -> Option<Probe> {
    Some(match stored.byte()? {
        kind @ (0 | 1) => Probe::Entry {
            function: index(stored, limit)?,
            loops: kind == 1,
        },
        2 => Probe::Return,
        3 => Probe::Exit,
        4 => Probe::TailMark,
        5 => Probe::TailUnknown,
        6 => Probe::Switch {
            function: index(stored, limit)?,
            jumps: stored.flag()?,
            unwinds: stored.flag()?,
        },
        7 => Probe::Kernel {
            function: stored.optional(|i| index(i, limit))?,
        },
        8 => Probe::GoEntry {
            function: index(stored, limit)?,
        },
        9 => Probe::GoReturn,
        kind @ (10 | 11) => Probe::GoLeave { own: kind == 11 },
        12 => Probe::GoArrive,
        13 => Probe::Watch,
        14 => Probe::Leaf {
            function: index(stored, limit)?,
        },
        _ => return None,
    })
}

fn store_reason(out: &mut Out, reason: &SkipReason) {
    let mut put = |kind: u8, at: Option<u64>| {
        out.0.push(kind);
        if let Some(at) = at {
            out.number(at);
        }
    };
    match reason {
        SkipReason::Plt => put(0, None),
        SkipReason::EntryCode => put(1, None),
        SkipReason::Untouchable(why) => {
            put(2, None);
            out.text(why);
        }
        SkipReason::NoCode => put(3, None),
        SkipReason::Undecodable { at } => put(4, Some(*at)),
        SkipReason::Overlapping { at } => put(5, Some(*at)),
        SkipReason::UnresolvedJump { at } => put(6, Some(*at)),
        SkipReason::OddReturn { at } => put(7, Some(*at)),
        SkipReason::OddJump { at } => put(8, Some(*at)),
        SkipReason::FallsThrough { at } => put(9, Some(*at)),
        SkipReason::Continuation { other, why } => {
            put(10, Some(*other));
            store_reason(out, why);
        }
        SkipReason::NotSelected => put(11, None),
        SkipReason::SharedBytes { other } => put(12, Some(*other)),
        SkipReason::NoRoomAtEntry { at } => put(13, Some(*at)),
        SkipReason::NoRoomAtExit { at } => put(14, Some(*at)),
        SkipReason::MaybeData { at } => put(15, Some(*at)),
    }
}

fn restore_reason(stored: &mut In<'_>, levels: u32) -> Option<SkipReason> {
    let levels = levels.checked_sub(1)?;
    let kind = stored.byte()?;
    let mut at = || stored.number();
    Some(match kind {
        0 => SkipReason::Plt,
        1 => SkipReason::EntryCode,
        2 => SkipReason::Untouchable(stored.constant()?),
        3 => SkipReason::NoCode,
        4 => SkipReason::Undecodable { at: at()? },
        5 => SkipReason::Overlapping { at: at()? },
        6 => SkipReason::UnresolvedJump { at: at()? },
        7 => SkipReason::OddReturn { at: at()? },
        8 => SkipReason::OddJump { at: at()? },
        9 => SkipReason::FallsThrough { at: at()? },
        10 => SkipReason::Continuation {
            other: at()?,
            why: Box::new(restore_reason(stored, levels)?),
        },
        11 => SkipReason::NotSelected,
        12 => SkipReason::SharedBytes { other: at()? },
        13 => SkipReason::NoRoomAtEntry { at: at()? },
        14 => SkipReason::NoRoomAtExit { at: at()? },
        15 => SkipReason::MaybeData { at: at()? },
        _ => return None,
    })
}
