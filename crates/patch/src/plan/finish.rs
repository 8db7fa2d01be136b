//! The end of a plan: functions that rely on others that failed are given up, room that nobody used is put back, and what is left
//! gets its events and becomes the module's plan.

use super::{Need, Planned, Planner, State};
use crate::flags::read_before_set;
use crate::flow::{ExitKind, LeavesFor};
use crate::image::Image;
use crate::insn::Flow;
use crate::interface::{
    Event, FragmentPlan, FunctionPlan, MAX_LEAF_BYTES, ModulePlan, PatchForm, Probe, SkipReason,
    Skipped, Window,
};
use crate::kernel::EntersKernel;
use crate::limiting::Watched;
use crate::space::JUMP;
use std::collections::HashSet;

impl Planner<'_, '_> {
    /// Gives up functions that rely on others that failed, until nothing changes.
    fn settle(&mut self) {
        loop {
            let mut changed = false;
            for i in 0..self.states.len() {
                let State::Planned(planned) = &self.states[i] else {
                    continue;
                };
                let missing = planned
                    .needs
                    .iter()
                    .find(|(g, _)| !matches!(self.states[*g], State::Planned(_)));
                let Some(&(other, need)) = missing else {
                    continue;
                };
                let why = match &self.states[other] {
                    State::Failed(SkipReason::Continuation { why, .. }) => (**why).clone(),
                    State::Failed(reason) => reason.clone(),
                    _ => SkipReason::NotSelected,
                };
                let other = self.image.module.functions[other].start;
                self.states[i] = State::Failed(match need {
                    Need::Exits => SkipReason::Continuation {
                        other,
                        why: Box::new(why),
                    },
                    Need::Bytes => SkipReason::SharedBytes { other },
                });
                changed = true;
            }
            if !changed {
                return;
            }
        }
    }

    /// Functions whose probes must not touch the flags.
    fn keep_flags(&self) -> HashSet<usize> {
        let mut keep = HashSet::new();
        let mut edges: Vec<(usize, usize)> = Vec::new();
        for (i, state) in self.states.iter().enumerate() {
            let State::Planned(planned) = state else {
                continue;
            };
            let f = &self.image.module.functions[i];
            let fragment = self.image.is_fragment(i);
            if self.targets.flags_read_after.contains(&f.start)
                || !fragment
                    && planned
                        .entered
                        .is_some_and(|at| read_before_set(self.image, at, f.end))
            {
                keep.insert(i);
            }
            for (_, kind) in &planned.exits {
                if let ExitKind::Tail(Some(g)) | ExitKind::FallThrough(g) = kind {
                    edges.push((i, *g));
                }
            }
            edges.extend(
                planned
                    .needs
                    .iter()
                    .filter(|n| n.1 == Need::Exits)
                    .map(|n| (i, n.0)),
            );
        }
        // Flags pass unharmed along tail jumps in both directions: to a target that reads them, back to a caller that does.
        let mut grown = !keep.is_empty();
        while grown {
            let before = keep.len();
            for &(a, b) in &edges {
                if keep.contains(&a) || keep.contains(&b) {
                    keep.extend([a, b]);
                }
            }
            grown = keep.len() > before;
        }
        keep
    }

    /// Puts back what was displaced to make room that nobody used.
    fn drop_spare(&mut self) {
        fn planned(state: &State) -> &[Window] {
            match state {
                State::Planned(planned) => &planned.windows,
                _ => &[],
            }
        }
        let windows = || self.states.iter().flat_map(planned);
        let all = || windows().map(|window| (window.end, window.patch));
        let mut boards: Vec<u64> = all().filter_map(|(_, p)| p.springboard()).collect();
        boards.sort_unstable();
        let puns: HashSet<u64> = all()
            .filter(|(_, p)| matches!(p, PatchForm::Pun { .. }))
            .map(|(end, _)| end)
            .collect();
        for state in &mut self.states {
            let State::Planned(planned) = state else {
                continue;
            };
            let Planned { windows, spare, .. } = &mut **planned;
            windows.retain(|w| {
                let board = boards.get(boards.partition_point(|b| b + JUMP <= w.start));
                let hosts = board.is_some_and(|&b| b < w.end);
                hosts || puns.contains(&w.start) || !spare.contains(&w.start)
            });
        }
    }

    pub(super) fn finish(mut self, kernel: &[EntersKernel], watched: &[Watched]) -> ModulePlan {
        self.settle();
        self.drop_spare();
        let entering = self.enter_kernel(kernel);
        let watching = self.watch_calls(watched);
        let keep = self.keep_flags();
        let probed: Vec<bool> = self
            .states
            .iter()
            .enumerate()
            .map(|(i, s)| matches!(s, State::Planned(_)) && !self.image.is_fragment(i))
            .collect();
        // Whoever goes on in a function has its exits.
        let planned = self.states.iter().filter_map(|state| match state {
            State::Planned(planned) => Some(planned),
            _ => None,
        });
        let shared: HashSet<usize> = planned
            .flat_map(|planned| &planned.needs)
            .filter(|need| need.1 == Need::Exits)
            .map(|need| need.0)
            .collect();
        let mut plan = ModulePlan {
            entering,
            watching,
            ..ModulePlan::default()
        };
        for (function, state) in self.states.into_iter().enumerate() {
            match state {
                State::Untouched | State::Waiting => {}
                State::Failed(reason) if !self.image.is_fragment(function) => {
                    plan.skipped.push(Skipped { function, reason });
                }
                State::Failed(_) => {}
                State::Planned(planned) => {
                    let mut planned = *planned;
                    planned.windows.sort_unstable_by_key(|w| w.start);
                    let needs = |wanted: &dyn Fn(Need) -> bool| {
                        let all = planned.needs.iter().filter(|need| wanted(need.1));
                        let mut all: Vec<usize> = all.map(|need| need.0).collect();
                        all.sort_unstable();
                        all.dedup();
                        all
                    };
                    let continues_in = needs(&|need| need == Need::Exits);
                    let hosts = needs(&|need| need == Need::Bytes);
                    let needs = needs(&|_| true);
                    let keep_flags = keep.contains(&function);
                    let fragment = self.image.is_fragment(function);
                    let leaf_bytes = if planned.leaf { MAX_LEAF_BYTES } else { 0 };
                    let stub_bytes = planned.stub_bytes + leaf_bytes;
                    plan.stub_bytes += stub_bytes;
                    place_events(
                        self.image,
                        &mut planned,
                        &probed,
                        (!fragment).then_some(function),
                    );
                    if fragment {
                        plan.fragments.push(FragmentPlan {
                            function,
                            keep_flags,
                            windows: planned.windows,
                            continues_in,
                            hosts,
                        });
                    } else {
                        plan.functions.push(FunctionPlan {
                            function,
                            keep_flags,
                            leaf: planned.leaf
                                && !shared.contains(&function)
                                && planned.enters.is_empty()
                                && planned.watches.is_empty(),
                            method: planned.method,
                            exits: planned.exits.len(),
                            windows: planned.windows,
                            needs,
                            stub_bytes,
                        });
                    }
                }
            }
        }
        plan
    }
}

fn place_events(image: &Image, planned: &mut Planned, probed: &[bool], entry: Option<usize>) {
    let first = planned.windows.first_mut();
    if let (Some(function), Some(entered), Some(window)) = (entry, planned.entered, first) {
        let probe = Probe::Entry {
            function,
            loops: planned.loops,
        };
        window.events.push(Event { at: entered, probe });
    }
    for &(at, kind) in &planned.exits {
        let elsewhere = entry.filter(|_| planned.leaves_for != LeavesFor::Caller);
        let probe = match (kind, elsewhere) {
            (ExitKind::Return | ExitKind::TailIndirect, Some(function)) => Probe::Switch {
                function,
                jumps: kind == ExitKind::TailIndirect,
                unwinds: planned.leaves_for == LeavesFor::OuterCaller,
            },
            _ => probe_at(image, at, kind, probed),
        };
        let end_of = matches!(kind, ExitKind::FallThrough(_));
        let window = planned.windows.iter_mut().find(|w| {
            if end_of {
                w.end == at
            } else {
                (w.start..w.end).contains(&at)
            }
        });
        if let Some(window) = window {
            window.events.push(Event { at, probe });
        }
    }
    let counted = planned.enters.iter();
    let counted = counted.map(|&at| (at, Probe::Kernel { function: entry }));
    let watched = planned.watches.iter().map(|&at| (at, Probe::Watch));
    for (at, probe) in counted.chain(watched) {
        if let Some(window) = planned.windows.iter_mut().find(|w| w.end == at) {
            window.events.push(Event { at, probe });
        }
    }
}

fn probe_at(image: &Image, at: u64, kind: ExitKind, probed: &[bool]) -> Probe {
    match kind {
        ExitKind::Return => Probe::Return,
        ExitKind::ReturnPop | ExitKind::Thunk | ExitKind::Tail(None) => Probe::Exit,
        ExitKind::Tail(Some(g)) | ExitKind::FallThrough(g) => {
            if probed[g] {
                Probe::TailMark
            } else {
                Probe::Exit
            }
        }
        ExitKind::TailPlt => match plt_slot(image, at) {
            Some(_) => Probe::TailUnknown,
            None => Probe::Exit,
        },
        ExitKind::TailIndirect => Probe::TailUnknown,
    }
}

/// The address of the pointer through which the PLT entry that the jump at `jump` goes to will jump.
pub(crate) fn plt_slot(image: &Image, jump: u64) -> Option<u64> {
    let target = crate::insn::decode_one(image.code_at(jump)?, jump)?.near_branch_target();
    let mut at = target;
    for _ in 0..2 {
        let instruction = crate::insn::decode_one(image.code_at(at)?, at)?;
        let insn = crate::insn::Insn::from_iced(&instruction)?;
        if insn.flow == Flow::JumpIndirect {
            return instruction
                .is_ip_rel_memory_operand()
                .then(|| instruction.ip_rel_memory_address());
        }
        if !insn.fixed {
            return None;
        }
        at = insn.end();
    }
    None
}
