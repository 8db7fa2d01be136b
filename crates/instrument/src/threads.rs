//! The threads that exist at attach: each gets a slot, a GS base, and as its tree's trunk the functions that are on its
//! stack right now, so that no chain of calls is severed.

use std::collections::HashMap;
use std::mem::offset_of;

use nix::sys::resource::{Resource, getrlimit};
use thalweg_abi as shm;
use thalweg_symbols::Unwinder;

use crate::clock;
use crate::error::{Error, Result};
use crate::memory::{FromZeros, IntoBytes, Shared};
use crate::prepare::Build;
use crate::proc::{self, Pid, ProcessorTime, RemoteAddr, Tid};
use crate::record::tables;
use crate::tracee::{Regs, Stopped};

/// Deeper stacks are known down to here only: the target stands still meanwhile.
const MAX_UNWOUND: usize = 4096;
/// Where in a slot's private page a thread without thread-local storage gets a word that its FS base can point to.
const SPARE_THREAD_POINTER: u64 = 2048;

/// Some slots are left for threads that begin later.
fn most_at_attach(header: &shm::Header) -> u64 {
    header.blocks.threads() / 8 * 7
}

pub fn open_slots(
    stopped: &mut Stopped,
    shared: &Shared,
    header: &shm::Header,
    stacks: &mut Stacks,
    chosen: &[Tid],
) -> Result<Clocks> {
    let pid = stopped.pid();
    let tids = stopped.threads().to_vec();
    let most = most_at_attach(header);
    if tids.len() as u64 > most {
        return Err(Error::Refused(format!(
            "process {pid} has {} threads: more than the {most} that can be accounted for; nothing was changed",
            tids.len(),
        )));
    }
    let mut registers = Vec::new();
    for &tid in &tids {
        let regs = stopped.regs(tid)?;
        if regs.gs_base != 0 {
            return Err(Error::Refused(format!(
                "thread {tid} of process {pid} uses the GS segment base ({:#x}) for itself, as Wine and some emulators do: nothing was changed",
                regs.gs_base
            )));
        }
        registers.push(regs);
    }
    let clocks = Clocks {
        opened: clock::ticks(),
        slots: tids.len() as u64,
    };
    let mut opener = Opener {
        stopped,
        shared,
        header,
        nodes_used: 0,
        opened: clocks.opened,
    };
    for (index, (&tid, regs)) in tids.iter().zip(registers).enumerate() {
        let trunk = stacks.unwind(opener.stopped, &regs);
        let processor_time = stacks.processor_time(pid, tid);
        let flags = if chosen.is_empty() || chosen.contains(&tid) {
            0
        } else {
            shm::SLOT_IGNORED
        };
        let thread = Thread {
            tid,
            trunk,
            flags,
            processor_time,
        };
        opener.open(index as u64, &thread, regs)?;
    }
    let nodes_used = opener.nodes_used;
    shared.write(
        offset_of!(shm::Header, nodes_used) as u64,
        &nodes_used.to_le_bytes(),
    )?;
    shared.write(
        offset_of!(shm::Header, next_slot) as u64,
        &(tids.len() as u32).to_le_bytes(),
    )?;
    Ok(clocks)
}

/// Fills the pages that the slots of so many threads will need, while nobody stands still for it: they are all zero, and
/// nobody has begun to use them.
pub fn make_room(shared: &Shared, header: &shm::Header, threads: u64) -> Result<()> {
    let touch = |offset: u64| shared.write(offset, &[0]);
    for index in 0..threads.min(most_at_attach(header)) {
        touch(shm::SLOTS_OFFSET + index * shm::PAGE)?;
        touch(header.frames_offset + index * shm::FRAMES_STRIDE + shm::FRAME_SIZE)?;
        let node = index * shm::CHUNK_NODES * shm::NODE_SIZE;
        if node < header.nodes_len {
            touch(header.nodes_offset + node)?;
        }
    }
    Ok(())
}

/// The clocks of threads that have slots now, and stand.
pub struct Clocks {
    /// Counter value at which their slots were opened.
    opened: u64,
    /// How many slots, from the first on.
    slots: u64,
}

impl Clocks {
    /// They have stood still since the slots were opened, as the threads have.
    pub fn start(&self, shared: &Shared, header: &shm::Header) -> Result<()> {
        // One write for the three.
        const {
            assert!(offset_of!(shm::SharedSlot, gap) as u64 == shm::SHARED_OFF + 8);
            assert!(offset_of!(shm::SharedSlot, read_ticks) as u64 == shm::SHARED_OFF + 16);
        }
        for index in 0..self.slots {
            let now = clock::ticks();
            let off = now.saturating_sub(self.opened);
            let mut words = [0; 24];
            words[..8].copy_from_slice(&off.to_le_bytes());
            words[8..16].copy_from_slice(&header.gap_least.to_le_bytes());
            words[16..].copy_from_slice(&now.to_le_bytes());
            let at = shm::SLOTS_OFFSET + index * shm::PAGE;
            shared.write(at + shm::SHARED_OFF, &words)?;
        }
        Ok(())
    }
}

/// A probed function on a thread's stack: its number and the address of its return address.
struct OnStack {
    function: u32,
    sp: u64,
    /// Where it was called from: its return address, 0 where that could not be read.
    site: u64,
}

/// As many files are kept open for the time of a stop, and no more than half of what this process may have.
const MOST_OPEN: u64 = 512;

/// All that it takes to know the functions on a stack, and a thread's processor time; made while the target runs.
pub struct Stacks {
    unwinder: Unwinder,
    functions: FunctionMap,
    processor_times: HashMap<Tid, ProcessorTime>,
}

impl Stacks {
    pub fn new(build: &Build, pid: Pid) -> Result<Stacks> {
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((0, 0));
        Ok(Stacks {
            unwinder: build.unwinder(pid)?,
            functions: FunctionMap::new(build),
            processor_times: proc::tasks(pid)?
                .into_iter()
                .take(MOST_OPEN.min(limit / 2) as usize)
                .filter_map(|tid| Some((tid, ProcessorTime::of(pid, tid)?)))
                .collect(),
        })
    }

    fn processor_time(&self, pid: Pid, tid: Tid) -> u64 {
        let open = self.processor_times.get(&tid);
        let known = open.and_then(ProcessorTime::nanoseconds);
        known
            .or_else(|| proc::processor_time(pid, tid))
            .unwrap_or(0)
    }

    fn unwind(&mut self, stopped: &Stopped, regs: &Regs) -> Vec<OnStack> {
        unwind(stopped, &mut self.unwinder, &self.functions, regs)
    }
}

/// Outermost first.
fn unwind(
    stopped: &Stopped,
    unwinder: &mut Unwinder,
    functions: &FunctionMap,
    regs: &Regs,
) -> Vec<OnStack> {
    let mut cache = StackCache {
        stopped,
        start: 0,
        bytes: Vec::new(),
    };
    let frames = unwinder.unwind(regs.rip, regs.rsp, regs.rbp, MAX_UNWOUND, &mut |address| {
        cache.word(address)
    });
    let mut on_stack = Vec::new();
    let mut below = regs.rsp;
    for frame in frames {
        let Some(cfa) = frame.cfa else { break };
        if cfa < below || cfa % 8 != 0 {
            // Another stack (a signal's), or lost: what is known so far is right.
            break;
        }
        below = cfa;
        if let Some(function) = functions.find(frame.ip) {
            on_stack.push((function, cfa - 8));
        }
    }
    let trunk = on_stack.into_iter().rev();
    trunk
        .map(|(function, sp)| OnStack {
            function,
            sp,
            site: cache.word(sp).unwrap_or(0),
        })
        .collect()
}

struct StackCache<'a> {
    stopped: &'a Stopped,
    start: u64,
    bytes: Vec<u8>,
}

impl StackCache<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        // Most stacks are shallow, and end soon.
        const AT_ONCE: usize = 4 << 10;
        let end = address.checked_add(8)?;
        if address < self.start || end > self.start + self.bytes.len() as u64 {
            self.bytes.resize(AT_ONCE, 0);
            let read = self
                .stopped
                .read_up_to(RemoteAddr(address), &mut self.bytes);
            self.bytes.truncate(read);
            self.start = address;
        }
        let at = (address - self.start) as usize;
        let word = self.bytes.get(at..at + 8)?;
        Some(u64::from_le_bytes(word.try_into().expect("eight bytes")))
    }
}

/// Probed functions by address.
struct FunctionMap {
    /// (start, end, number), sorted.
    ranges: Vec<(u64, u64, u32)>,
}

impl FunctionMap {
    fn new(build: &Build) -> FunctionMap {
        let mut ranges = Vec::new();
        for (surveyed, numbers) in build.survey.modules.iter().zip(&build.numbers) {
            // Goroutines' activations are not known by their addresses.
            let is_go = |f: &thalweg_symbols::Function| {
                let table = surveyed.module.go.as_ref();
                table.is_some_and(|table| table.contains(f.start))
            };
            for plan in &surveyed.plan.functions {
                let function = &surveyed.module.functions[plan.function];
                if is_go(function) {
                    continue;
                }
                ranges.push((
                    function.start + surveyed.bias,
                    function.end + surveyed.bias,
                    numbers[plan.function],
                ));
            }
        }
        ranges.sort_unstable();
        FunctionMap { ranges }
    }

    fn find(&self, address: u64) -> Option<u32> {
        let index = self
            .ranges
            .partition_point(|range| range.0 <= address)
            .checked_sub(1)?;
        let (_, end, number) = self.ranges[index];
        (address < end).then_some(number)
    }
}

struct Opener<'a> {
    stopped: &'a mut Stopped,
    shared: &'a Shared,
    header: &'a shm::Header,
    nodes_used: u64,
    /// Counter value at which all activations begin that are there already.
    opened: u64,
}

/// What is known of a thread that is to get a slot.
struct Thread {
    tid: Tid,
    trunk: Vec<OnStack>,
    flags: u32,
    processor_time: u64,
}

impl Opener<'_> {
    fn open(&mut self, index: u64, thread: &Thread, mut regs: Regs) -> Result<()> {
        let header = self.header;
        let &Thread { tid, ref trunk, .. } = thread;
        let shared_start = header.base + shm::PRIVATE_SIZE;
        let gs = header.base + index * shm::PAGE;
        let bytes = (trunk.len() as u64 + 1).next_multiple_of(shm::CHUNK_NODES) * shm::NODE_SIZE;
        if self.nodes_used + bytes > header.nodes_len {
            return Err(Error::NoRoom(
                "--memory is too small for the stacks of this process's threads".into(),
            ));
        }
        let first_node = shared_start + header.nodes_offset + self.nodes_used;
        self.write_trunk(first_node, trunk)?;
        self.nodes_used += bytes;

        let bottom = header.frames_offset + index * shm::FRAMES_STRIDE + shm::FRAME_SIZE;
        let frames = self.frames(first_node, trunk, regs.rsp);
        self.shared.write(bottom, &frames)?;
        let bottom = shared_start + bottom;

        let mut slot: shm::SharedSlot = FromZeros::new_zeroed();
        slot.start = header.attach_ticks;
        slot.first_start = header.attach_ticks;
        slot.last = self.opened;
        slot.gap = header.gap_least;
        slot.read_cpu = thread.processor_time;
        slot.pid = header.inner_pid;
        slot.tid = match header.inner_pid == header.pid {
            true => tid.0 as u32,
            false => proc::inner_number(self.stopped.pid(), tid).unwrap_or(tid.0 as u32),
        };
        slot.state = shm::SLOT_TAKEN;
        slot.threads = 1;
        // Threads that are there already are seen by name from outside.
        slot.name_due = u64::MAX;
        slot.root = first_node;
        slot.chunk_next = first_node + (trunk.len() as u64 + 1) * shm::NODE_SIZE;
        slot.creators = [shm::NO_FUNCTION; shm::CREATORS];
        slot.original_gs = regs.gs_base;
        slot.flags = thread.flags | shm::SLOT_AT_ATTACH;
        self.shared
            .write(shm::SLOTS_OFFSET + index * shm::PAGE, slot.as_bytes())?;
        let records = header.flags & shm::HEADER_RECORDS != 0;
        if records {
            let threshold = tables::threshold(self.shared, header)?;
            self.shared
                .write(tables::threshold_offset(index), &threshold.to_le_bytes())?;
        }

        if regs.fs_base == 0 {
            // A static program before it has set up its thread-local storage: the probes need a word at fs:[0].
            regs.fs_base = gs + SPARE_THREAD_POINTER;
            self.stopped
                .write(RemoteAddr(regs.fs_base), &regs.fs_base.to_le_bytes())?;
        }
        let mut owner = [0; 8];
        self.stopped.read(RemoteAddr(regs.fs_base), &mut owner)?;
        let owner = u64::from_le_bytes(owner);
        // Go programs without cgo have nothing at fs:[0], and no probe there that would ask for it.
        let owner = if owner == 0 { regs.fs_base } else { owner };
        let mut private: shm::PrivateSlot = FromZeros::new_zeroed();
        private.owner = owner;
        private.top = bottom + trunk.len() as u64 * shm::FRAME_SIZE - gs;
        private.limit = bottom + shm::MAX_FRAMES * shm::FRAME_SIZE - gs;
        private.table = shared_start + shm::TABLE_OFFSET;
        private.table_mask = header.table_mask;
        private.nodes = shared_start + header.nodes_offset;
        if records {
            private.rules = shared_start + header.rules_offset + shm::rules::TABLE_OFFSET;
        }
        private.untimed = shm::untimed_base(shared_start, header);
        private.go_stack = bottom - shm::FRAME_SIZE + shm::FRAMES_STRIDE;
        self.stopped.write(RemoteAddr(gs), private.as_bytes())?;
        regs.gs_base = gs;
        self.stopped.set_regs(tid, regs)
    }

    /// The root and below it, each the child of the one before, the functions on the stack.
    fn write_trunk(&self, first: u64, trunk: &[OnStack]) -> Result<()> {
        let shared_start = self.header.base + shm::PRIVATE_SIZE;
        let link = |index: usize| {
            let nodes = shared_start + self.header.nodes_offset;
            ((first - nodes) / shm::NODE_SIZE) as u32 + index as u32 + 1
        };
        let with_sites = self.header.flags & shm::HEADER_SITES != 0;
        let mut bytes = Vec::new();
        for index in 0..=trunk.len() {
            let mut node: shm::Node = FromZeros::new_zeroed();
            node.min = i64::MAX;
            node.children = [first; shm::CHILD_SLOTS as usize];
            node.function = shm::NO_FUNCTION;
            if index > 0 {
                node.function = trunk[index - 1].function;
                node.flags = shm::NODE_AT_ATTACH;
            }
            if let Some(next) = trunk.get(index) {
                node.first_child = link(index + 1);
                let [place, _] = match with_sites {
                    true => shm::site_places(shm::site_hash(next.function, next.site)),
                    false => shm::child_places(next.function),
                };
                node.children[place] = first + (index as u64 + 1) * shm::NODE_SIZE;
            }
            if with_sites {
                let own = index.checked_sub(1).map_or(0, |own| trunk[own].site);
                node.children[shm::SITE_SLOT] = own;
            }
            bytes.extend_from_slice(node.as_bytes());
        }
        self.shared.write(first - shared_start, &bytes)
    }

    fn frames(&self, first_node: u64, trunk: &[OnStack], rsp: u64) -> Vec<u8> {
        let outermost = trunk.first().map_or(rsp, |f| f.sp);
        let mut bytes = Vec::new();
        let mut push = |sp: u64, flags: u64, index: u64| {
            let frame = shm::Frame {
                key: shm::frame_key(sp, flags),
                node: first_node + index * shm::NODE_SIZE,
                start: self.opened,
                child: 0,
            };
            bytes.extend_from_slice(frame.as_bytes());
        };
        push((outermost + shm::WINDOW / 2) & !7, shm::KEY_SENTINEL, 0);
        for (index, on_stack) in trunk.iter().enumerate() {
            push(on_stack.sp, 0, index as u64 + 1);
        }
        bytes
    }
}
