//! Checks an emission against the text it is for, by decoding both again.
//!
//! Shares only the decoder with the planner. A clean result means: every patch leads to its stub, every displaced instruction
//! does in the stub what it did at home, no patch lies on anything that is still jumped to, and the maps of program
//! counters agree with the code.

use crate::interface::{Emitted, Event, ModulePlan, PatchForm, Placement, Probe, Window};
use crate::leaf::Emission;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::borrow::Cow;
use std::collections::HashMap;
use thalweg_symbols::Module;

/// Everything found wrong, as text; empty when the emission is sound.
pub fn verify(
    module: &Module,
    plan: &ModulePlan,
    emitted: &Emitted,
    place: &Placement,
) -> Vec<String> {
    let mut check = Check {
        module,
        emitted,
        place,
        moves: emitted.moves.iter().copied().collect(),
        back: emitted.back.iter().copied().collect(),
        patches: emitted
            .patches
            .iter()
            .enumerate()
            .map(|(i, p)| (p.address, i))
            .collect(),
        problems: Vec::new(),
    };
    check.bytes();
    check.maps();
    let emission = Emission::of(plan, place.encoder);
    let functions = plan
        .functions
        .iter()
        .map(|f| (f.function, emission.windows(f), f.keep_flags));
    let fragments = plan
        .fragments
        .iter()
        .map(|f| (f.function, Cow::Borrowed(&f.windows[..]), f.keep_flags));
    for (function, windows, keep_flags) in functions.chain(fragments) {
        let copies = check.copies(&windows, keep_flags);
        for window in windows.iter() {
            check.window(function, window, &windows, keep_flags, &copies);
        }
    }
    check.targets(plan);
    let ends = emitted
        .stubs
        .iter()
        .map(|row| (row.address, row.bytes.len() as u64));
    let ends: Vec<(u64, u64)> = ends.map(|(at, len)| (at, at + len)).collect();
    let in_order = ends.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    let bytes = emitted.stubs_end().saturating_sub(place.stub_base);
    if bytes > plan.stub_size_bound() || !in_order {
        check.problems.push(format!(
            "{bytes} bytes of stubs exceed the bound {}, or lie over each other",
            plan.stub_size_bound()
        ));
    }
    check.problems
}

struct Check<'a> {
    module: &'a Module,
    emitted: &'a Emitted,
    place: &'a Placement<'a>,
    moves: HashMap<u64, u64>,
    back: HashMap<u64, u64>,
    patches: HashMap<u64, usize>,
    problems: Vec<String>,
}

/// Module address of a displaced instruction -> where the stub goes on for somebody who jumps there.
type Copies = HashMap<u64, u64>;

impl Check<'_> {
    fn say(&mut self, at: u64, what: impl std::fmt::Display) {
        self.problems.push(format!("{at:#x}: {what}"));
    }

    fn text(&self, addr: u64, len: usize) -> Option<&[u8]> {
        self.module
            .sections
            .iter()
            .filter(|s| s.executable)
            .find_map(|s| {
                let offset = usize::try_from(addr.checked_sub(s.vaddr)?).ok()?;
                let rest = s.bytes.get(offset..)?;
                (!rest.is_empty()).then(|| &rest[..rest.len().min(len)])
            })
    }

    fn original(&self, addr: u64) -> Option<Instruction> {
        decode(self.text(addr, 15)?, addr)
    }

    fn stub(&self, addr: u64) -> Option<Instruction> {
        decode(self.emitted.stubs_at(addr)?, addr)
    }

    fn same_bytes(&self, home: &Instruction, copy: u64) -> bool {
        let moved = self.emitted.stubs_at(copy);
        let moved = moved.and_then(|s| s.get(..home.len()));
        moved.is_some() && moved == self.text(home.ip(), home.len())
    }

    /// Patches lie within a page, do not overlap, and know what they replace.
    fn bytes(&mut self) {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for patch in &self.emitted.patches {
            let end = patch.address + patch.replacement.len() as u64;
            ranges.push((patch.address, end));
            let home = patch.address.wrapping_sub(self.place.bias);
            let same = self.text(home, patch.original.len()) == Some(&*patch.original);
            let fits = patch.original.len() == patch.replacement.len()
                && patch.address >> 12 == (end - 1) >> 12;
            if !same || !fits {
                self.problems.push(format!(
                    "{home:#x}: patch straddles a page or has the wrong original bytes"
                ));
            }
        }
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            if pair[0].1 > pair[1].0 {
                self.say(pair[1].0, "patches overlap");
            }
        }
    }

    fn maps(&mut self) {
        let sorted = |map: &[(u64, u64)]| map.windows(2).all(|w| w[0].0 < w[1].0);
        if !sorted(&self.emitted.moves) || !sorted(&self.emitted.back) {
            self.say(0, "maps of program counters are not sorted");
        }
    }

    /// Where each displaced instruction went, probes before it included.
    fn copies(&mut self, windows: &[Window], keep_flags: bool) -> Copies {
        let mut copies = Copies::new();
        for window in windows {
            let Some(stub) = self.jump_of(window) else {
                continue;
            };
            let mut first = stub;
            if let Some(Event {
                at,
                probe: probe @ (Probe::Entry { .. } | Probe::Leaf { .. }),
            }) = window.events.first()
                && *at == window.start
            {
                first += self.probe_at(stub, *probe, keep_flags);
            }
            copies.insert(window.start, first);
            if self.text(window.start.wrapping_sub(4), 4) == Some(&[0xf3, 0x0f, 0x1e, 0xfa])
                && first != stub
            {
                copies.insert(window.start - 4, first);
            }
            for addr in window.start + 1..window.end {
                if let Some(&copy) = self.moves.get(&addr.wrapping_add(self.place.bias)) {
                    copies.insert(addr, copy);
                }
            }
        }
        copies
    }

    /// Where the short jump of `window` at `at` goes.
    fn short_jump(&self, window: &Window, at: u64) -> Option<u64> {
        let order = *self.patches.get(&at)?;
        let mut bytes = self.emitted.patches[order].replacement.to_vec();
        if let PatchForm::Pun { .. } = window.patch {
            // Its displacement is the first byte of the patch behind it, which has to be there first.
            let behind = *self.patches.get(&(at + 1))?;
            if bytes.len() != 1 || behind > order {
                return None;
            }
            bytes.push(*self.emitted.patches[behind].replacement.first()?);
        }
        let jump = decode(&bytes, at)?;
        (jump.mnemonic() == Mnemonic::Jmp && jump.len() == bytes.len())
            .then(|| jump.near_branch_target())
    }

    /// The stub that the patch of `window` leads to.
    fn jump_of(&mut self, window: &Window) -> Option<u64> {
        let mut at = window.start.wrapping_add(self.place.bias);
        if let Some(springboard) = window.patch.springboard() {
            let board = springboard.wrapping_add(self.place.bias);
            if self.short_jump(window, at) != Some(board)
                || self.patches.get(&board) >= self.patches.get(&at)
            {
                self.say(
                    window.start,
                    "short jump misses its springboard, or is written before it",
                );
                return None;
            }
            if self.back.get(&board) != Some(&at) {
                self.say(springboard, "no way back from a springboard");
            }
            at = board;
        }
        let patch = self.patches.get(&at).map(|&i| &self.emitted.patches[i]);
        let jump = patch
            .and_then(|p| decode(&p.replacement, at))
            .filter(|j| j.mnemonic() == Mnemonic::Jmp);
        if jump.is_none() {
            self.say(window.start, "window without a patch");
        }
        jump.map(|j| j.near_branch_target())
    }

    /// Length of the probe that has to stand at `at`; complains if it does not.
    fn probe_at(&mut self, at: u64, probe: Probe, keep_flags: bool) -> u64 {
        let mut expected = Vec::new();
        self.place
            .encoder
            .encode(probe, keep_flags, at, &mut expected);
        let found = self.emitted.stubs_at(at);
        let found = found.and_then(|s| s.get(..expected.len()));
        if found != Some(&expected) {
            self.say(at, format_args!("no {probe:?} probe in the stub"));
        }
        expected.len() as u64
    }

    fn window(
        &mut self,
        function: usize,
        window: &Window,
        windows: &[Window],
        keep_flags: bool,
        copies: &Copies,
    ) {
        let Some(stub) = self.jump_of(window) else {
            return;
        };
        let f = &self.module.functions[function];
        if window.start < f.start || window.end > f.end || window.start >= window.end {
            return self.say(window.start, "window outside of its function");
        }
        let mut at = window.start;
        let mut copy = stub;
        let mut events = window.events.iter().copied().peekable();
        let mut open = true;
        if self.back.get(&stub) != Some(&at.wrapping_add(self.place.bias)) {
            self.say(at, "no way back from the start of a stub");
        }
        while at < window.end {
            let Some(home) = self.original(at) else {
                return self.say(at, "undecodable in a window");
            };
            let entry = |e: &Event| {
                e.at == at && matches!(e.probe, Probe::Entry { .. } | Probe::Leaf { .. })
            };
            if let Some(event) = events.next_if(entry) {
                copy += self.probe_at(copy, event.probe, keep_flags);
            }
            if at != window.start && copies.get(&at) != Some(&copy) {
                return self.say(at, "no move for a displaced instruction, or a wrong one");
            }
            if self.back.get(&copy) != Some(&at.wrapping_add(self.place.bias)) {
                self.say(at, "no way back from a copy to its instruction");
            }
            let event = events.next_if(|e| e.at == at).map(|e| e.probe);
            let Some(next) = self.instruction(&home, copy, event, keep_flags, copies) else {
                return;
            };
            copy = next;
            open = !matches!(
                home.flow_control(),
                FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Return
            );
            at = home.next_ip();
            if let Some(padding) = window.padding.iter().find(|p| p.0 == at) {
                if open {
                    return self.say(at, "padding that is run");
                }
                at = padding.1;
            }
            if at > window.end {
                return self.say(at, "window ends inside an instruction");
            }
        }
        if let Some(event) = events.next_if(|e| e.at == window.end) {
            copy += self.probe_at(copy, event.probe, keep_flags);
        }
        if events.next().is_some() {
            self.say(window.start, "probe that belongs to no instruction");
        }
        if open {
            let end = window.end.wrapping_add(self.place.bias);
            let back = self
                .stub(copy)
                .filter(|j| j.mnemonic() == Mnemonic::Jmp && j.near_branch_target() == end);
            if back.is_none() {
                self.say(window.end, "stub does not return to the text");
            }
        }
        if window.patch_end() > window.end && open {
            self.say(window.end, "patch covers bytes that are run");
        }
        for other in windows {
            if other.start != window.start && other.start < window.end && window.start < other.end {
                self.say(window.start, "windows overlap");
            }
        }
    }

    /// Compares an instruction with its copy at `copy`; returns where the next copy starts.
    fn instruction(
        &mut self,
        home: &Instruction,
        mut copy: u64,
        event: Option<Probe>,
        keep_flags: bool,
        copies: &Copies,
    ) -> Option<u64> {
        let at = home.ip();
        let bias = self.place.bias;
        let goes_to = |t: u64| copies.get(&t).copied().unwrap_or(t.wrapping_add(bias));
        match home.flow_control() {
            FlowControl::ConditionalBranch => {
                let target = home.near_branch_target();
                let first = self.stub(copy)?;
                copy = first.next_ip();
                if home.is_jcc_short_or_near() && event.is_none() {
                    let same = first.mnemonic() == home.mnemonic()
                        && first.near_branch_target() == goes_to(target);
                    if !same {
                        self.say(at, "conditional jump differs in the stub");
                    }
                    return Some(copy);
                }
                if let Some(probe) = event {
                    let mut inverse = *home;
                    inverse.negate_condition_code();
                    if first.mnemonic() != inverse.mnemonic() {
                        self.say(at, "conditional tail jump is not guarded");
                    }
                    copy = self.stored_target(home, copy, probe)?;
                    copy += self.probe_at(copy, probe, keep_flags);
                    let jump = self.stub(copy)?;
                    let right = jump.mnemonic() == Mnemonic::Jmp
                        && jump.near_branch_target() == goes_to(target)
                        && first.near_branch_target() == jump.next_ip();
                    if !right {
                        self.say(at, "conditional tail jump differs in the stub");
                    }
                    return Some(jump.next_ip());
                }
                // jrcxz +2; jmp +5; jmp target
                let around = self.stub(copy)?;
                let jump = self.stub(around.next_ip())?;
                let right = first.mnemonic() == home.mnemonic()
                    && first.near_branch_target() == jump.ip()
                    && around.near_branch_target() == jump.next_ip()
                    && jump.near_branch_target() == goes_to(target);
                if !right {
                    self.say(at, "counting jump differs in the stub");
                }
                Some(jump.next_ip())
            }
            FlowControl::UnconditionalBranch => {
                if let Some(probe) = event {
                    copy = self.stored_target(home, copy, probe)?;
                    copy += self.probe_at(copy, probe, keep_flags);
                }
                let jump = self.stub(copy)?;
                let right = jump.mnemonic() == Mnemonic::Jmp
                    && jump.near_branch_target() == goes_to(home.near_branch_target());
                if !right {
                    self.say(at, "jump differs in the stub");
                }
                Some(jump.next_ip())
            }
            FlowControl::Call | FlowControl::IndirectCall => self.call(home, copy),
            FlowControl::Return if event == Some(Probe::Return) => {
                Some(copy + self.probe_at(copy, Probe::Return, keep_flags))
            }
            _ => {
                if let Some(probe) = event {
                    copy = self.stored_target(home, copy, probe)?;
                    copy += self.probe_at(copy, probe, keep_flags);
                }
                let moved = self.stub(copy);
                let same = moved.as_ref().is_some_and(|m| equal(home, m, bias))
                    && (home.is_ip_rel_memory_operand() || self.same_bytes(home, copy));
                if !same {
                    self.say(at, "instruction differs in the stub");
                }
                Some(moved?.next_ip())
            }
        }
    }

    /// `TailUnknown`: the code before it must leave the jump's target at `[rsp-24]` and nothing else changed but `[rsp-32]`.
    fn stored_target(&mut self, home: &Instruction, copy: u64, probe: Probe) -> Option<u64> {
        if probe != Probe::TailUnknown {
            return Some(copy);
        }
        let first = self.stub(copy)?;
        let stores = |i: &Instruction, displacement: i64, register: Register| {
            i.mnemonic() == Mnemonic::Mov
                && i.op0_kind() == OpKind::Memory
                && i.memory_base() == Register::RSP
                && i.memory_index() == Register::None
                && i.memory_displacement64() as i64 == displacement
                && i.op1_register() == register
        };
        if home.op0_kind() == OpKind::Register {
            if !stores(&first, -24, home.op0_register()) {
                self.say(home.ip(), "target of the jump is not stored");
            }
            return Some(first.next_ip());
        }
        let load = self.stub(first.next_ip())?;
        let store = self.stub(load.next_ip())?;
        let restore = self.stub(store.next_ip())?;
        let restores = restore.mnemonic() == Mnemonic::Mov
            && restore.op0_register() == Register::RAX
            && restore.memory_base() == Register::RSP
            && restore.memory_displacement64() as i64 == -32;
        let mut right =
            stores(&first, -32, Register::RAX) && stores(&store, -24, Register::RAX) && restores;
        right &= load.mnemonic() == Mnemonic::Mov && load.op0_register() == Register::RAX;
        right &= if home.op0_kind() == OpKind::NearBranch64 {
            let mut slot = self.original(home.near_branch_target())?;
            if slot.mnemonic() == Mnemonic::Endbr64 {
                slot = self.original(slot.next_ip())?;
            }
            load.is_ip_rel_memory_operand()
                && load.ip_rel_memory_address()
                    == slot.ip_rel_memory_address().wrapping_add(self.place.bias)
        } else {
            same_memory(home, &load, self.place.bias)
        };
        if !right {
            self.say(home.ip(), "target of the jump is not stored");
        }
        Some(restore.next_ip())
    }

    fn call(&mut self, home: &Instruction, copy: u64) -> Option<u64> {
        let bias = self.place.bias;
        let push = self.stub(copy)?;
        let low = self.stub(push.next_ip())?;
        let high = self.stub(low.next_ip())?;
        let jump = self.stub(high.next_ip())?;
        let half = |i: &Instruction, displacement: u64, value: u32| {
            i.mnemonic() == Mnemonic::Mov
                && i.op0_kind() == OpKind::Memory
                && i.memory_base() == Register::RSP
                && i.memory_displacement64() == displacement
                && i.op1_kind() == OpKind::Immediate32
                && i.immediate32() == value
        };
        let back = home.next_ip().wrapping_add(bias);
        let mut right =
            push.mnemonic() == Mnemonic::Call && push.near_branch_target() == push.next_ip();
        right &= half(&low, 0, back as u32)
            && half(&high, 4, (back >> 32) as u32)
            && jump.mnemonic() == Mnemonic::Jmp;
        right &= match home.op0_kind() {
            OpKind::NearBranch64 => {
                jump.near_branch_target() == home.near_branch_target().wrapping_add(bias)
            }
            OpKind::Register => {
                jump.op0_kind() == OpKind::Register && jump.op0_register() == home.op0_register()
            }
            _ => same_memory(home, &jump, bias),
        };
        if !right {
            self.say(home.ip(), "call differs in the stub");
        }
        Some(jump.next_ip())
    }

    /// No code pointer and no direct jump or call of code that stays at home leads into the middle of a window or a springboard.
    fn targets(&mut self, plan: &ModulePlan) {
        let mut inner: Vec<(u64, u64, usize)> = Vec::new();
        let mut windows: Vec<(u64, u64, usize)> = Vec::new();
        let mut boards: Vec<u64> = Vec::new();
        let all = plan.functions.iter().map(|f| (f.function, &f.windows));
        for (function, list) in all.chain(plan.fragments.iter().map(|f| (f.function, &f.windows))) {
            for w in list {
                let end = w.end.max(w.patch_end());
                if end > w.start + 1 {
                    inner.push((w.start + 1, end, function));
                }
                windows.push((w.start, w.end, function));
                if let Some(springboard) = w.patch.springboard() {
                    inner.push((springboard, springboard + 5, function));
                    boards.push(springboard);
                }
            }
        }
        inner.sort_unstable();
        windows.sort_unstable();
        boards.sort_unstable();
        // A springboard may stand inside another window, so ranges nest: look at all that the longest can hold.
        let hit = |addr: u64| {
            let after = inner.partition_point(|r| r.0 <= addr);
            inner[after.saturating_sub(24)..after]
                .iter()
                .any(|r| addr < r.1)
        };
        let window_of = |addr: u64| {
            let after = windows.partition_point(|r| r.0 <= addr);
            after
                .checked_sub(1)
                .map(|i| windows[i])
                .filter(|w| addr < w.1)
        };
        // Numbers in data that point into the middle of a displaced instruction are no addresses.
        let starts = |addr: u64| self.moves.contains_key(&addr.wrapping_add(self.place.bias));
        let mut wrong: Vec<(u64, u64)> = self
            .module
            .code_pointers
            .iter()
            .filter(|&&p| hit(p) && (starts(p) || window_of(p).is_none()))
            .map(|&p| (p, 0))
            .collect();
        for f in &self.module.functions {
            let Some(bytes) = self.text(f.start, (f.end - f.start) as usize) else {
                continue;
            };
            for i in &mut Decoder::with_ip(64, bytes, f.start, DecoderOptions::NONE) {
                let near = i.is_jcc_short_or_near()
                    || i.is_jmp_short_or_near()
                    || i.is_call_near()
                    || i.is_loop()
                    || i.is_jcx_short()
                    || i.is_loopcc();
                // A thread may stand on what a springboard covers only where a window moves it away.
                let board = boards.get(boards.partition_point(|b| b + 5 <= i.ip()));
                if board.is_some_and(|&b| b < i.next_ip())
                    && !matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
                    && bytes[(i.ip() - f.start) as usize..][..i.len()] != [0; 16][..i.len()]
                    && window_of(i.ip()).is_none()
                {
                    wrong.push((i.ip(), 0));
                }
                if !near || !hit(i.near_branch_target()) {
                    continue;
                }
                let (from, to) = (window_of(i.ip()), window_of(i.near_branch_target()));
                let moved = matches!((from, to), (Some(a), Some(b)) if a.2 == b.2);
                if !moved || i.is_call_near() {
                    wrong.push((i.near_branch_target(), i.ip()));
                }
            }
        }
        for (target, source) in wrong {
            self.say(
                target,
                format_args!("still a target (from {source:#x}), but inside a window"),
            );
        }
    }
}

fn decode(bytes: &[u8], addr: u64) -> Option<Instruction> {
    let i = Decoder::with_ip(
        64,
        &bytes[..bytes.len().min(15)],
        addr,
        DecoderOptions::NONE,
    )
    .decode();
    (!i.is_invalid()).then_some(i)
}

/// Same registers, scale, segment and (but for the bias of rip-relative ones) address.
fn same_memory(home: &Instruction, moved: &Instruction, bias: u64) -> bool {
    if home.is_ip_rel_memory_operand() {
        return moved.is_ip_rel_memory_operand()
            && moved.segment_prefix() == home.segment_prefix()
            && moved.ip_rel_memory_address() == home.ip_rel_memory_address().wrapping_add(bias);
    }
    moved.memory_base() == home.memory_base()
        && moved.memory_index() == home.memory_index()
        && moved.memory_index_scale() == home.memory_index_scale()
        && moved.memory_displacement64() == home.memory_displacement64()
        && moved.memory_segment() == home.memory_segment()
}

fn equal(home: &Instruction, moved: &Instruction, bias: u64) -> bool {
    if !home.is_ip_rel_memory_operand() {
        // Compares everything but the address it stands at.
        return home == moved && home.len() == moved.len();
    }
    let mut expected = *home;
    expected.set_memory_displacement64(home.ip_rel_memory_address().wrapping_add(bias));
    expected == *moved && expected.len() == moved.len()
}
