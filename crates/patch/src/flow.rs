//! One function's code: the instructions that can run, who jumps where inside it, and how it is left.

use crate::image::Image;
use crate::insn::{Flow, Insn, decode_one, decoder, padding_len};
use crate::interface::SkipReason;
use crate::targets::Targets;
use iced_x86::{Decoder, Instruction, Mnemonic, OpKind, Register};
use thalweg_symbols::FunctionKind;

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
    for &root in targets.in_range(f.start, f.end) {
        if walk.seen[(root - f.start) as usize] != UNSEEN {
            continue;
        }
        let (insns, blocked) = (walk.insns.len(), walk.blocked.len());
        // What does not decode was no code: a constant that looks like an address.
        if walk.follow(root).is_err() {
            walk.undo(insns, blocked);
        }
    }
    let mut body = walk.finish(targets);
    body.entered = behind_stack_check(&body, bytes).unwrap_or(body.entry);
    body.leaves_for = leaves_for(image, &body);
    classify(image, targets, function, &mut body)?;
    Ok(body)
}

impl Walk<'_> {
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
                after_call = matches!(insn.flow, Flow::Call(_) | Flow::CallIndirect);
                if let Some(target) = insn.jump_target() {
                    work.push((target, false));
                }
                if let Flow::Transaction(target) = insn.flow {
                    self.blocked.push(target);
                    work.push((target, false));
                }
                if insn.closed() {
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
            if self.insns[i].closed() && !targets.any_in(from, from + padding) && padding > 0 {
                free.push((from, from + padding));
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

/// Code that makes another value than one of its own the stack pointer, and then leaves without a further branch:
///
/// ```text
///   mov rsp, [rdx+0xa0] ... ret          swapcontext
///   mov rsp, rdi ... jmp r8              boost's jump_fcontext
///   mov rsp, rcx; pop rcx; jmp rcx       the unwinder, once it has found who catches
/// ```
///
/// What switches stacks is written by hand and calls nothing; the unwinder calls a lot, and then leaves as shown.
fn leaves_for(image: &Image, body: &Body) -> LeavesFor {
    let calls = |i: &Insn| matches!(i.flow, Flow::Call(_) | Flow::CallIndirect);
    let calls = body.insns.iter().any(calls);
    if !calls && body.end - body.start > LONGEST_SWITCH {
        return LeavesFor::Caller;
    }
    for (index, insn) in body.insns.iter().enumerate() {
        if insn.flow != Flow::Next || insn.len < 3 {
            continue;
        }
        let code = image.code_at(insn.addr);
        // mov r64, r/m64 and mov r/m64, r64, with any REX prefix that has W.
        if !matches!(code, Some([0x48..=0x4f, 0x89 | 0x8b, ..])) {
            continue;
        }
        let Some(i) = code.and_then(|c| decode_one(c, insn.addr)) else {
            continue;
        };
        if i.op0_kind() != OpKind::Register || i.op0_register() != Register::RSP {
            continue;
        }
        let foreign = match i.op1_kind() {
            OpKind::Register => {
                i.op1_register() != Register::RBP
                    && !keeps_stack_pointer(image, body, i.op1_register())
            }
            OpKind::Memory => !matches!(i.memory_base(), Register::RSP | Register::RBP),
            _ => false,
        };
        if !foreign {
            continue;
        }
        if calls {
            if matches!(
                code,
                Some([0x48, 0x89, 0xcc, 0x59, 0xff, 0xe1, ..] | [0x48, 0x89, 0xcc, 0xc3, ..])
            ) {
                return LeavesFor::OuterCaller;
            }
            continue;
        }
        let straight = body.insns[index..]
            .windows(2)
            .find(|pair| pair[0].flow != Flow::Next || pair[0].end() != pair[1].addr);
        let last = straight.map_or(body.insns[body.insns.len() - 1], |pair| pair[0]);
        if matches!(last.flow, Flow::Return | Flow::JumpIndirect) {
            return LeavesFor::OtherStack;
        }
    }
    LeavesFor::Caller
}

/// No function that switches stacks is longer.
const LONGEST_SWITCH: u64 = 1024;

/// Does the function copy its own stack pointer to `register` anywhere? Then what it loads from there is its own.
fn keeps_stack_pointer(image: &Image, body: &Body, register: Register) -> bool {
    body.insns.iter().any(|insn| {
        let i = image
            .code_at(insn.addr)
            .and_then(|c| decode_one(c, insn.addr));
        i.is_some_and(|i| {
            let to_it = i.op_count() == 2
                && i.op0_kind() == OpKind::Register
                && i.op0_register() == register;
            let of_rsp = match i.mnemonic() {
                Mnemonic::Mov => {
                    i.op1_kind() == OpKind::Register && i.op1_register() == Register::RSP
                }
                Mnemonic::Lea => i.memory_base() == Register::RSP,
                _ => false,
            };
            to_it && of_rsp
        })
    })
}

/// Finds the exits, and refuses what is not understood.
fn classify(
    image: &Image,
    targets: &Targets,
    function: usize,
    body: &mut Body,
) -> Result<(), SkipReason> {
    let module = image.module;
    let mut exits = Vec::new();
    let mut continues_in = Vec::new();
    for index in 0..body.insns.len() {
        let insn = body.insns[index];
        let at = insn.addr;
        let kind = match insn.flow {
            Flow::Return => {
                if body.leaves_for == LeavesFor::Caller {
                    check_return(image, body, index)?;
                }
                ExitKind::Return
            }
            Flow::ReturnPop => ExitKind::ReturnPop,
            Flow::JumpIndirect if body.leaves_for == LeavesFor::OtherStack => {
                ExitKind::TailIndirect
            }
            Flow::JumpIndirect => match indirect(image, targets, function, body, index)? {
                true => ExitKind::TailIndirect,
                false => continue,
            },
            Flow::Jump(t) | Flow::Branch(t) | Flow::CountBranch(t)
                if !(body.start..body.end).contains(&t) =>
            {
                let to = image.function_at(t);
                let leaves = frame_gone(image, body, index);
                let kind = match to.map(|g| (g, &module.functions[g])) {
                    None if leaves => ExitKind::Tail(None),
                    _ if !leaves && never_taken(image, body, index, t) => continue,
                    None => return Err(SkipReason::OddJump { at }),
                    Some((_, g)) if is_return_thunk(image, g) => ExitKind::Thunk,
                    Some((_, g)) if g.kind == FunctionKind::Plt && leaves => ExitKind::TailPlt,
                    Some((g, other))
                        if t == other.start && other.kind != FunctionKind::Fragment =>
                    {
                        if !leaves {
                            return Err(SkipReason::OddJump { at });
                        }
                        ExitKind::Tail(Some(g))
                    }
                    Some((g, _)) => {
                        continues_in.push(g);
                        continue;
                    }
                };
                if matches!(insn.flow, Flow::CountBranch(_)) {
                    return Err(SkipReason::OddJump { at });
                }
                kind
            }
            Flow::Next | Flow::Branch(_) | Flow::CountBranch(_) | Flow::Kernel
                if insn.end() == body.end && !insn.nop =>
            {
                match runs_into(image, body.end) {
                    Some(next) if insn.flow == Flow::Next && !image.is_fragment(next) => {
                        ExitKind::FallThrough(next)
                    }
                    _ => return Err(SkipReason::FallsThrough { at }),
                }
            }
            _ => continue,
        };
        exits.push(Exit { insn: index, kind });
    }
    continues_in.sort_unstable();
    continues_in.dedup();
    body.exits = exits;
    body.continues_in = continues_in;
    Ok(())
}

/// A jump behind a call that never returns, to the end of a function: where compilers send what they know to be unreachable.
fn never_taken(image: &Image, body: &Body, index: usize, target: u64) -> bool {
    let functions = &image.module.functions;
    let ends_there = functions
        .partition_point(|f| f.start < target)
        .checked_sub(1)
        .is_some_and(|f| functions[f].end == target);
    let after_call = index
        .checked_sub(1)
        .map(|i| body.insns[i])
        .is_some_and(|before| {
            before.end() == body.insns[index].addr
                && matches!(before.flow, Flow::Call(_) | Flow::CallIndirect)
        });
    ends_there && after_call
}

/// The function whose start comes next for code that runs on at `end`, nops aside.
fn runs_into(image: &Image, end: u64) -> Option<usize> {
    let start = image.next_start(end);
    let nops = image.code_range(end, start)?;
    let only_nops = padding_len(nops, end) == nops.len() && !nops.contains(&0xcc);
    only_nops.then(|| image.function_at(start)).flatten()
}

/// At a jump out or a return: is the return address on top of the stack?
///
/// Unwind information decides where it is right. Some compilers leave epilogues out of it, so an instruction that gives
/// up the frame just before counts as well.
fn frame_gone(image: &Image, body: &Body, index: usize) -> bool {
    match image.module.cfi.cfa_is_rsp_plus_8(body.insns[index].addr) {
        Some(true) | None => true,
        Some(false) => previous(image, body, index).is_some_and(|i| gives_up_frame(&i)),
    }
}

fn gives_up_frame(i: &Instruction) -> bool {
    let to_rsp =
        i.op_count() > 0 && i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
    match i.mnemonic() {
        Mnemonic::Pop | Mnemonic::Leave => true,
        Mnemonic::Add | Mnemonic::Lea | Mnemonic::Mov => to_rsp,
        _ => false,
    }
}

fn previous(image: &Image, body: &Body, index: usize) -> Option<Instruction> {
    let before = body.insns[index.checked_sub(1)?];
    (before.end() == body.insns[index].addr).then_some(())?;
    decode_one(image.code_at(before.addr)?, before.addr)
}

/// Refuses a `ret` that jumps somewhere inside (`push target; ret`, retpolines).
fn check_return(image: &Image, body: &Body, index: usize) -> Result<(), SkipReason> {
    let at = body.insns[index].addr;
    let odd = Err(SkipReason::OddReturn { at });
    match previous(image, body, index) {
        Some(i) if i.mnemonic() == Mnemonic::Push => odd,
        Some(i)
            if i.op_count() == 2
                && i.op0_kind() == OpKind::Memory
                && i.memory_base() == Register::RSP
                && i.memory_index() == Register::None
                && i.memory_displacement64() == 0
                && i.mnemonic() == Mnemonic::Mov =>
        {
            odd
        }
        _ if frame_gone(image, body, index) => Ok(()),
        _ => odd,
    }
}

fn is_return_thunk(image: &Image, f: &thalweg_symbols::Function) -> bool {
    if f.linkage_name.as_deref() == Some("__x86_return_thunk") || f.name == "__x86_return_thunk" {
        return true;
    }
    let Some(code) = image.code_at(f.start) else {
        return false;
    };
    // call 1f; 2: pause; lfence; jmp 2b; 1: lea rsp, [rsp+8]; ret (or add rsp, 8; ret)
    let spin = [0xf3, 0x90, 0x0f, 0xae, 0xe8];
    let retpoline = code.first() == Some(&0xe8)
        && code.get(5..10) == Some(&spin)
        && code.get(10..48).is_some_and(|tail| {
            let ends: [&[u8]; 2] = [
                &[0x48, 0x8d, 0x64, 0x24, 0x08, 0xc3],
                &[0x48, 0x83, 0xc4, 0x08, 0xc3],
            ];
            ends.iter()
                .any(|end| tail.windows(end.len()).any(|w| w == *end))
        });
    let untouchable_ret =
        matches!(f.kind, FunctionKind::Untouchable(_)) && code.first() == Some(&0xc3);
    retpoline || untouchable_ret
}

/// Does the indirect jump at `index` leave the function? `Err` when it may go to places inside that nobody told.
fn indirect(
    image: &Image,
    targets: &Targets,
    function: usize,
    body: &Body,
    index: usize,
) -> Result<bool, SkipReason> {
    let at = body.insns[index].addr;
    let unresolved = Err(SkipReason::UnresolvedJump { at });
    let Some(jump) = image.code_at(at).and_then(|b| decode_one(b, at)) else {
        return unresolved;
    };
    let inner_targets = targets.any_in(body.insns[body.entry].addr + 1, body.end);
    let resolved = targets.with_tables.contains(&function) || inner_targets;
    let computed = match jump.op0_kind() {
        OpKind::Register => definition(image, body, index, jump.op0_register()),
        _ => Some(jump),
    };
    let from_table =
        |i: &Instruction| i.memory_index() != Register::None && i.memory_index_scale() == 8;
    let local = match &computed {
        // Register that came in from elsewhere: a pointer to a function.
        None => false,
        Some(i) => match i.mnemonic() {
            Mnemonic::Mov | Mnemonic::Jmp if has_memory(i) => from_table(i) && inner_targets,
            Mnemonic::Lea if i.is_ip_rel_memory_operand() => {
                (body.start..body.end).contains(&i.ip_rel_memory_address())
            }
            // An offset from a table's start.
            Mnemonic::Add | Mnemonic::Lea
                if offset_from_table(image, targets, function, body, index, i) =>
            {
                return Ok(false);
            }
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::Lea | Mnemonic::Movsxd => return unresolved,
            // Copied, chosen among several, or unscrambled: a pointer to a function.
            _ => false,
        },
    };
    if local {
        return Ok(false);
    }
    if frame_gone(image, body, index) {
        return Ok(true);
    }
    // With a frame on the stack it stays inside, and somebody must have told where.
    if resolved { Ok(false) } else { unresolved }
}

/// `sum` is `add a, b` or `lea c, [a + b]` before the jump at `index`: is one a table known to hold offsets of targets, the other such an offset?
///
/// The table's address may come from far away; then any table of the function will do.
fn offset_from_table(
    image: &Image,
    targets: &Targets,
    function: usize,
    body: &Body,
    index: usize,
    sum: &Instruction,
) -> bool {
    let summands = match sum.op1_kind() {
        OpKind::Register => [sum.op0_register(), sum.op1_register()],
        OpKind::Memory if sum.mnemonic() == Mnemonic::Lea && sum.memory_index_scale() == 1 => {
            [sum.memory_base(), sum.memory_index()]
        }
        _ => return false,
    };
    let Some(at) = body.index_of(sum.ip()).filter(|&at| at <= index) else {
        return false;
    };
    let sources = summands.map(|r| definition(image, body, at, r));
    let base = sources
        .iter()
        .flatten()
        .find(|i| i.is_ip_rel_memory_operand() && i.mnemonic() == Mnemonic::Lea);
    let is_offset = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Movsxd
            && has_memory(i)
            && (i.memory_index_scale() == 4 || i.is_ip_rel_memory_operand())
    };
    let has_offset = || sources.iter().flatten().any(is_offset);
    match base.map(|lea| lea.ip_rel_memory_address()) {
        Some(table) if !image.is_code(table) => targets.tables.contains(&table),
        Some(label) => targets.tables.contains(&label) && has_offset(),
        None => targets.with_tables.contains(&function) && has_offset(),
    }
}

fn has_memory(i: &Instruction) -> bool {
    (0..i.op_count()).any(|op| i.op_kind(op) == OpKind::Memory)
}

/// The last instruction before `index`, in straight line, that sets `register`.
fn definition(image: &Image, body: &Body, index: usize, register: Register) -> Option<Instruction> {
    let mut i = index;
    for _ in 0..16 {
        let before = *body.insns.get(i.checked_sub(1)?)?;
        if before.end() != body.insns[i].addr || before.closed() {
            return None;
        }
        if matches!(before.flow, Flow::Call(_) | Flow::CallIndirect) {
            return None;
        }
        let instruction = decode_one(image.code_at(before.addr)?, before.addr)?;
        let writes = instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register().full_register() == register.full_register()
            && !matches!(
                instruction.mnemonic(),
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt
            );
        if writes {
            return Some(instruction);
        }
        i -= 1;
    }
    None
}
