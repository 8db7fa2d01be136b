//! Probes before `syscall` instructions, in functions of which only the instruction tells how often they enter the kernel.
//!
//! ```text
//!   text                        stub
//!   start:  jmp stub ------->   copies of the displaced instructions
//!           (dead)              probe: one more, by the number in eax
//!   end:    syscall  <-------   jmp end
//! ```
//!
//! The instruction itself stays, so that the kernel can restart it, which is not counted again. What is displaced are plain
//! instructions right before it that nobody has asked for by then and nobody jumps into; and nobody may jump to the instruction
//! itself, past the probe. A function gets all of its probes or none; those that only watch for calls by which the program limits
//! itself (limiting.rs) stand each for itself.

use crate::flow::Body;
use crate::insn::{Flow, Insn};
use crate::interface::{MAX_PROBE_BYTES, PatchForm, Window};
use crate::kernel::EntersKernel;
use crate::limiting::{Watched, is_known};
use crate::plan::{Planner, State, stub_bytes};
use crate::solve::{Draft, QUICK, Solver};
use crate::space::{Byte, JUMP, in_one_page};
use std::rc::Rc;

/// How many instructions before a system call are looked at.
const REACH: usize = 8;

/// Where the probe of a system call goes.
struct Place {
    /// The function or fragment that the instruction is in.
    owner: usize,
    site: u64,
    /// Of the window that ends at the instruction: one that does so already, one that is made longer, or a new one.
    start: u64,
    known: bool,
    body: Rc<Body>,
    /// The displaced instructions that are not in a window yet.
    first: usize,
    last: usize,
}

impl Planner<'_, '_> {
    /// The functions among `kernel` of which every system call has got a probe.
    pub(crate) fn enter_kernel(&mut self, kernel: &[EntersKernel]) -> Vec<usize> {
        let mut entering = Vec::new();
        for one in kernel {
            let is_planned = matches!(self.states.get(one.function), Some(State::Planned(_)));
            if one.sites.is_empty() || !is_planned {
                continue;
            }
            let sites = one.sites.iter();
            let places: Option<Vec<_>> = sites.map(|&site| self.place_before(site)).collect();
            if let Some(places) = places {
                for place in places {
                    let (owner, site) = (place.owner, place.site);
                    self.take(place);
                    if let State::Planned(planned) = &mut self.states[owner]
                        && !planned.enters.contains(&site)
                    {
                        planned.enters.push(site);
                        planned.stub_bytes += MAX_PROBE_BYTES;
                    }
                }
                entering.push(one.function);
            }
        }
        entering
    }

    /// Those of the system calls in `watched` that have got a probe. Where there is no room, or the address is known to the program,
    /// there is none.
    pub(crate) fn watch_calls(&mut self, watched: &[Watched]) -> Vec<u64> {
        let mut watching = Vec::new();
        for &site in watched.iter().flat_map(|one| &one.sites) {
            if is_known(&self.targets, site) {
                continue;
            }
            let Some(place) = self.place_before(site) else {
                continue;
            };
            let owner = place.owner;
            self.take(place);
            if let State::Planned(planned) = &mut self.states[owner] {
                planned.watches.push(site);
                planned.stub_bytes += MAX_PROBE_BYTES;
                watching.push(site);
            }
        }
        watching
    }

    fn place_before(&mut self, site: u64) -> Option<Place> {
        let owner = self.image.function_at(site)?;
        let body = self.body(owner)?;
        let State::Planned(planned) = &self.states[owner] else {
            return None;
        };
        let at = body.index_of(site).filter(|&at| at > 0)?;
        let solver = Solver::new(
            &body,
            &self.targets,
            &self.space,
            self.image.is_fragment(owner),
            QUICK,
        );
        let has_target = |from: u64, to: u64| {
            solver.hard_target_in(from, to)
                || solver.blocked(from, to)
                || !body.soft_in(from, to).is_empty()
        };
        if has_target(site, site + 2) {
            return None;
        }
        let ending = |end: u64| planned.windows.iter().find(|w| w.end == end);
        let runs_on = |insn: &Insn| insn.flow == Flow::Next;
        let place = |start: u64, known: bool, first: usize| {
            Some(Place {
                owner,
                site,
                start,
                known,
                body: Rc::clone(&body),
                first,
                last: at - 1,
            })
        };
        let touches = |index: usize| body.insns[index].end() == body.insns[index + 1].addr;
        if let Some(window) = ending(site) {
            let fits = touches(at - 1) && runs_on(&body.insns[at - 1]);
            return fits.then(|| place(window.start, true, at)).flatten();
        }
        for first in (at.saturating_sub(REACH)..at).rev() {
            let insn = &body.insns[first];
            let is_free = (insn.addr..insn.end()).all(|a| self.space.get(a) == Byte::Used);
            let inside = has_target(insn.addr + 1, insn.end());
            if !touches(first) || !runs_on(insn) || !insn.movable() || !is_free || inside {
                return None;
            }
            if site - insn.addr >= JUMP && in_one_page(insn.addr, JUMP) {
                return place(insn.addr, false, first);
            }
            if has_target(insn.addr, insn.addr + 1) {
                return None;
            }
            if let Some(window) = ending(insn.addr)
                && window.patch == PatchForm::Near
                && first > 0
                && touches(first - 1)
                && runs_on(&body.insns[first - 1])
            {
                return place(window.start, true, first);
            }
        }
        None
    }

    fn take(&mut self, place: Place) {
        let Place {
            owner, site, start, ..
        } = place;
        let State::Planned(planned) = &mut self.states[owner] else {
            return;
        };
        if planned.enters.contains(&site) || planned.watches.contains(&site) {
            return;
        }
        if place.first <= place.last {
            let from = place.body.insns[place.first].addr;
            planned.stub_bytes += stub_bytes(
                &place.body,
                &Draft {
                    first: place.first,
                    last: place.last,
                    start: from,
                    end: site,
                    patch: PatchForm::Near,
                    prefix: None,
                },
            );
            self.space.set(from, site, Byte::Dead);
        }
        if place.known {
            let window = planned.windows.iter_mut().find(|w| w.start == start);
            window.into_iter().for_each(|window| window.end = site);
            return;
        }
        self.space.set(start, start + JUMP, Byte::Taken);
        planned.windows.push(Window {
            start,
            end: site,
            patch: PatchForm::Near,
            events: Vec::new(),
            prefix: None,
            padding: Vec::new(),
            rank: self.rank,
            keeps_from: None,
        });
        self.rank += 1;
    }
}
