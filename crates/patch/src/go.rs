//! Plans the Go functions of a module. Go's scheduler makes rules of its own, so this is apart from the solver.
//!
//! A goroutine, which no debugger sees, may have been taken off its thread at nearly any instruction. It goes on there some day,
//! and until then the collector looks up that address in Go's tables: it can be moved to no stub. Hence:
//!
//! - No patch has an instruction boundary inside at which a goroutine may wait, unless what stands there still
//!   means the same. The compiler's own marks say where none waits: the check of the stack is such a place.
//! - What may fault stays at home: the runtime turns the fault into a panic only at an address of its own.
//!
//! ```text
//!   f:  cmp rsp, [r14+16]    <-- jmp stub       the check runs in the stub; if it fails, on to `grow` at home,
//!       jbe grow                                else the entry probe, and back behind the check
//!       ...
//!       mov rbp, [rsp+16]    <-- jmp stub       five bytes or eight: no boundary inside        (up to Go 1.20)
//!       add rsp, 24
//!       ret
//!       add rsp, 16          <-- jmp stub       five bytes, the last of which is that of `pop rbp`: whoever waits
//!       pop rbp                                 there finds it in place                        (from Go 1.21 on)
//!       ret
//! ```
//!
//! So the stubs of a module are at a chosen distance, 0x5d times 16 MiB for the last example: every jump to them ends with
//! the byte that most functions need.
//!
//! Only code that the compiler made for its own calling convention is patched: there r14 is the running goroutine.

use crate::image::Image;
use crate::insn::{Flow, Insn, decoder};
use crate::interface::{
    Event, FragmentPlan, FunctionPlan, MAX_PROBE_BYTES, Method, ModulePlan, PatchForm, Probe,
    SkipReason, Skipped, Window,
};
use crate::space::{JUMP, in_one_page};
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use thalweg_symbols::{Function, GoFunction, Module};

/// What to do to the Go functions of a module.
#[derive(Clone, Debug, Default)]
pub struct GoPlan {
    pub plan: ModulePlan,
    /// Stubs have to be where the top byte of every jump to them is this one.
    pub top_byte: Option<u8>,
}

impl GoPlan {
    /// Stubs stand as far apart as the functions that they belong to.
    pub fn is_paced(&self) -> bool {
        self.plan.paced.is_some()
    }
}

/// Up to this many bytes of code and stubs together, any stub is at the right distance of any function: some are left over for the
/// agent and for the C functions of the module.
const REACH_UNPACED: u64 = 12 << 20;

/// The functions by which a goroutine leaves its thread and comes to one, and whether nothing is known without them.
const SWITCHES: [(&str, Probe, bool); 4] = [
    ("runtime.mcall", Probe::GoLeave { own: true }, true),
    ("runtime.newstack", Probe::GoLeave { own: false }, true),
    ("runtime.dropm", Probe::GoLeave { own: false }, false),
    ("runtime.gogo", Probe::GoArrive, true),
];

/// Plans every Go function of `module` whose flag in `selected` is set. An error says why none can be.
pub fn plan_go(module: &Module, selected: &[bool]) -> Result<GoPlan, &'static str> {
    let table = module.go.as_ref().ok_or("Go code of an unknown version")?;
    let image = Image::new(module);
    let mut made = GoPlan::default();
    for (name, probe, needed) in SWITCHES {
        let known = table.named(name).and_then(|go| {
            let index = module.function_at(go.start)?;
            let function = &module.functions[index];
            (function.start == go.start).then_some((index, function))
        });
        let window = known.and_then(|(index, function)| {
            let code = Decoded::of(&image, function)?;
            let is_known = probe != Probe::GoArrive || code.takes_goroutine();
            Some((index, switch_window(&code, probe).filter(|_| is_known)?))
        });
        match window {
            Some((function, window)) => {
                made.plan.stub_bytes += stub_bytes(std::slice::from_ref(&window));
                made.plan.fragments.push(FragmentPlan {
                    function,
                    keep_flags: true,
                    windows: vec![window],
                    continues_in: Vec::new(),
                    hosts: Vec::new(),
                });
            }
            None if needed => {
                return Err("Go code whose scheduler could not be recognised");
            }
            None => {}
        }
    }
    let mut drafts = Vec::new();
    let mut needs = [0u32; 256];
    for (index, function) in module.functions.iter().enumerate() {
        let Some(go) = table.at(function.start) else {
            continue;
        };
        if !selected.get(index).copied().unwrap_or(false) {
            continue;
        }
        match plan_function(&image, index, go) {
            Ok(draft) => {
                for byte in draft.needs() {
                    needs[usize::from(byte)] += 1;
                }
                drafts.push((index, draft));
            }
            Err(reason) => made.plan.skipped.push(Skipped {
                function: index,
                reason,
            }),
        }
    }
    let most = (0..=255u8).max_by_key(|&byte| needs[usize::from(byte)]);
    made.top_byte = most.filter(|&byte| needs[usize::from(byte)] > 0);
    for (function, draft) in drafts {
        if let Some(room) = draft
            .rooms
            .iter()
            .find(|r| r.top_byte != made.top_byte && r.top_byte.is_some())
        {
            let at = room.window.start;
            let reason = match room.window.events[0].probe {
                Probe::GoEntry { .. } => SkipReason::NoRoomAtEntry { at },
                _ => SkipReason::NoRoomAtExit { at },
            };
            made.plan.skipped.push(Skipped { function, reason });
            continue;
        }
        let exits = draft.rooms.len() - 1;
        let windows: Vec<Window> = draft.rooms.into_iter().map(|r| r.window).collect();
        made.plan.stub_bytes += stub_bytes(&windows);
        made.plan.functions.push(FunctionPlan {
            function,
            keep_flags: false,
            leaf: false,
            method: Method::Direct,
            exits,
            stub_bytes: stub_bytes(&windows),
            windows,
            needs: Vec::new(),
        });
    }
    made.plan.skipped.sort_by_key(|s| s.function);
    let text = table.end - table.start;
    if made.top_byte.is_some() && text + made.plan.stub_bytes > REACH_UNPACED {
        made.plan.paced = Some((table.start, table.end));
        made.plan.stub_bytes += text;
    }
    Ok(made)
}

/// A window, and what the last byte of its jump has to be.
struct Room {
    window: Window,
    top_byte: Option<u8>,
}

/// The entry first.
struct Draft {
    rooms: Vec<Room>,
}

impl Draft {
    /// Each byte once.
    fn needs(&self) -> Vec<u8> {
        let mut needs: Vec<u8> = self.rooms.iter().filter_map(|r| r.top_byte).collect();
        needs.sort_unstable();
        needs.dedup();
        needs
    }
}

/// No emission of these windows is longer.
fn stub_bytes(windows: &[Window]) -> u64 {
    let one = |w: &Window| w.end - w.start + 3 * 8 + JUMP + MAX_PROBE_BYTES;
    windows.iter().map(one).sum()
}

/// Packages that the runtime is made of, or that it calls where there is no goroutine to speak of.
const RUNTIME_PACKAGES: [&str; 19] = [
    "internal/abi",
    "internal/asan",
    "internal/bytealg",
    "internal/byteorder",
    "internal/chacha8rand",
    "internal/coverage/rtcov",
    "internal/cpu",
    "internal/goarch",
    "internal/godebugs",
    "internal/msan",
    "internal/profilerecord",
    "internal/race",
    "internal/reflectlite",
    "internal/stringslite",
    "internal/trace",
    "runtime",
    "sync/atomic",
    "syscall",
    "internal/runtime",
];

fn belongs_to_runtime(name: &str) -> bool {
    let package = package_of(name);
    RUNTIME_PACKAGES.contains(&package)
        || package.starts_with("runtime/internal/")
        || package.starts_with("internal/runtime/")
        || package == "runtime/cgo"
        // Linked into other packages by name, compiled with the runtime.
        || name.contains(".runtime_")
        || name.starts_with("go:")
        || name.starts_with("_cgo")
        || name.starts_with("reflect.call")
        || name.starts_with("reflect.moveMakeFuncArgPtrs")
        || !name.contains('.')
}

/// `net/http.(*Server).Serve` -> `net/http`.
fn package_of(name: &str) -> &str {
    let bracket = name.find('[').unwrap_or(name.len());
    let paren = name.find('(').unwrap_or(name.len());
    let head = &name[..bracket.min(paren)];
    let slash = head.rfind('/').map_or(0, |at| at + 1);
    match head[slash..].find('.') {
        Some(dot) => &head[..slash + dot],
        None => head,
    }
}

/// A function, decoded from its first byte to its last: what the Go compiler makes has no data in between.
struct Decoded {
    start: u64,
    end: u64,
    insns: Vec<Insn>,
    whole: Vec<Instruction>,
    bytes: Vec<u8>,
}

impl Decoded {
    fn byte_at(&self, address: u64) -> Option<u8> {
        self.bytes.get((address - self.start) as usize).copied()
    }

    fn of(image: &Image, function: &Function) -> Option<Decoded> {
        let bytes = image.code_range(function.start, function.end)?;
        let mut decoder = decoder(bytes, function.start);
        let (mut insns, mut whole) = (Vec::new(), Vec::new());
        while decoder.can_decode() {
            let instruction = decoder.decode();
            insns.push(Insn::from_iced(&instruction)?);
            whole.push(instruction);
        }
        Some(Decoded {
            start: function.start,
            end: function.end,
            insns,
            whole,
            bytes: bytes.to_vec(),
        })
    }

    /// Whether it begins as `runtime.gogo` does: its argument is on the stack and says which goroutine is to run.
    fn takes_goroutine(&self) -> bool {
        let loads = |index: usize, to, base, displacement| {
            self.whole.get(index).is_some_and(|i| {
                i.code() == Code::Mov_r64_rm64
                    && (i.op0_register(), i.memory_base()) == (to, base)
                    && i.memory_index() == Register::None
                    && i.memory_displacement64() == displacement
            })
        };
        loads(0, Register::RBX, Register::RSP, 8) && loads(1, Register::RDX, Register::RBX, 16)
    }

    /// Index behind the check of the stack that the function begins with.
    fn behind_check(&self) -> Option<usize> {
        let is_guard = |i: &Instruction, register| {
            i.code() == Code::Cmp_r64_rm64
                && i.op0_register() == register
                && i.memory_base() == Register::R14
                && i.memory_index() == Register::None
                && i.memory_displacement64() == 16
        };
        let compare = match self.whole.first()?.code() {
            Code::Cmp_r64_rm64 if is_guard(&self.whole[0], Register::RSP) => 0,
            Code::Lea_r64_m
                if self.whole[0].op0_register() == Register::R12
                    && self.whole[0].memory_base() == Register::RSP =>
            {
                1
            }
            // Frames so big that the address below them may wrap around.
            Code::Mov_r64_rm64 | Code::Mov_rm64_r64
                if self.whole[0].op0_register() == Register::R12 =>
            {
                3
            }
            _ => return None,
        };
        if compare > 0 && !is_guard(self.whole.get(compare)?, Register::R12) {
            return None;
        }
        let is_branch = |index: usize, codes: [Code; 2]| {
            self.whole
                .get(index)
                .is_some_and(|i| codes.contains(&i.code()))
        };
        if compare == 3 && !is_branch(2, [Code::Jb_rel8_64, Code::Jb_rel32_64]) {
            return None;
        }
        is_branch(compare + 1, [Code::Jbe_rel8_64, Code::Jbe_rel32_64]).then_some(compare + 2)
    }
}

/// Nothing about it depends on where it runs, and it cannot fault.
fn is_harmless(i: &Instruction) -> bool {
    let Some(insn) = Insn::from_iced(i) else {
        return false;
    };
    let touches_memory = (0..i.op_count()).any(|op| i.op_kind(op) == OpKind::Memory)
        && !matches!(i.code(), Code::Lea_r64_m | Code::Lea_r32_m);
    let own = i.memory_base() == Register::RSP && i.memory_index() == Register::None;
    insn.flow == Flow::Next
        && insn.movable()
        && (!touches_memory || own || i.is_ip_rel_memory_operand())
        && !matches!(i.mnemonic(), Mnemonic::Div | Mnemonic::Idiv)
}

fn switch_window(code: &Decoded, probe: Probe) -> Option<Window> {
    // The check, or as many instructions as the jump needs.
    let last = match code.behind_check() {
        Some(behind) => behind - 1,
        None => code
            .insns
            .iter()
            .position(|i| i.end() - code.start >= JUMP)?,
    };
    let movable = |i: &Instruction| is_harmless(i) || code.behind_check().is_some();
    if !code.whole[..=last].iter().all(movable) {
        return None;
    }
    let window = Window {
        start: code.start,
        end: code.insns[last].end(),
        patch: PatchForm::Near,
        events: vec![Event {
            at: code.start,
            probe,
        }],
        prefix: None,
        padding: Vec::new(),
        rank: 0,
        keeps_from: None,
    };
    let jumped_into = code.insns.iter().filter_map(Insn::jump_target);
    let mut jumped_into = jumped_into.filter(|t| window.start < *t && *t < window.end);
    (in_one_page(window.start, JUMP) && jumped_into.next().is_none()).then_some(window)
}

fn plan_function(image: &Image, index: usize, go: &GoFunction) -> Result<Draft, SkipReason> {
    let function = &image.module.functions[index];
    let untouchable = |why| Err(SkipReason::Untouchable(why));
    if belongs_to_runtime(&go.name) {
        return untouchable("Go's runtime and what it is made of: runs on stacks of its own");
    }
    if go.assembly {
        return untouchable("Go assembly: does not say which goroutine runs");
    }
    let code =
        Decoded::of(image, function).ok_or(SkipReason::Undecodable { at: function.start })?;
    let mut plan = Planning {
        code: &code,
        go,
        targets: Vec::new(),
        jumps_by_table: false,
        padding_end: padding_end(image, index),
    };
    for insn in &code.insns {
        match insn.flow {
            Flow::JumpIndirect => plan.jumps_by_table = true,
            Flow::ReturnPop | Flow::Unmovable | Flow::Kernel | Flow::Transaction(_) => {
                return untouchable("Go code with instructions that its compiler does not make");
            }
            _ => {}
        }
        let Some(target) = insn.jump_target() else {
            continue;
        };
        if !(code.start..code.end).contains(&target) {
            return untouchable("Go code that goes on in another function");
        }
        plan.targets.push(target);
    }
    plan.targets.sort_unstable();
    let no_entry = SkipReason::NoRoomAtEntry { at: code.start };
    let mut rooms = vec![plan.entry(index).ok_or(no_entry)?];
    for at in 0..code.insns.len() {
        if code.insns[at].flow == Flow::Return {
            let no_exit = SkipReason::NoRoomAtExit {
                at: code.insns[at].addr,
            };
            rooms.push(plan.exit(at).ok_or(no_exit)?);
        }
    }
    for pair in rooms.windows(2) {
        let end = pair[0].window.end.max(pair[0].window.patch_end());
        let start = pair[1].window.start;
        if start < end {
            return Err(SkipReason::NoRoomAtExit { at: start });
        }
    }
    Ok(Draft { rooms })
}

/// How far behind a function there is nothing but padding that nobody else wants. Those who plan the C functions of the same
/// module may want what is near them.
fn padding_end(image: &Image, function: usize) -> u64 {
    const NEAR_C: u64 = 512;
    let functions = &image.module.functions;
    let end = functions[function].end;
    let table = image.module.go.as_ref();
    if table.is_none_or(|t| end + NEAR_C > t.end || end < t.start + NEAR_C) {
        return end;
    }
    let limit = functions.get(function + 1).map_or(end, |next| next.start);
    let bytes = image.code_range(end, limit).unwrap_or(&[]);
    end + bytes.iter().take_while(|&&b| b == 0xcc).count() as u64
}

struct Planning<'a> {
    code: &'a Decoded,
    go: &'a GoFunction,
    /// Of direct jumps, sorted.
    targets: Vec<u64>,
    jumps_by_table: bool,
    padding_end: u64,
}

impl Planning<'_> {
    fn entry(&self, function: usize) -> Option<Room> {
        let code = self.code;
        let (last, at) = match code.behind_check() {
            Some(behind) => (behind - 1, code.insns.get(behind)?.addr),
            // Without the check nobody knows how little of the stack is left, unless nothing is called from here.
            None if code
                .insns
                .iter()
                .any(|i| matches!(i.flow, Flow::Call(_) | Flow::CallIndirect)) =>
            {
                return None;
            }
            // A loop that begins with the function would be counted each time around.
            None if self.targets.binary_search(&code.start).is_ok() => return None,
            None => {
                let fits = |i: &Insn| i.end() - code.start >= JUMP;
                (code.insns.iter().position(fits)?, code.start)
            }
        };
        if at == code.start && !code.whole[..=last].iter().all(is_harmless) {
            return None;
        }
        let event = Event {
            at,
            probe: Probe::GoEntry { function },
        };
        self.room(0, last, event)
    }

    fn exit(&self, at: usize) -> Option<Room> {
        let whole = &self.code.whole;
        let event = Event {
            at: whole[at].ip(),
            probe: Probe::GoReturn,
        };
        // The compiler pads with nops here and there.
        let before = |index: usize| {
            let is_real = |i: &usize| whole[*i].mnemonic() != Mnemonic::Nop;
            (0..index).rev().find(is_real)
        };
        let first = before(at).filter(|&i| is_epilogue(&whole[i]));
        let second = first.and_then(before).filter(|&i| is_epilogue(&whole[i]));
        if let Some(room) = second.and_then(|first| self.room(first, at, event)) {
            return Some(room);
        }
        if first.is_none() && self.padding_end >= self.code.insns[at].addr + JUMP {
            return self.room(at, at, event);
        }
        // What stands before, if nobody jumps past it.
        let before = before(second.or(first).unwrap_or(at))?;
        let is_free = before > 0 && !self.jumps_by_table && is_harmless(&whole[before]);
        is_free.then(|| self.room(before, at, event)).flatten()
    }

    /// The window from one instruction to another, if a jump at its start harms nobody.
    fn room(&self, first: usize, last: usize, event: Event) -> Option<Room> {
        let insns = &self.code.insns;
        let (start, end) = (insns[first].addr, insns[last].end());
        let mut top_byte = None;
        for (insn, whole) in insns.iter().zip(&self.code.whole).skip(first + 1) {
            if insn.addr >= start + JUMP {
                break;
            }
            if !self.go.may_be_preempted_at(insn.addr) {
                continue;
            }
            // Its first byte is the last one of the jump, and its others are left alone.
            if insn.addr != start + JUMP - 1 || whole.ip() != insn.addr {
                return None;
            }
            let byte = self.code.byte_at(insn.addr)?;
            if byte == 0 || byte >= 0x7f {
                return None;
            }
            top_byte = Some(byte);
        }
        let jumped_past = self.targets.iter().any(|&t| start < t && t < end);
        let room = end.max(self.padding_end_behind(last)) >= start + JUMP;
        (room && !jumped_past && in_one_page(start, JUMP)).then(|| Room {
            window: Window {
                start,
                end,
                patch: PatchForm::Near,
                events: vec![event],
                prefix: None,
                padding: Vec::new(),
                rank: 0,
                keeps_from: top_byte.map(|_| JUMP as u8 - 1),
            },
            top_byte,
        })
    }

    fn padding_end_behind(&self, last: usize) -> u64 {
        match last + 1 == self.code.insns.len() {
            true => self.padding_end,
            false => 0,
        }
    }
}

/// Part of giving back a frame.
fn is_epilogue(i: &Instruction) -> bool {
    let adds = matches!(
        i.code(),
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 | Code::Sub_rm64_imm8
    ) && i.op0_kind() == OpKind::Register
        && i.op0_register() == Register::RSP;
    let restores = i.code() == Code::Mov_r64_rm64
        && i.op0_register() == Register::RBP
        && i.memory_base() == Register::RSP;
    let pops = i.code() == Code::Pop_r64 && i.op0_register() == Register::RBP;
    adds || restores || pops
}
