//! Room for a jump in a single byte, for a `ret` that the next function follows without padding.
//!
//! The opcode of a short jump takes the one byte; its displacement is the first byte of the patch behind it:
//!
//! ```text
//!   f:  c3       ret            f:  eb      jmp g+2+0x40, because of
//!   g:  41 56    push r14       g:  40 e9   jmp stub of g, with a prefix that means nothing
//! ```
//!
//! So the springboard has to lie at one of a few distances, and the patch behind it has to be there first. Without a
//! prefix that byte is `e9` or `eb`; with one, the sixteen forms of REX and the segment overrides are to choose from.

use crate::flow::Body;
use crate::insn::Flow;
use crate::interface::{PatchForm, SkipReason};
use crate::plan::{Planner, State};
use crate::solve::{Draft, Effort, LONGEST, Solver, THOROUGH};
use crate::space::{JUMP, SHORT_JUMP, in_one_page};

/// Prefixes that change nothing about a direct jump.
const PREFIXES: [u8; 22] = [
    0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x4b, 0x4c, 0x4d, 0x4e, 0x4f,
    0x2e, 0x3e, 0x26, 0x36, 0x64, 0x65,
];
const NEAR_OPCODE: u8 = 0xe9;
const SHORT_OPCODE: u8 = 0xeb;

const PUNNED: Effort = Effort {
    puns: true,
    ..THOROUGH
};

/// Where a short jump at `start` goes whose displacement is `byte`.
fn destination(start: u64, byte: u8) -> Option<u64> {
    (start + SHORT_JUMP).checked_add_signed(i64::from(byte as i8))
}

/// The prefix that the window behind the pun `draft` has to have.
pub(crate) fn prefix_behind(draft: &Draft) -> Option<u8> {
    let board = draft.patch.springboard()?;
    let byte = board.wrapping_sub(draft.start + SHORT_JUMP) as u8;
    PREFIXES.contains(&byte).then_some(byte)
}

impl Solver<'_> {
    /// Covers an instruction of one byte by the opcode of a short jump.
    pub(crate) fn pun(&mut self, insn: usize) -> bool {
        let Some(&one) = self.body.insns.get(insn) else {
            return false;
        };
        if !self.effort.puns || one.len != 1 || !one.movable() {
            return false;
        }
        let before = self.drafts.clone();
        let behind = one.end();
        let foreign = self.next.filter(|n| n.start == behind);
        if foreign.is_none() && !self.window_at(behind) {
            self.drafts = before;
            return false;
        }
        if self.pun_with(insn, foreign) {
            return true;
        }
        let prepared = self.drafts.clone();
        for byte in [NEAR_OPCODE, SHORT_OPCODE].into_iter().chain(PREFIXES) {
            let own = |b: &u64| (self.body.start..self.body.end).contains(b);
            let Some(board) = destination(one.addr, byte).filter(own) else {
                continue;
            };
            if self.room_at(board) && self.pun_with(insn, foreign) {
                return true;
            }
            self.drafts.clone_from(&prepared);
        }
        self.drafts = before;
        false
    }

    fn pun_with(&mut self, insn: usize, foreign: Option<Draft>) -> bool {
        let one = self.body.insns[insn];
        let own = self.drafts.iter().position(|d| d.start == one.end());
        let Some(partner) = foreign.or(own.map(|d| self.drafts[d])) else {
            return false;
        };
        if self.drafts.iter().any(|d| d.covers(insn)) {
            return false;
        }
        let mut draft = Draft {
            first: insn,
            last: insn,
            start: one.addr,
            end: one.end(),
            patch: PatchForm::Pun { springboard: 0 },
            prefix: None,
        };
        for (byte, prefix) in self.first_bytes(&partner, &draft) {
            let Some(board) = destination(one.addr, byte) else {
                continue;
            };
            let longer = Draft { prefix, ..partner };
            let free = |a: u64| {
                !(longer.start..longer.patch_end()).contains(&a)
                    && self.unused(a, &draft, &self.drafts)
            };
            if !in_one_page(board, JUMP) || !(board..board + JUMP).all(free) {
                continue;
            }
            draft.patch = PatchForm::Pun { springboard: board };
            // Another function's window gets its prefix once this function's plan stands.
            if let (None, Some(own)) = (foreign, own) {
                self.drafts[own].prefix = prefix;
            }
            self.drafts.push(draft);
            return true;
        }
        false
    }

    /// What the first byte of the patch of `partner` may be, and the prefix that makes it so.
    fn first_bytes(&self, partner: &Draft, draft: &Draft) -> Vec<(u8, Option<u8>)> {
        if let Some(prefix) = partner.prefix {
            return vec![(prefix, Some(prefix))];
        }
        let longer = Draft {
            prefix: Some(0),
            ..*partner
        };
        let extra = partner.patch_end();
        let room = in_one_page(partner.start, extra + 1 - partner.start)
            && self.unused(extra, draft, &self.drafts);
        let opcode = match partner.patch {
            PatchForm::Near => NEAR_OPCODE,
            PatchForm::Short { .. } | PatchForm::Pun { .. } => SHORT_OPCODE,
        };
        let reaches = match partner.patch {
            PatchForm::Near => true,
            PatchForm::Short { springboard } => {
                let distance = springboard.wrapping_sub(longer.patch_end()) as i64;
                i8::try_from(distance).is_ok()
                    && !(springboard..springboard + JUMP).contains(&extra)
            }
            PatchForm::Pun { .. } => false,
        };
        let mut bytes = vec![(opcode, None)];
        if room && reaches {
            bytes.extend(PREFIXES.map(|p| (p, Some(p))));
        }
        bytes
    }

    /// Makes sure that a window with a patch of its own starts at `addr`.
    pub(crate) fn window_at(&mut self, addr: u64) -> bool {
        let starts = |s: &Self| s.drafts.iter().any(|d| d.start == addr);
        if starts(self) {
            return true;
        }
        let Some(first) = self.body.index_of(addr) else {
            return false;
        };
        let farthest = (first + self.effort.reach).min(self.body.insns.len() - 1);
        let before = self.drafts.clone();
        self.partner = Some(first);
        let found = (first..=farthest).any(|last| {
            let call = matches!(
                self.body.insns[last].flow,
                Flow::Call(_) | Flow::CallIndirect
            );
            let placed = (!call || last == first) && self.place_near(first, last) && starts(self);
            if !placed {
                self.drafts.clone_from(&before);
            }
            placed
        });
        self.partner = None;
        found
    }

    /// Displaces instructions around `board` so that a springboard can stand there.
    pub(crate) fn room_at(&mut self, board: u64) -> bool {
        let insns = &self.body.insns;
        let nearest = insns.partition_point(|i| i.addr + JUMP <= board);
        let last = insns.partition_point(|i| i.end() < board + JUMP);
        if last >= insns.len() {
            return false;
        }
        let given = self.drafts.clone();
        for first in (nearest.saturating_sub(8)..nearest).rev() {
            let start = self.body.insns[first].addr;
            if self.body.insns[last].end() - start > LONGEST {
                break;
            }
            let sound = self.place_near(first, last)
                && given.iter().all(|g| {
                    self.drafts
                        .iter()
                        .any(|d| d.start == g.start && d.patch == g.patch)
                });
            if sound {
                return true;
            }
            self.drafts.clone_from(&given);
        }
        false
    }
}

impl Planner<'_, '_> {
    /// Plans a function that has a single byte for a patch, with the help of the window behind that byte.
    pub(crate) fn attempt_punned(
        &mut self,
        function: usize,
        body: &Body,
    ) -> Result<(), SkipReason> {
        let next = self
            .image
            .function_at(body.end)
            .filter(|&g| self.image.module.functions[g].start == body.end);
        if let Some(g) = next {
            self.rework(g, |solver| {
                solver.window_at(body.end);
            });
        }
        let mut tried = self.attempt(function, body, PUNNED);
        let no_room = |reason: &SkipReason| match *reason {
            SkipReason::NoRoomAtEntry { at } | SkipReason::NoRoomAtExit { at } => Some(at),
            _ => None,
        };
        let one = tried.as_ref().err().and_then(no_room);
        let Some(one) = one.filter(|&at| next.is_some() && at + 1 == body.end) else {
            return tried;
        };
        for byte in [NEAR_OPCODE, SHORT_OPCODE].into_iter().chain(PREFIXES) {
            if tried.is_ok() {
                return tried;
            }
            let host = destination(one, byte)
                .and_then(|board| Some((board, self.image.function_at(board)?)))
                .filter(|&(_, g)| g != function && matches!(self.states[g], State::Planned(_)));
            if let Some((board, g)) = host
                && self.rework(g, |solver| {
                    solver.room_at(board);
                })
            {
                tried = self.attempt(function, body, PUNNED);
            }
        }
        tried
    }

    /// The window of a planned function at `addr`.
    pub(crate) fn window_behind(&self, addr: u64) -> Option<Draft> {
        let g = self.image.function_at(addr)?;
        let State::Planned(planned) = &self.states[g] else {
            return None;
        };
        let window = planned.windows.iter().find(|w| w.start == addr)?;
        Some(Draft {
            first: usize::MAX,
            last: usize::MAX,
            start: window.start,
            end: window.end,
            patch: window.patch,
            prefix: window.prefix,
        })
    }
}
