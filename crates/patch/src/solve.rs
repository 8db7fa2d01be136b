//! Finds windows for one function: a run of instructions around its entry and around each exit.
//!
//! The one rule behind everything here: a byte that changes, or that is to be run only in a stub, must not be the target of
//! anything that still goes there. A direct jump of the same function may go to the middle of a window if the
//! jump itself is in a window, for there it is sent to the copy. So a lone `ret` with no room around it can be
//! served by moving the jumps to it, and a leaf function as a whole.

use crate::flow::{Body, ExitKind};
use crate::insn::Flow;
use crate::interface::{PatchForm, SkipReason};
use crate::space::{Byte, JUMP, SHORT_JUMP, Space, in_one_page};
use crate::targets::Targets;

/// A window in the making. `first..=last` index `Body::insns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    pub first: usize,
    pub last: usize,
    pub start: u64,
    pub end: u64,
    pub patch: PatchForm,
    /// See `Window::prefix`.
    pub prefix: Option<u8>,
}

impl Draft {
    pub fn patch_end(&self) -> u64 {
        self.start + self.patch.bytes() + u64::from(self.prefix.is_some())
    }

    pub fn covers(&self, insn: usize) -> bool {
        (self.first..=self.last).contains(&insn)
    }

    fn board(&self) -> Option<u64> {
        self.patch.springboard().filter(|&board| board != NOWHERE)
    }
}

/// Which patches a search may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Near,
    Short,
    /// Short, and other instructions may be displaced to make room for the springboard.
    ShortWithRoom,
}

/// How far a search may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub springboards: bool,
    /// How many jumps may have to be moved for each other.
    pub depth: u32,
    /// Instructions to take along on either side.
    pub reach: usize,
    /// Windows to try in all.
    pub budget: u32,
    /// Patches of a single byte.
    pub puns: bool,
}

impl Effort {
    fn forms(self) -> &'static [Form] {
        if self.springboards {
            &[Form::Near, Form::Short, Form::ShortWithRoom]
        } else {
            &[Form::Near]
        }
    }
}

pub(crate) const QUICK: Effort = Effort {
    springboards: false,
    depth: 0,
    reach: 6,
    budget: 100_000,
    puns: false,
};
pub(crate) const THOROUGH: Effort = Effort {
    springboards: true,
    depth: 4,
    reach: 12,
    budget: 12_000,
    puns: false,
};

/// No window is longer, but for whole bodies.
pub(crate) const LONGEST: u64 = 96;
/// How many instructions to take along to make room for a springboard.
const ROOMY_INSTRUCTIONS: usize = 8;
/// Stands for a springboard yet to be found.
const NOWHERE: u64 = 0;
/// A body up to this size may run in a stub as a whole.
const LONGEST_BODY: u64 = 1024;

pub(crate) struct Solver<'a> {
    pub body: &'a Body,
    pub targets: &'a Targets,
    pub space: &'a Space,
    pub effort: Effort,
    pub drafts: Vec<Draft>,
    pub fragment: bool,
    /// The entry's window may end with a call.
    move_calls: bool,
    /// Index of an instruction whose window may begin with a call and end with it.
    pub partner: Option<usize>,
    /// The window of another function right behind this one.
    pub next: Option<Draft>,
}

impl<'a> Solver<'a> {
    pub fn new(
        body: &'a Body,
        targets: &'a Targets,
        space: &'a Space,
        fragment: bool,
        effort: Effort,
    ) -> Self {
        Solver {
            body,
            targets,
            space,
            effort,
            drafts: Vec::new(),
            fragment,
            move_calls: false,
            partner: None,
            next: None,
        }
    }

    /// Windows for the entry and every exit, in the order in which they have to be written.
    pub fn solve(&mut self) -> Result<Vec<Draft>, SkipReason> {
        let pieces = self.pieces();
        let tried = match pieces {
            Ok(()) => self.ordered(),
            Err(reason) => Err(reason),
        };
        if tried.is_ok() || self.fragment || self.effort.depth == 0 {
            return tried;
        }
        self.drafts.clear();
        let last = self.body.insns.len() - 1;
        let small = self.body.end - self.body.start <= LONGEST_BODY;
        if small && self.place(self.body.entry, last, 0, u64::MAX, Form::ShortWithRoom) {
            return self.ordered();
        }
        tried
    }

    fn pieces(&mut self) -> Result<(), SkipReason> {
        if !self.fragment {
            let at = self.body.insns[self.body.entry].addr;
            if !self.cover_entry() {
                return Err(SkipReason::NoRoomAtEntry { at });
            }
        }
        for exit in &self.body.exits {
            let at = self.body.insns[exit.insn].addr;
            let fits = match exit.kind {
                ExitKind::FallThrough(_) => self.cover_last(exit.insn),
                _ => self.cover(exit.insn, self.effort.depth),
            };
            if !fits {
                return Err(SkipReason::NoRoomAtExit { at });
            }
        }
        Ok(())
    }

    fn cover_entry(&mut self) -> bool {
        let entry = self.body.entry;
        let nearest = entry.max(self.body.entered.saturating_sub(1));
        let reach = (entry + self.effort.reach + 4).min(self.body.insns.len() - 1);
        for depth in 0..=self.effort.depth {
            for form in self.effort.forms() {
                let reach = if *form == Form::Near {
                    reach
                } else {
                    reach.min(nearest + 3)
                };
                for last in nearest..=reach {
                    if self.place(entry, last, depth, LONGEST, *form) {
                        return true;
                    }
                }
            }
        }
        // A moved call costs its return a misprediction: only when nothing else fits.
        self.move_calls = self.effort.springboards;
        let forms = self.effort.forms();
        let placed = self.move_calls
            && forms.iter().any(|form| {
                (nearest..=reach).any(|last| self.place(entry, last, 0, LONGEST, *form))
            });
        placed || self.body.entered == entry && self.pun(entry)
    }

    /// The window of a function that runs on into the next has to end where the function ends.
    fn cover_last(&mut self, insn: usize) -> bool {
        if self.drafts.iter().any(|d| d.last == insn) {
            return true;
        }
        (0..=self.effort.reach.min(insn)).any(|back| {
            self.place(insn - back, insn, self.effort.depth, LONGEST, Form::Near)
                && self.drafts.iter().any(|d| d.last == insn)
        })
    }

    /// Makes sure that the instruction runs in a stub.
    fn cover(&mut self, insn: usize, depth: u32) -> bool {
        if self.drafts.iter().any(|d| d.covers(insn)) {
            return true;
        }
        let forward = if depth == 0 && self.body.insns[insn].closed() {
            0
        } else {
            self.effort.reach
        };
        let back = self.effort.reach.min(insn);
        let ahead = forward.min(self.body.insns.len() - 1 - insn);
        for depth in 0..=depth {
            for form in self.effort.forms() {
                let (back, ahead) = if *form == Form::Near {
                    (back, ahead)
                } else {
                    (back.min(3), ahead.min(3))
                };
                for size in 0..=back + ahead {
                    for behind in size.saturating_sub(back)..=size.min(ahead) {
                        let first = insn - (size - behind);
                        if self.place(first, insn + behind, depth, LONGEST, *form) {
                            return true;
                        }
                    }
                }
            }
        }
        self.pun(insn)
    }

    pub fn place_near(&mut self, first: usize, last: usize) -> bool {
        self.place(first, last, 0, LONGEST, Form::Near)
    }

    /// A pun and the window behind it depend on each other's bytes: neither may change any more.
    fn frozen(&self, draft: &Draft) -> bool {
        let pun = |d: &Draft| matches!(d.patch, PatchForm::Pun { .. });
        draft.prefix.is_some()
            || pun(draft)
            || self.drafts.iter().any(|d| pun(d) && d.end == draft.start)
    }

    /// Tries to make one window of `first..=last` and all windows it touches.
    fn place(&mut self, first: usize, last: usize, depth: u32, longest: u64, form: Form) -> bool {
        if self.effort.budget == 0 {
            return false;
        }
        self.effort.budget -= 1;
        let (mut first, mut last) = (first, last);
        loop {
            let joined = self
                .drafts
                .iter()
                .filter(|d| d.first <= last && first <= d.last)
                .fold((first, last), |(f, l), d| (f.min(d.first), l.max(d.last)));
            if joined == (first, last) {
                break;
            }
            (first, last) = joined;
        }
        let (start, end) = (self.body.insns[first].addr, self.body.insns[last].end());
        // What `fits` would say at the end of all.
        let closed = self.body.insns[last].closed();
        if form == Form::Near && (!in_one_page(start, JUMP) || start + JUMP > end && !closed) {
            return false;
        }
        let touched = |d: &&Draft| d.first <= last && first <= d.last;
        if self.drafts.iter().filter(touched).any(|d| self.frozen(d)) {
            return false;
        }
        if end - start > longest
            || !self.movable(
                first,
                last,
                if form == Form::Near { JUMP } else { SHORT_JUMP },
            )
        {
            return false;
        }
        if self.hard_target_in(start + 1, end) || self.blocked(start + 1, end) {
            return false;
        }
        let mut to_move = Vec::new();
        for target in self.body.soft_in(start + 1, end) {
            if self.body.index_of(target).is_none() {
                return false;
            }
            for source in self.body.sources(target) {
                let inside = (first..=last).contains(&source);
                if !inside && !self.drafts.iter().any(|d| d.covers(source)) {
                    if depth == 0 {
                        return false;
                    }
                    to_move.push(source);
                }
            }
        }
        let others: Vec<Draft> = self
            .drafts
            .iter()
            .copied()
            .filter(|d| !(d.first <= last && first <= d.last))
            .collect();
        let kept_boards: Vec<u64> = others.iter().filter_map(Draft::board).collect();
        let mut draft = Draft {
            first,
            last,
            start,
            end,
            patch: PatchForm::Near,
            prefix: None,
        };
        if !self.fits(&draft, &others, &kept_boards) {
            draft.patch = PatchForm::Short {
                springboard: NOWHERE,
            };
            let evict = form == Form::ShortWithRoom;
            if form == Form::Near || !self.fits(&draft, &others, &kept_boards) {
                return false;
            }
            match self.springboard(&draft, &others) {
                Some(springboard) => draft.patch = PatchForm::Short { springboard },
                None if evict => return self.place_with_room(draft, others, to_move, depth),
                None => return false,
            }
        }
        let before = std::mem::replace(&mut self.drafts, others);
        self.drafts.push(draft);
        if to_move
            .into_iter()
            .all(|source| self.cover(source, depth - 1))
        {
            return true;
        }
        self.drafts = before;
        false
    }

    /// Displaces a run of instructions nearby for no other reason than that `draft` can have its springboard there.
    fn place_with_room(
        &mut self,
        mut draft: Draft,
        others: Vec<Draft>,
        to_move: Vec<usize>,
        depth: u32,
    ) -> bool {
        let before = std::mem::replace(&mut self.drafts, others);
        self.drafts.push(draft);
        let (low, high) = (draft.start.saturating_sub(140), draft.start + 140);
        let nearby = self.body.insns.partition_point(|i| i.addr < low);
        for first in nearby..self.body.insns.len() {
            if self.body.insns[first].addr > high || self.effort.budget == 0 {
                break;
            }
            let Some(last) = self.roomy_run(first) else {
                continue;
            };
            if first <= draft.last && draft.first <= last {
                continue;
            }
            let kept = self.drafts.clone();
            if !self.place(first, last, 0, LONGEST, Form::Near) {
                continue;
            }
            let at = self
                .drafts
                .iter()
                .position(|d| d.start == draft.start && d.last == draft.last);
            if let Some(at) = at {
                let mut rest = self.drafts.clone();
                rest.remove(at);
                if let Some(springboard) = self.springboard(&draft, &rest) {
                    draft.patch = PatchForm::Short { springboard };
                    self.drafts[at] = draft;
                    if to_move.iter().all(|&source| self.cover(source, depth - 1)) {
                        return true;
                    }
                    draft.patch = PatchForm::Short {
                        springboard: NOWHERE,
                    };
                }
            }
            self.drafts = kept;
        }
        self.drafts = before;
        false
    }

    /// The shortest run from `first` on with room for a patch and, behind what others took of it, for one more jump.
    fn roomy_run(&self, first: usize) -> Option<usize> {
        let start = self.body.insns[first].addr;
        let known = self
            .drafts
            .iter()
            .find(|d| d.first == first)
            .map_or(start, |d| d.end);
        let taken = (start..known)
            .rev()
            .find(|&a| self.space.get(a) == Byte::Taken);
        let room_from = taken.map_or(start, |a| a + 1).max(start + JUMP);
        let run = self.body.insns[first..].iter().take(ROOMY_INSTRUCTIONS);
        let last = first + run.take_while(|i| i.end() < room_from + JUMP).count();
        (last < self.body.insns.len()).then_some(last)
    }

    /// Makes the windows of a planned function longer, or adds one, so that others find dead bytes in `[low, high)`.
    pub fn loosen(&mut self, low: u64, high: u64) {
        let given = self.drafts.clone();
        let from = self.body.insns.partition_point(|i| i.addr < low);
        for first in from..self.body.insns.len() {
            if self.body.insns[first].addr >= high {
                break;
            }
            let Some(last) = self.roomy_run(first) else {
                continue;
            };
            let touched: Vec<Draft> = self
                .drafts
                .iter()
                .copied()
                .filter(|d| d.first <= last && first <= d.last)
                .collect();
            let grows = matches!(touched[..], [d] if d.first == first && d.last < last && d.patch == PatchForm::Near);
            if !touched.is_empty() && !grows {
                continue;
            }
            let kept = self.drafts.clone();
            if self.place(first, last, 0, LONGEST, Form::Near) {
                let start = self.body.insns[first].addr;
                let sound = self
                    .drafts
                    .iter()
                    .any(|d| d.start == start && d.patch == PatchForm::Near)
                    && given.iter().all(|g| {
                        self.drafts
                            .iter()
                            .any(|d| d.start == g.start && d.patch == g.patch)
                    });
                if !sound {
                    self.drafts = kept;
                }
            }
        }
    }

    /// All of `first..=last` can run elsewhere, and only padding lies between them. The last one may be a call if the place
    /// it returns to is not among the `patch` bytes that change.
    fn movable(&self, first: usize, last: usize, patch: u64) -> bool {
        let insns = &self.body.insns;
        for i in first..=last {
            let insn = &insns[i];
            let moved_call = i == last
                && (first == self.body.entry && !self.fragment && self.move_calls
                    || self.partner == Some(first) && first == last)
                && !insn.fixed
                && matches!(insn.flow, Flow::Call(_) | Flow::CallIndirect)
                && insn.end() - insns[first].addr >= patch;
            if !insn.movable() && !moved_call {
                return false;
            }
            if i < last && insn.end() != insns[i + 1].addr {
                let padding = insn.closed() && insn.end() < insns[i + 1].addr;
                if !padding
                    || !(insn.end()..insns[i + 1].addr).all(|a| self.space.get(a) == Byte::Free)
                {
                    return false;
                }
            }
        }
        true
    }

    /// Data holds many numbers that look like addresses. One that points into the middle of an instruction that is known to
    /// run is none, unless code names it too.
    pub fn hard_target_in(&self, from: u64, to: u64) -> bool {
        let real = |t: &u64| self.targets.named.contains(t) || !self.body.inside_instruction(*t);
        from < to && self.targets.in_range(from, to).iter().any(real)
    }

    pub fn blocked(&self, from: u64, to: u64) -> bool {
        let blocked = &self.body.blocked;
        from < to
            && blocked
                .get(blocked.partition_point(|&t| t < from))
                .is_some_and(|&t| t < to)
    }

    /// Is there room for the patch, next to the other windows and their springboards?
    fn fits(&self, draft: &Draft, others: &[Draft], boards: &[u64]) -> bool {
        let patch_end = draft.patch_end();
        if !in_one_page(draft.start, draft.patch.bytes()) {
            return false;
        }
        if patch_end > draft.end {
            let closed = self.body.insns[draft.last].closed();
            if !closed || !(draft.end..patch_end).all(|a| self.space.get(a) == Byte::Free) {
                return false;
            }
        }
        let reach = patch_end.max(draft.end);
        let clear_of_windows = others
            .iter()
            .all(|d| d.patch_end().max(d.end) <= draft.start || reach <= d.start);
        // A springboard may stand in the dead bytes of a window, not in those that change.
        let clear_of_boards = boards.iter().all(|&b| {
            b + JUMP <= draft.start || b >= reach || b >= patch_end && b + JUMP <= draft.end
        });
        clear_of_windows && clear_of_boards
    }

    /// Five bytes that nobody runs, within reach of a short jump at the start of `draft`.
    fn springboard(&self, draft: &Draft, others: &[Draft]) -> Option<u64> {
        let from = draft.start + SHORT_JUMP;
        let low = from.saturating_sub(128);
        // Of each byte within reach once, since each is one of five that a springboard needs.
        let reach = low..from + 128 + JUMP;
        let unused: Vec<bool> = reach.map(|a| self.unused(a, draft, others)).collect();
        let is_free = |board: u64| {
            let at = (board - low) as usize;
            unused[at..at + JUMP as usize].iter().all(|unused| *unused)
        };
        let mut candidates = (0..128u64)
            .flat_map(|d| [from.checked_add(d), from.checked_sub(d + 1)])
            .flatten();
        candidates.find(|&board| {
            (from as i64 - 128..=from as i64 + 127).contains(&(board as i64))
                && is_free(board)
                && in_one_page(board, JUMP)
                && !self
                    .next
                    .is_some_and(|n| board <= n.patch_end() && n.start < board + JUMP)
        })
    }

    pub fn unused(&self, addr: u64, draft: &Draft, others: &[Draft]) -> bool {
        let free = match self.space.get(addr) {
            Byte::Taken => return false,
            Byte::Free | Byte::Dead => true,
            Byte::Used => false,
        };
        // Its own bytes are still run when its springboard is written.
        if (draft.start..draft.end.max(draft.patch_end())).contains(&addr) {
            return false;
        }
        let mut displaced = false;
        for d in others {
            let on_board = d.board().is_some_and(|b| (b..b + JUMP).contains(&addr));
            if on_board || (d.start..d.patch_end()).contains(&addr) {
                return false;
            }
            displaced |= (d.start..d.end).contains(&addr);
        }
        free || displaced
    }

    /// The windows, each behind those that must be in force before its bytes change.
    fn ordered(&self) -> Result<Vec<Draft>, SkipReason> {
        let mut left: Vec<Draft> = self.drafts.clone();
        left.sort_unstable_by_key(|d| d.start);
        let mut done: Vec<Draft> = Vec::new();
        while !left.is_empty() {
            let ready = left.iter().position(|d| {
                let waits_for = |other: &Draft| other != d && self.needs(d, other);
                !left.iter().any(waits_for)
            });
            let Some(ready) = ready else {
                return Err(SkipReason::NoRoomAtExit { at: left[0].start });
            };
            done.push(left.remove(ready));
        }
        Ok(done)
    }

    /// Must `other` be in force before the bytes of `draft` (and of its springboard) change?
    fn needs(&self, draft: &Draft, other: &Draft) -> bool {
        let jumps_into = |from: u64, to: u64| {
            self.body
                .soft_in(from, to)
                .into_iter()
                .any(|t| self.body.sources(t).any(|source| other.covers(source)))
        };
        let pun = matches!(draft.patch, PatchForm::Pun { .. });
        if pun && other.start == draft.end || jumps_into(draft.start + 1, draft.patch_end()) {
            return true;
        }
        draft.board().is_some_and(|b| {
            let hosts = b < other.end && other.start < b + JUMP;
            hosts || jumps_into(b, b + JUMP)
        })
    }
}
