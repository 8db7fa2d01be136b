//! Functions that call nothing and are short. Where they are only counted they need a probe at their entry and none at their exits.

use crate::flow::{Body, ExitKind, LeavesFor};
use crate::image::Image;
use crate::insn::{Flow, Insn};
use crate::interface::{Event, FunctionPlan, ModulePlan, PatchForm, Probe, ProbeEncoder, Window};
use crate::space::JUMP;
use std::borrow::Cow;
use std::collections::HashSet;

/// What a call of such a function executes at most: beside that the probes of a timed call would be all that is measured.
const MOST_INSTRUCTIONS: usize = 40;

/// Does every way through `body` lead forward, and end with a return to the caller soon?
pub(crate) fn is_leaf(image: &Image, body: &Body) -> bool {
    body.insns.len() <= MOST_INSTRUCTIONS
        && body.leaves_for == LeavesFor::Caller
        && body.continues_in.is_empty()
        && !body.exits.is_empty()
        && body.entered == body.entry
        && body.exits.iter().all(|exit| exit.kind == ExitKind::Return)
        && body.insns.iter().all(|insn| goes_on(image, body, insn))
}

fn goes_on(image: &Image, body: &Body, insn: &Insn) -> bool {
    match insn.flow {
        Flow::Next => !repeats(image, insn),
        Flow::Jump(to) | Flow::Branch(to) => (insn.end()..body.end).contains(&to),
        Flow::Return | Flow::Stop => true,
        _ => false,
    }
}

/// `rep movs` and its kind may take as long as any loop.
fn repeats(image: &Image, insn: &Insn) -> bool {
    let instruction = image
        .code_at(insn.addr)
        .and_then(|code| crate::insn::decode_one(code, insn.addr));
    instruction
        .is_none_or(|i| i.is_string_instruction() && (i.has_rep_prefix() || i.has_repne_prefix()))
}

/// The windows of a plan's functions as they are emitted.
pub(crate) struct Emission<'a> {
    encoder: &'a dyn ProbeEncoder,
    /// Springboards, sorted; and where windows begin whose first byte is part of a jump before them.
    boards: Vec<u64>,
    puns: HashSet<u64>,
}

impl<'a> Emission<'a> {
    pub fn of(plan: &ModulePlan, encoder: &'a dyn ProbeEncoder) -> Emission<'a> {
        let functions = plan.functions.iter().flat_map(|f| &f.windows);
        let all = || {
            functions
                .clone()
                .chain(plan.fragments.iter().flat_map(|f| &f.windows))
        };
        let mut boards: Vec<u64> = all().filter_map(|w| w.patch.springboard()).collect();
        boards.sort_unstable();
        let puns = all().filter(|w| matches!(w.patch, PatchForm::Pun { .. }));
        let puns = puns.map(|w| w.end).collect();
        Emission {
            encoder,
            boards,
            puns,
        }
    }

    pub fn is_leaf(&self, function: &FunctionPlan) -> bool {
        let entry = function.windows.first().and_then(|w| w.events.first());
        let is_first = entry.is_some_and(|e| e.at == function.windows[0].start);
        function.leaf && is_first && self.encoder.counts_leaf(function.function)
    }

    /// A counted leaf has its entry's window only, unless others have their room in one of the rest: then it has all, because a jump into
    /// one may be right only as long as it runs in another's stub.
    pub fn windows<'p>(&self, function: &'p FunctionPlan) -> Cow<'p, [Window]> {
        if !self.is_leaf(function) {
            return Cow::Borrowed(&function.windows);
        }
        let (_, rest) = function.windows.split_at(1);
        let all = rest.iter().any(|window| self.has_room_for_others(window));
        let kept = if all {
            &function.windows[..]
        } else {
            &function.windows[..1]
        };
        let windows = kept.iter().map(|window| Window {
            events: window
                .events
                .iter()
                .find_map(entry_at)
                .into_iter()
                .collect(),
            ..window.clone()
        });
        Cow::Owned(windows.collect())
    }

    fn has_room_for_others(&self, window: &Window) -> bool {
        let next = self
            .boards
            .partition_point(|board| board + JUMP <= window.start);
        let has_board = self
            .boards
            .get(next)
            .is_some_and(|&board| board < window.end);
        has_board || window.prefix.is_some() || self.puns.contains(&window.start)
    }
}

fn entry_at(event: &Event) -> Option<Event> {
    match event.probe {
        Probe::Entry { function, .. } => Some(Event {
            at: event.at,
            probe: Probe::Leaf { function },
        }),
        _ => None,
    }
}
