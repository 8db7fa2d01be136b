//! From a plan to bytes: the stubs, the patches, and the maps of program counters.
//!
//! ```text
//!   text                            stub of a window
//!   start:  jmp stub   ---------->  [entry probe]
//!           (dead)                  copies of the displaced instructions, re-encoded for their new place;
//!                                   before a return or a jump out: its probe
//!   end:    ...        <----------  jmp end          (where the last one can fall through)
//! ```

use crate::helper_thread::HelperThread;
use crate::image::Image;
use crate::insn::{Flow, Insn, decoder};
use crate::interface::{
    EmitError, Emitted, EntrySite, Event, FunctionPlan, ModulePlan, Patch, PatchForm, Placement,
    Probe, Stubs, TailSite, Window,
};
use crate::leaf::Emission;
use crate::patch_bytes::PatchBytes;
use crate::plan::plt_slot;
use crate::relocate::{self, Piece};
use std::sync::atomic::{AtomicUsize, Ordering};
use thalweg_symbols::Module;

const INT3: u8 = 0xcc;

/// Pushes an address that is so far from the code itself, and where in it the distance is.
const PUSH_DISTANT: [u8; 26] = [
    0x48, 0x8d, 0x64, 0x24, 0xf8, // lea rsp, [rsp - 8]
    0x48, 0x89, 0x44, 0x24, 0xf8, // mov [rsp - 8], rax
    0x48, 0x8d, 0x05, 0, 0, 0, 0, // lea rax, [rip + distance]
    0x48, 0x89, 0x04, 0x24, // mov [rsp], rax
    0x48, 0x8b, 0x44, 0x24, 0xf8, // mov rax, [rsp - 8]
];
const PUSH_DISTANT_AT: usize = 13;

/// So many functions are made at a time. The rows of stubs depend on this and on nothing else, so
/// that the same module gets the same stubs at the same place.
const ROW: usize = 8192;

/// Realises `plan` for one place in an address space, on as many threads as there are processors for.
pub fn emit(module: &Module, plan: &ModulePlan, place: &Placement) -> Result<Emitted, EmitError> {
    let image = Image::new(module);
    let emission = Emission::of(plan, place.encoder);
    // Stubs that keep pace with their functions are made one after the other.
    let row = match plan.paced {
        Some(_) => plan.functions.len().max(1),
        None => ROW,
    };
    let mut stub_base = place.stub_base;
    let mut rows = Vec::new();
    for functions in plan.functions.chunks(row) {
        let most = functions.iter().map(|function| function.stub_bytes).sum();
        rows.push((functions, stub_base, most));
        stub_base = stub_base.wrapping_add(most);
    }
    // As a rule half of the bound is needed.
    let emitter = |stub_base, most: u64| Emitter {
        image: &image,
        place,
        stubs: Stubs {
            address: stub_base,
            bytes: Vec::with_capacity(usize::try_from(most / 2).unwrap_or(0)),
        },
        out: Emitted::default(),
        fixups: Vec::new(),
        copies: Vec::new(),
        ranked: Vec::new(),
        boards: Vec::new(),
        owner: 0,
        exit: Vec::new(),
    };
    let make = |&(functions, stub_base, most): &(&[FunctionPlan], u64, u64)| {
        let mut emitter = emitter(stub_base, most);
        for function in functions {
            let windows = emission.windows(function);
            if let Some(range) = plan.paced {
                emitter.keep_pace(range, &windows);
            }
            emitter.owner = function.function;
            emitter.windows(&windows, function.keep_flags)?;
        }
        Ok(emitter)
    };
    let fragments = || {
        let mut emitter = emitter(stub_base, 0);
        for fragment in &plan.fragments {
            emitter.owner = fragment.function;
            emitter.windows(&fragment.windows, fragment.keep_flags)?;
        }
        Ok(emitter)
    };
    let mut made = at_a_time(&rows, make);
    made.push(fragments());
    let mut made = made.into_iter();
    let Some(first) = made.next() else {
        return Ok(Emitted::default());
    };
    let mut whole = first?;
    for other in made {
        whole.add(other?);
    }
    Ok(whole.finish())
}

/// What `make` gives for each, in order.
fn at_a_time<T: Sync, R: Send>(all: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut made = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(index) else {
                return made;
            };
            made.push((index, make(one)));
        }
    };
    let mut made = std::thread::scope(|scope| {
        let helpers = processors.min(all.len()).saturating_sub(1);
        let helpers: Vec<_> = (0..helpers)
            .map(|_| HelperThread::spawn(scope, work))
            .collect();
        let mut made = work();
        for helper in helpers {
            match helper.join() {
                Ok(more) => made.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        made
    });
    made.sort_unstable_by_key(|(index, _)| *index);
    made.into_iter().map(|(_, one)| one).collect()
}

/// A 32-bit displacement to fill in once all copies of the function have their place.
struct Fixup {
    /// Offset of the displacement in the stubs; the instruction ends `tail` bytes behind it.
    at: usize,
    tail: u8,
    goal: Goal,
}

#[derive(Clone, Copy)]
enum Goal {
    /// The copy of a module address if there is one, else the address itself.
    Code(u64),
    /// The module address itself.
    Original(u64),
}

struct Emitter<'a, 'm> {
    image: &'a Image<'m>,
    place: &'a Placement<'a>,
    /// The row that is being made.
    stubs: Stubs,
    /// The rest of what is made; its rows are those that are complete.
    out: Emitted,
    fixups: Vec<Fixup>,
    /// (module address, offset of its copy), per function, sorted before use.
    copies: Vec<(u64, usize)>,
    /// Patches with their place in the order of writing and whose they are; a springboard goes before its window's.
    ranked: Vec<(u32, u8, usize, Patch)>,
    /// The function or fragment whose windows are being emitted.
    owner: usize,
    /// A thread on a springboard stands in what will be the middle of something else once the original bytes are back.
    boards: Vec<(u64, u64)>,
    /// A probe that is looked at and not emitted, for the next one.
    exit: Vec<u8>,
}

impl Emitter<'_, '_> {
    fn here(&self) -> u64 {
        self.at(self.stubs.bytes.len())
    }

    /// The address of what is so far from the row's start.
    fn at(&self, offset: usize) -> u64 {
        self.stubs.address.wrapping_add(offset as u64)
    }

    fn runtime(&self, addr: u64) -> u64 {
        addr.wrapping_add(self.place.bias)
    }

    /// Leaves out as many bytes as the functions before this one were longer than their stubs.
    fn keep_pace(&mut self, (from, to): (u64, u64), windows: &[Window]) {
        let first = windows.first().map_or(from, |w| w.start);
        if !(from..to).contains(&first) {
            return;
        }
        let pace = (first - from) as usize;
        if pace > self.stubs.bytes.len() {
            self.stubs.bytes.resize(pace, INT3);
        }
    }

    fn windows(&mut self, windows: &[Window], keep_flags: bool) -> Result<(), EmitError> {
        self.copies.clear();
        self.fixups.clear();
        for window in windows {
            self.window(window, keep_flags)?;
        }
        self.copies.sort_unstable();
        for i in 0..self.fixups.len() {
            let Fixup { at, tail, goal } = self.fixups[i];
            let to = match goal {
                Goal::Original(addr) => self.runtime(addr),
                Goal::Code(addr) => match self.copies.binary_search_by_key(&addr, |c| c.0) {
                    Ok(copy) => self.at(self.copies[copy].1),
                    Err(_) => self.runtime(addr),
                },
            };
            let from = self.at(at + 4 + usize::from(tail));
            let displacement = reach(from, to)?;
            self.stubs.bytes[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
        }
        Ok(())
    }

    fn window(&mut self, window: &Window, keep_flags: bool) -> Result<(), EmitError> {
        if let Some(Event { probe, .. }) = window.events.first()
            && let Probe::Leaf { .. } = probe
        {
            let at = self.here();
            self.map_back(window.start);
            let encoder = self.place.encoder;
            encoder.lead(*probe, keep_flags, at, &mut self.stubs.bytes);
        }
        let stub = self.here();
        self.patch(window, stub)?;
        let mut at = window.start;
        let mut events = window.events.iter().copied().peekable();
        let is_entry = |e: &Event| {
            matches!(
                e.probe,
                Probe::Entry { .. }
                    | Probe::Leaf { .. }
                    | Probe::GoEntry { .. }
                    | Probe::GoLeave { .. }
                    | Probe::GoArrive
            )
        };
        let mut falls_through = true;
        let code = self.image.code_range(window.start, window.end);
        let mut decoder = decoder(code.unwrap_or_default(), window.start);
        while at < window.end {
            let offset = (at - window.start) as usize;
            let bytes = code.and_then(|code| code.get(offset..));
            let decoded = bytes.and_then(|bytes| {
                if decoder.position() != offset {
                    decoder.set_position(offset).ok()?;
                    decoder.set_ip(at);
                }
                Some((bytes, Insn::from_iced(&decoder.decode())?))
            });
            let Some((bytes, insn)) = decoded else {
                return Err(EmitError::ForeignPlan { address: at });
            };
            if let Some(entry) = events.next_if(|e| e.at == at && is_entry(e)) {
                self.map_back(at);
                self.probe(entry.probe, keep_flags);
                // Jumps to an endbr64 before the window come here as well; from inside they are loops.
                if let Some(endbr) = window.start.checked_sub(4)
                    && at == window.start
                    && self.image.code_range(endbr, at) == Some(&[0xf3, 0x0f, 0x1e, 0xfa])
                {
                    self.copies.push((endbr, self.stubs.bytes.len()));
                }
            }
            self.copies.push((at, self.stubs.bytes.len()));
            if at != window.start {
                self.out.moves.push((self.runtime(at), self.here()));
            }
            let event = events.next_if(|e| e.at == at);
            self.instruction(&insn, &bytes[..usize::from(insn.len)], event, keep_flags)?;
            falls_through = !insn.closed();
            at = insn.end();
            if insn.closed() && at < window.end {
                at = window
                    .padding
                    .iter()
                    .find(|p| p.0 == at)
                    .map_or(at, |p| p.1);
            }
        }
        while let Some(event) = events.next_if(|e| e.at == window.end) {
            self.map_back(window.end);
            self.tail_probe(event.probe, keep_flags, window.end);
        }
        if events.next().is_some() {
            return Err(EmitError::ForeignPlan {
                address: window.start,
            });
        }
        if falls_through {
            self.map_back(window.end);
            self.branch(&[0xe9], Goal::Original(window.end));
        }
        Ok(())
    }

    fn instruction(
        &mut self,
        insn: &Insn,
        bytes: &[u8],
        event: Option<Event>,
        keep_flags: bool,
    ) -> Result<(), EmitError> {
        let at = insn.addr;
        let foreign = EmitError::ForeignPlan { address: at };
        self.map_back(at);
        match (insn.flow, event.map(|e| e.probe)) {
            (Flow::Return, Some(probe @ (Probe::Return | Probe::GoReturn))) => {
                self.probe(probe, keep_flags);
            }
            (Flow::Jump(target), probe) => {
                if let Some(probe) = probe {
                    self.store_plt_target(at, probe)?;
                    self.tail_probe(probe, keep_flags, target);
                    self.map_back(target);
                }
                self.branch(&[0xe9], Goal::Code(target));
            }
            (Flow::Branch(target), None) => {
                let condition = relocate::condition(bytes).ok_or(foreign)?;
                self.branch(&[0x0f, 0x80 | condition], Goal::Code(target));
            }
            (Flow::Branch(target), Some(probe)) => {
                let condition = relocate::condition(bytes).ok_or(foreign)?;
                self.stubs
                    .bytes
                    .extend([0x0f, 0x80 | condition ^ 1, 0, 0, 0, 0]);
                let skip = self.stubs.bytes.len();
                self.map_back(target);
                self.store_plt_target(at, probe)?;
                self.tail_probe(probe, keep_flags, target);
                self.map_back(target);
                self.branch(&[0xe9], Goal::Code(target));
                let length = (self.stubs.bytes.len() - skip) as u32;
                self.stubs.bytes[skip - 4..skip].copy_from_slice(&length.to_le_bytes());
            }
            (Flow::CountBranch(target), None) => {
                let opcode = relocate::count_branch(bytes).ok_or(foreign)?;
                self.stubs.bytes.extend(opcode);
                self.stubs.bytes.push(2);
                self.map_back(insn.end());
                self.stubs.bytes.extend([0xeb, 5]);
                self.map_back(target);
                self.branch(&[0xe9], Goal::Code(target));
            }
            (Flow::Call(target), None) => {
                self.push_return_address(insn.end());
                self.map_back(target);
                self.branch(&[0xe9], Goal::Original(target));
            }
            (Flow::CallIndirect, None) => {
                self.push_return_address(insn.end());
                let piece = relocate::call_to_jump(bytes, at).ok_or(foreign)?;
                self.piece(&piece);
            }
            (Flow::JumpIndirect, Some(Probe::TailUnknown)) => {
                for piece in relocate::store_target(bytes, at).ok_or(foreign)? {
                    self.piece(&piece);
                }
                self.probe(Probe::TailUnknown, keep_flags);
                self.map_back(at);
                self.piece(
                    &relocate::copy(bytes, at).ok_or(EmitError::ForeignPlan { address: at })?,
                );
            }
            (Flow::Return | Flow::JumpIndirect, Some(probe @ Probe::Switch { .. })) => {
                self.probe(probe, keep_flags);
                self.map_back(at);
                self.piece(&relocate::copy(bytes, at).ok_or(foreign)?);
            }
            (Flow::ReturnPop, Some(Probe::Exit)) => {
                self.probe(Probe::Exit, keep_flags);
                self.map_back(at);
                self.stubs.bytes.extend(bytes);
            }
            (_, None) if insn.movable() => self.piece(&relocate::copy(bytes, at).ok_or(foreign)?),
            _ => return Err(foreign),
        }
        Ok(())
    }

    /// `call $+5`, and the address it pushed becomes the one the original call would have pushed.
    fn push_return_address(&mut self, addr: u64) {
        if self.place.encoder.is_movable() {
            return self.push_distant_address(addr);
        }
        let addr = self.runtime(addr);
        self.stubs.bytes.extend([0xe8, 0, 0, 0, 0]);
        self.stubs.bytes.extend([0xc7, 0x04, 0x24]);
        self.stubs.bytes.extend((addr as u32).to_le_bytes());
        self.stubs.bytes.extend([0xc7, 0x44, 0x24, 0x04]);
        self.stubs.bytes.extend(((addr >> 32) as u32).to_le_bytes());
    }

    /// The same by its distance, with no flag changed. A call leaves nothing of use below the stack pointer.
    fn push_distant_address(&mut self, addr: u64) {
        self.stubs.bytes.extend(PUSH_DISTANT);
        let at = self.stubs.bytes.len() - PUSH_DISTANT.len();
        self.fixups.push(Fixup {
            at: at + PUSH_DISTANT_AT,
            tail: 0,
            goal: Goal::Original(addr),
        });
    }

    /// Before a jump to a PLT entry: where that entry will jump to.
    fn store_plt_target(&mut self, jump: u64, probe: Probe) -> Result<(), EmitError> {
        if probe == Probe::TailUnknown {
            let slot =
                plt_slot(self.image, jump).ok_or(EmitError::ForeignPlan { address: jump })?;
            for piece in relocate::store_pointer(slot) {
                self.piece(&piece);
            }
        }
        Ok(())
    }

    fn probe(&mut self, probe: Probe, keep_flags: bool) {
        let at = self.here();
        self.place
            .encoder
            .encode(probe, keep_flags, at, &mut self.stubs.bytes);
        if let Probe::Leaf { function } = probe {
            self.out.leaves.push(function);
        }
        let entry = match probe {
            Probe::Entry { function, loops } => Some((function, loops)),
            Probe::GoEntry { function } => Some((function, false)),
            _ => None,
        };
        if let Some((function, loops)) = entry {
            let end = self.here();
            self.out.entries.push(EntrySite {
                function,
                end,
                loops,
            });
        }
    }

    /// A probe before a jump to `target`, and what it is when the target is not probed any more.
    fn tail_probe(&mut self, probe: Probe, keep_flags: bool, target: u64) {
        let (from, at) = (self.stubs.bytes.len(), self.here());
        self.probe(probe, keep_flags);
        let target = self.image.function_at(target);
        if let (Probe::TailMark, Some(target)) = (probe, target) {
            let mut exit = std::mem::take(&mut self.exit);
            exit.clear();
            let encoder = self.place.encoder;
            encoder.encode(Probe::Exit, keep_flags, at, &mut exit);
            if let (&[call, ref probed @ ..], [same, unprobed @ ..]) =
                (&self.stubs.bytes[from..], &exit[..])
                && call == *same
                && let (Ok(probed), Ok(unprobed)) = (probed.try_into(), unprobed.try_into())
            {
                self.out.tails.push(TailSite {
                    target,
                    address: at + 1,
                    probed,
                    unprobed,
                });
            }
            self.exit = exit;
        }
    }

    fn map_back(&mut self, original: u64) {
        let entry = (self.here(), self.runtime(original));
        if self.out.back.last().map(|b| b.0) != Some(entry.0) {
            self.out.back.push(entry);
        }
    }

    fn branch(&mut self, opcode: &[u8], goal: Goal) {
        self.stubs.bytes.extend(opcode);
        self.fixups.push(Fixup {
            at: self.stubs.bytes.len(),
            tail: 0,
            goal,
        });
        self.stubs.bytes.extend([0; 4]);
    }

    fn piece(&mut self, piece: &Piece) {
        let base = self.stubs.bytes.len();
        self.stubs.bytes.extend(&piece.bytes);
        if let Some((offset, target)) = piece.relative {
            let tail = (piece.bytes.len() - offset - 4) as u8;
            self.fixups.push(Fixup {
                at: base + offset,
                tail,
                goal: Goal::Original(target),
            });
        }
    }

    fn patch(&mut self, window: &Window, stub: u64) -> Result<(), EmitError> {
        let start = self.runtime(window.start);
        let Some(springboard) = window.patch.springboard() else {
            self.near(window.rank, 1, window.start, window.prefix, stub)?;
            return self.keeps(window, stub);
        };
        self.near(window.rank, 0, springboard, None, stub)?;
        let to = self.runtime(springboard);
        self.boards.push((to, start));
        let mut displacement = None;
        if let PatchForm::Short { .. } = window.patch {
            let from = self.runtime(window.patch_end());
            let way = i8::try_from(to.wrapping_sub(from) as i64)
                .map_err(|_| EmitError::OutOfReach { from: start, to })?;
            displacement = Some(way as u8);
        }
        let jump = jump(window.prefix, 0xeb, displacement.as_slice());
        self.change(window.rank, 1, window.start, jump)
    }

    /// Whether the patch made last leaves alone what it has to.
    fn keeps(&self, window: &Window, stub: u64) -> Result<(), EmitError> {
        let (Some(from), Some((.., patch))) = (window.keeps_from, self.ranked.last()) else {
            return Ok(());
        };
        let from = usize::from(from);
        match patch.original.get(from..) == patch.replacement.get(from..) {
            true => Ok(()),
            false => Err(EmitError::WrongDistance {
                from: self.runtime(window.start),
                to: stub,
            }),
        }
    }

    fn near(
        &mut self,
        rank: u32,
        turn: u8,
        addr: u64,
        prefix: Option<u8>,
        to: u64,
    ) -> Result<(), EmitError> {
        let len = jump(prefix, 0xe9, &[0; 4]).len() as u64;
        let displacement = reach(self.runtime(addr) + len, to)?;
        let jump = jump(prefix, 0xe9, &displacement.to_le_bytes());
        self.change(rank, turn, addr, jump)
    }

    fn change(
        &mut self,
        rank: u32,
        turn: u8,
        addr: u64,
        replacement: PatchBytes,
    ) -> Result<(), EmitError> {
        let original = self.image.code_range(addr, addr + replacement.len() as u64);
        let original = original
            .and_then(PatchBytes::new)
            .ok_or(EmitError::ForeignPlan { address: addr })?;
        let address = self.runtime(addr);
        self.ranked.push((
            rank,
            turn,
            self.owner,
            Patch {
                address,
                original,
                replacement,
            },
        ));
        Ok(())
    }

    /// Adds what was made of other functions, behind it.
    fn add(&mut self, other: Emitter) {
        self.end_row();
        self.stubs = other.stubs;
        let out = other.out;
        self.out.stubs.extend(out.stubs);
        self.out.moves.extend(out.moves);
        self.out.back.extend(out.back);
        self.out.entries.extend(out.entries);
        self.out.leaves.extend(out.leaves);
        self.out.tails.extend(out.tails);
        self.ranked.extend(other.ranked);
        self.boards.extend(other.boards);
    }

    fn end_row(&mut self) {
        let row = std::mem::take(&mut self.stubs);
        if !row.bytes.is_empty() {
            self.out.stubs.push(row);
        }
    }

    fn finish(mut self) -> Emitted {
        self.end_row();
        // Their order alone: patches are large, and most of them are where they belong already.
        let places = self.ranked.iter().enumerate();
        let mut order: Vec<(u32, u8, usize)> = places
            .map(|(place, &(rank, turn, ..))| (rank, turn, place))
            .collect();
        order.sort_unstable();
        self.out.owners.reserve(order.len());
        self.out.patches.reserve(order.len());
        for (_, _, place) in order {
            let (_, _, owner, patch) = &self.ranked[place];
            self.out.owners.push(*owner);
            self.out.patches.push(*patch);
        }
        self.out.moves.sort();
        self.boards.sort_unstable();
        self.out.back.append(&mut self.boards);
        self.out.back.sort();
        self.out
    }
}

/// A jump instruction, perhaps with a prefix.
fn jump(prefix: Option<u8>, opcode: u8, displacement: &[u8]) -> PatchBytes {
    let mut bytes = [0; PatchBytes::MOST];
    let parts = prefix.iter().chain([&opcode]).chain(displacement);
    let len = bytes
        .iter_mut()
        .zip(parts)
        .map(|(to, from)| *to = *from)
        .count();
    PatchBytes::new(&bytes[..len]).unwrap_or_default()
}

fn reach(from: u64, to: u64) -> Result<i32, EmitError> {
    i32::try_from(to.wrapping_sub(from) as i64).map_err(|_| EmitError::OutOfReach { from, to })
}
