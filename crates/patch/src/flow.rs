//! One function's code: the instructions that can run, who jumps where inside it, and how it is left.

use crate::image::Image;
use crate::insn::{Flow, Insn, decoder, only_nops, padding_len};
use crate::interface::SkipReason;
use crate::targets::Targets;
use iced_x86::{Decoder, Instruction};
use thalweg_symbols::syscall_never_returns;

mod exits;
mod indirect;
mod switches;

use exits::classify;
use switches::leaves_for;

/// Where a function's exits lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LeavesFor {
    /// Its caller, or a function that returns there in its stead.
    #[default]
    Caller,
    /// Perhaps another stack.
    OtherStack,
    /// Perhaps a caller further up.
    OuterCaller,
}

/// How a function is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitKind {
    Return,
    ReturnPop,
    /// Jump to a thunk that does nothing but return.
    Thunk,
    /// Jump to the start of another function, or to code that belongs to none.
    Tail(Option<usize>),
    TailPlt,
    TailIndirect,
    /// The last instruction runs on into the function behind.
    FallThrough(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Exit {
    /// Index into `Body::insns`.
    pub insn: usize,
    pub kind: ExitKind,
}

#[derive(Debug, Default)]
pub(crate) struct Body {
    pub start: u64,
    pub end: u64,
    /// In address order. Consecutive ones touch, except around padding, unreached code and overlaps.
    pub insns: Vec<Insn>,
    /// (target, index of the jump), sorted: direct jumps within the function.
    pub soft: Vec<(u64, usize)>,
    /// Sorted: more addresses inside that nothing may cover.
    pub blocked: Vec<u64>,
    /// Padding inside the function that nobody runs.
    pub free: Vec<(u64, u64)>,
    pub exits: Vec<Exit>,
    /// Functions and fragments in whose middle this one goes on: their exits are its exits too.
    pub continues_in: Vec<usize>,
    /// Index of the instruction that the entry patch displaces first.
    pub entry: usize,
    /// Index of the instruction before which the entry counts as made: the same, but for Go's check of the stack.
    pub entered: usize,
    pub leaves_for: LeavesFor,
}

impl Body {
    pub fn index_of(&self, addr: u64) -> Option<usize> {
        self.insns.binary_search_by_key(&addr, |i| i.addr).ok()
    }

    /// Does `addr` lie inside an instruction, not at its start?
    pub fn inside_instruction(&self, addr: u64) -> bool {
        let after = self.insns.partition_point(|i| i.addr <= addr);
        after
            .checked_sub(1)
            .is_some_and(|i| self.insns[i].addr < addr && addr < self.insns[i].end())
    }

    /// Indices of the jumps to `target`.
    pub fn sources(&self, target: u64) -> impl Iterator<Item = usize> + '_ {
        let first = self.soft.partition_point(|&(t, _)| t < target);
        self.soft[first..]
            .iter()
            .take_while(move |&&(t, _)| t == target)
            .map(|&(_, source)| source)
    }

    /// Distinct targets of own jumps in `[from, to)`.
    pub fn soft_in(&self, from: u64, to: u64) -> Vec<u64> {
        let first = self.soft.partition_point(|&(t, _)| t < from);
        let mut found: Vec<u64> = self.soft[first..]
            .iter()
            .map(|&(t, _)| t)
            .take_while(|&t| t < to)
            .collect();
        found.dedup();
        found
    }
}

const UNSEEN: u32 = 0;
const INSIDE: u32 = u32::MAX;

struct Walk<'m> {
    start: u64,
    end: u64,
    bytes: &'m [u8],
    decoder: Decoder<'m>,
    /// Reused: it is big.
    instruction: Instruction,
    /// Per byte: `UNSEEN`, 1 + index of the instruction that starts there, or `INSIDE` of one.
    seen: Vec<u32>,
    insns: Vec<Insn>,
    blocked: Vec<u64>,
}

/// Follows `function`'s code from its start and from every known target inside.
pub(crate) fn body_of(
    image: &Image,
    targets: &Targets,
    function: usize,
) -> Result<Body, SkipReason> {
    let f = &image.module.functions[function];
    let bytes = image
        .code_range(f.start, f.end)
        .filter(|b| !b.is_empty())
        .ok_or(SkipReason::NoCode)?;
    let mut walk = Walk {
        start: f.start,
        end: f.end,
        bytes,
        decoder: decoder(bytes, f.start),
        instruction: Instruction::default(),
        seen: vec![UNSEEN; bytes.len()],
        insns: Vec::with_capacity(bytes.len() / 4),
        blocked: Vec::new(),
    };
    walk.follow(f.start)?;
    let roots = targets.in_range(f.start, f.end);
    let (certain, doubtful): (Vec<u64>, Vec<u64>) = roots
        .iter()
        .partition(|&&root| is_certain(image, targets, root));
    for root in certain {
        walk.try_root(root);
    }
    // A switch may stand in one part of a function, and its cases in another.
    let in_parts = |i: &Insn| {
        let outside = i.jump_target().filter(|t| !(f.start..f.end).contains(t));
        outside.is_some_and(|t| image.function_at(t).is_some_and(|g| image.is_fragment(g)))
    };
    let mut computes = image.is_fragment(function);
    let mut asked = 0;
    for root in doubtful {
        if targets.read.contains(&root) {
            continue;
        }
        // Computed jumps go to such places; where there is none, it may be a string.
        let computed =
            targets.tabled.contains(&root) || image.module.pointed_to.binary_search(&root).is_ok();
        let jumps = |i: &Insn| i.flow == Flow::JumpIndirect || in_parts(i);
        computes |= walk.insns[asked..].iter().any(jumps);
        asked = walk.insns.len();
        let padding = |walk: &Walk| walk.insns[asked..].iter().all(|i| i.nop);
        if walk.try_root(root) && !(computed && computes) && !padding(&walk) {
            return Err(SkipReason::MaybeData { at: root });
        }
    }
    let mut body = walk.finish(targets);
    body.entered = behind_stack_check(&body, bytes).unwrap_or(body.entry);
    body.leaves_for = leaves_for(image, &body);
    classify(image, targets, function, &mut body)?;
    Ok(body)
}

/// Does an instruction stand there, whatever the bytes look like?
fn is_certain(image: &Image, targets: &Targets, root: u64) -> bool {
    targets.jumped_to.contains(&root) || image.module.certain_code.binary_search(&root).is_ok()
}

impl Walk<'_> {
    /// Follows the code at `root`, unless it is known. True if there was something new to follow.
    ///
    /// What does not decode was no code: a constant that looks like an address.
    fn try_root(&mut self, root: u64) -> bool {
        if self.seen[(root - self.start) as usize] != UNSEEN {
            return false;
        }
        let (insns, blocked) = (self.insns.len(), self.blocked.len());
        let is_code = self.follow(root).is_ok();
        if !is_code {
            self.undo(insns, blocked);
        }
        is_code
    }

    fn follow(&mut self, root: u64) -> Result<(), SkipReason> {
        let mut work = vec![(root, false)];
        while let Some((mut at, mut after_call)) = work.pop() {
            while (self.start..self.end).contains(&at) {
                let offset = (at - self.start) as usize;
                match self.seen[offset] {
                    UNSEEN => {}
                    INSIDE => {
                        self.overlap(at)?;
                        break;
                    }
                    _ => break,
                }
                let Some(insn) = self.decode(offset, at) else {
                    if after_call {
                        // The call does not return.
                        break;
                    }
                    return Err(SkipReason::Undecodable { at });
                };
                let span = offset + 1..offset + usize::from(insn.len);
                if let Some(other) = self.seen[span.clone()].iter().position(|&s| s != UNSEEN) {
                    // Reached the prefix after what it prefixes: same rule as the other way round.
                    let inner = at + 1 + other as u64;
                    if !self.lock_prefix(at, inner) {
                        return Err(SkipReason::Overlapping { at });
                    }
                    self.blocked.push(inner);
                    self.blocked.push(at);
                    self.seen[offset] = INSIDE;
                    break;
                }
                self.insns.push(insn);
                self.seen[offset] = self.insns.len() as u32;
                self.seen[span].fill(INSIDE);
                if self.calls_over(&insn) {
                    return Err(SkipReason::MaybeData { at: insn.end() });
                }
                after_call = matches!(insn.flow, Flow::Call(_) | Flow::CallIndirect);
                if let Some(target) = insn.jump_target() {
                    work.push((target, false));
                }
                if let Flow::Transaction(target) = insn.flow {
                    self.blocked.push(target);
                    work.push((target, false));
                }
                if insn.closed() || self.ends_thread(&insn) {
                    break;
                }
                if insn.flow == Flow::Unmovable {
                    return Err(SkipReason::Undecodable { at });
                }
                at = insn.end();
            }
        }
        Ok(())
    }

    /// A call of a place in the function's own middle is no call: its return address is that of a string, or of nothing.
    fn calls_over(&self, insn: &Insn) -> bool {
        let inside = |target: u64| self.start < target && target < self.end;
        matches!(insn.flow, Flow::Call(target) if inside(target) && target != insn.end())
    }

    /// A system call behind which nothing runs.
    fn ends_thread(&self, insn: &Insn) -> bool {
        let before = &self.bytes[..(insn.addr - self.start) as usize];
        insn.flow == Flow::Kernel && syscall_never_returns(before)
    }

    fn decode(&mut self, offset: usize, at: u64) -> Option<Insn> {
        if self.decoder.position() != offset {
            self.decoder.set_position(offset).ok()?;
        }
        self.decoder.set_ip(at);
        self.decoder.decode_out(&mut self.instruction);
        Insn::from_iced(&self.instruction)
    }

    /// A jump into the middle of an instruction is known only in one form: past a `lock` prefix.
    fn overlap(&mut self, at: u64) -> Result<(), SkipReason> {
        let before = (at - self.start)
            .checked_sub(1)
            .map(|b| self.seen[b as usize]);
        match before {
            Some(index) if index != UNSEEN && index != INSIDE && self.lock_prefix(at - 1, at) => {
                self.blocked.push(at);
                Ok(())
            }
            _ if self.blocked.contains(&at) => Ok(()),
            _ => Err(SkipReason::Overlapping { at }),
        }
    }

    fn lock_prefix(&self, prefix: u64, inner: u64) -> bool {
        let offset = (prefix - self.start) as usize;
        inner == prefix + 1 && self.bytes.get(offset) == Some(&0xf0)
    }

    fn undo(&mut self, insns: usize, blocked: usize) {
        for insn in self.insns.drain(insns..) {
            let offset = (insn.addr - self.start) as usize;
            self.seen[offset..offset + usize::from(insn.len)].fill(UNSEEN);
        }
        self.blocked.truncate(blocked);
    }

    fn finish(mut self, targets: &Targets) -> Body {
        self.insns.sort_unstable_by_key(|i| i.addr);
        let mut free = Vec::new();
        for i in 0..self.insns.len() {
            let from = self.insns[i].end();
            let to = self.insns.get(i + 1).map_or(self.end, |n| n.addr);
            if from >= to || !(self.start..=self.end).contains(&from) {
                continue;
            }
            let gap = &self.bytes[(from - self.start) as usize..(to - self.start) as usize];
            let padding = padding_len(gap, from) as u64;
            if self.insns[i].closed() && !targets.any_in(from, to) && only_nops(gap, from) {
                free.push((from, to));
            }
            if padding < to - from {
                self.unreached(from + padding, to);
            }
        }
        let mut soft: Vec<(u64, usize)> = self
            .insns
            .iter()
            .enumerate()
            .filter_map(|(i, insn)| Some((insn.jump_target()?, i)))
            .filter(|(t, _)| (self.start..self.end).contains(t))
            .collect();
        soft.sort_unstable();
        self.blocked.sort_unstable();
        self.blocked.dedup();
        let endbr = self.insns.first().is_some_and(|i| i.fixed) && self.insns.len() > 1;
        Body {
            start: self.start,
            end: self.end,
            insns: self.insns,
            soft,
            blocked: self.blocked,
            free,
            entry: usize::from(endbr),
            entered: usize::from(endbr),
            ..Body::default()
        }
    }

    /// Code that no known way leads to: its jumps still count, in case a way was missed.
    fn unreached(&mut self, from: u64, to: u64) {
        let bytes = &self.bytes[(from - self.start) as usize..(to - self.start) as usize];
        for instruction in &mut decoder(bytes, from) {
            if let Some(target) = Insn::from_iced(&instruction).and_then(|i| i.jump_target()) {
                self.blocked.push(target);
            }
        }
        self.blocked.push(from);
    }
}

/// Go functions begin with a check for room on the stack; when there is none they get a bigger one and start again, on other
/// addresses. The call counts once the check is passed:
///
/// ```text
///   f:  cmp rsp, [r14+16]         or   lea r12, [rsp-N]; cmp r12, [r14+16]
///       jbe grow                       jbe grow
///       ...                       grow: call runtime.morestack; jmp f
/// ```
fn behind_stack_check(body: &Body, bytes: &[u8]) -> Option<usize> {
    let code = |i: usize| {
        let insn = body.insns.get(i)?;
        let at = (insn.addr - body.start) as usize;
        bytes.get(at..at + usize::from(insn.len))
    };
    let branch = match code(0)? {
        [0x49, 0x3b, 0x66, 0x10] => 1,
        [0x4c, 0x8d, 0x64 | 0xa4, 0x24, ..] if code(1)? == [0x4d, 0x3b, 0x66, 0x10] => 2,
        _ => return None,
    };
    let is_jbe = matches!(code(branch)?, [0x76, ..] | [0x0f, 0x86, ..]);
    let in_line = body.insns[..=branch]
        .windows(2)
        .all(|pair| pair[0].end() == pair[1].addr);
    let goes_on = body.insns.get(branch + 1)?.addr == body.insns[branch].end();
    (is_jbe && in_line && goes_on && body.entry == 0).then_some(branch + 1)
}
