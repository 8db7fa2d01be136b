//! The contract between the agent in the target and the controller outside: every structure in memory that both sides
//! touch, its offsets, and the layout of the region. `no_std`, no dependencies, versioned; size and offset asserts at
//! the end keep the hand-written assembler of the probes honest.
//!
//! ```text
//! base            PRIVATE_SIZE                                       shared_size
//! |-- private ----|-- shared memory (a memfd) --------------------------------|
//! | slot page x N, stack | header | gates | loaded | slot x N | ended | created | cut | dynamic | table | counters of blocks | blobs | frames x N | growth | folded | nodes | suspended | waits | states | looks | rules | alloc |
//! ```
//!
//! A thread's GS base points to its own private page, which is wiped in a fork child: there the first probe finds
//! `owner == 0` and takes the slow path. Its shared page lies at the constant distance `SHARED_FROM_GS`, its shadow
//! stack at an offset that `top` carries (relative to the GS base, so that a wiped `top` of 0 reads the wiped page
//! itself, which no stack pointer matches).
#![no_std]
#![forbid(unsafe_code)]

/// Where this package lies, for the build script that compiles it into the agent's image.
#[cfg(not(freestanding))]
pub const SOURCE: &str = env!("CARGO_MANIFEST_DIR");

mod ahead;
pub mod alloc;
mod blocks;
pub mod calls;
pub mod dynamic;
mod frames;
mod gates;
mod java;
pub mod kernel;
mod leaf;
mod looks;
mod nodes;
mod prune;
pub mod record;
pub mod rules;
mod slots;
mod states;
mod suspended;
pub mod totals;

pub use ahead::*;
pub use blocks::*;
pub use frames::*;
pub use gates::*;
pub use java::*;
pub use leaf::*;
pub use looks::*;
pub use nodes::*;
pub use prune::*;
pub use slots::*;
pub use states::*;
pub use suspended::*;

/// "thalweg" and a format digit; the first word of the shared memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"thalweg1");
/// Of this layout and of the meaning of every field. Both sides must agree on it.
pub const VERSION: u32 = 23;
/// What the memfd is called in `/proc/PID/maps`.
pub const MEMFD_NAME: &str = "thalweg";

pub const PAGE: u64 = 4096;
/// How many threads a target may have at a time; what more do is counted in `Header::unslotted`. A thread that has ended
/// leaves its slot to another.
pub const SLOTS: u64 = 4096;
/// Behind the slots' pages: a word that is 1 while a thread of this process uses the stack behind it, on which threads of Go
/// programs have their first event. Wiped in a fork child, too.
pub const CLAIM_LOCK: u64 = SLOTS * PAGE;
pub const CLAIM_STACK_END: u64 = CLAIM_LOCK + AGENT_STACK;
pub const PRIVATE_SIZE: u64 = CLAIM_STACK_END;

/// Goroutines have small stacks: what is not the plain case is done on one of these.
pub const AGENT_STACK: u64 = 64 << 10;

/// Offsets in the shared memory.
pub const GATES_OFFSET: u64 = PAGE;
pub const LOADED_OFFSET: u64 = GATES_OFFSET + 2 * PAGE;
pub const SLOTS_OFFSET: u64 = LOADED_OFFSET + MAX_LOADED as u64 * LOADED_SIZE;
pub const ENDED_OFFSET: u64 = SLOTS_OFFSET + SLOTS * PAGE;
pub const THREAD_CREATIONS_OFFSET: u64 =
    ENDED_OFFSET + (ENDED_LIMIT * ENDED_SIZE).next_multiple_of(PAGE);
pub const CUT_SYSTEM_CALLS_OFFSET: u64 =
    THREAD_CREATIONS_OFFSET + THREAD_CREATIONS * THREAD_CREATION_SIZE;
pub const DYNAMIC_OFFSET: u64 = CUT_SYSTEM_CALLS_OFFSET + kernel::CUTS * kernel::CUT_SIZE;
pub const TABLE_OFFSET: u64 = DYNAMIC_OFFSET + dynamic::DYNAMIC_SIZE;

/// From a thread's GS base to its `SharedSlot`.
pub const SHARED_FROM_GS: u64 = PRIVATE_SIZE + SLOTS_OFFSET;

/// Shadow stack of one thread, in bytes: a little over a million frames.
pub const FRAMES_SIZE: u64 = 32 << 20;
pub const MAX_FRAMES: u64 = FRAMES_SIZE / FRAME_SIZE - 2;
/// From one thread's shadow stack to the next one's, with what recording needs beside it and the `AGENT_STACK` at the end.
pub const FRAMES_STRIDE: u64 = FRAMES_SIZE + record::ROOM + AGENT_STACK;

/// How many ended threads keep a tree of their own. Those beyond share trees with others that ended.
pub const ENDED_LIMIT: u64 = 16384;
pub const ENDED_SIZE: u64 = 104;
/// How many of a creator's functions are noted: those of the C library that made the thread, and the one that wanted it.
pub const CREATORS: usize = 8;

/// Threads that are being made and have had no event yet: room for the notes of their creators.
pub const THREAD_CREATIONS: u64 = 4096;
pub const THREAD_CREATION_SIZE: u64 = 64;

/// How far below its caller's return address a callee's may lie before the slow path looks closer.
pub const WINDOW: u64 = 1 << 20;

pub const FRAME_SIZE: u64 = 32;
pub const NODE_SIZE: u64 = 128;
/// Nodes are handed to threads in runs of this many.
pub const CHUNK_NODES: u64 = 32;
/// Entries of a node's second-level child table, which takes `EXTENSION_NODES` nodes of the arena.
pub const EXTENSION_SLOTS: u64 = 256;
pub const EXTENSION_NODES: u64 = EXTENSION_SLOTS * 8 / NODE_SIZE;
pub const CHILD_SLOTS: u64 = 8;
/// `Node::function` of a thread's root.
pub const NO_FUNCTION: u32 = u32::MAX;

pub const MAX_CODE_REGIONS: usize = 128;

#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CodeRegion {
    pub start: u64,
    /// 0: not in use.
    pub len: u64,
}

pub const MAX_LOADED: usize = 4096;
pub const LOADED_SIZE: u64 = 64;

/// A module that came after attaching: what it adds to the catalog and to the ledger. Blobs lie in the growth area.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// One of the `LOADED_` values; written last.
    pub state: u32,
    /// The process that loaded it.
    pub pid: u32,
    /// Its functions in the order of their numbers. Length 0: they are known from an earlier load.
    pub catalog_offset: u64,
    pub catalog_len: u64,
    pub first_function: u32,
    pub functions: u32,
    /// Its patches; the last field is the size of the place that the ledger may take.
    pub ledger_offset: u64,
    pub ledger_len: u64,
    pub ledger_room: u64,
    pub reserved: u64,
}

pub const LOADED_NONE: u32 = 0;
/// Its text is patched, or will be.
pub const LOADED_LIVE: u32 = 1;
/// Unloaded again where it was loaded. Its ledger stays in force: a fork child may still have it.
pub const LOADED_CLOSED: u32 = 2;

/// First page of the shared memory.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct Header {
    pub magic: u64,
    pub version: u32,
    /// One of the `STATE_` values; the controller alone writes it.
    pub state: u32,
    /// Where the region starts in the target (and in its fork children).
    pub base: u64,
    pub shared_size: u64,
    pub pid: u32,
    /// `HEADER_` bits.
    pub flags: u32,
    pub functions: u32,
    /// 1: the next thread at a checkpoint's gate waits there, and sets it to 0.
    pub checkpoint_wanted: u32,
    /// Number of entries minus one.
    pub table_mask: u64,
    pub catalog_offset: u64,
    pub catalog_len: u64,
    pub ledger_offset: u64,
    pub ledger_len: u64,
    pub frames_offset: u64,
    /// Per function one node for contexts that no longer fit, or were cut.
    pub folded_offset: u64,
    pub nodes_offset: u64,
    pub nodes_len: u64,
    /// Counter value, wall clock and monotonic clock (ns) at attach.
    pub attach_ticks: u64,
    pub attach_unix_ns: u64,
    pub attach_monotonic_ns: u64,
    /// Ticks per second, as the bits of an f64.
    pub ticks_hz: u64,
    /// Mappings that hold stubs and a copy of the agent; written before each is made.
    pub code: [CodeRegion; MAX_CODE_REGIONS],
    // Written by the agent, atomically.
    pub next_slot: u32,
    pub unslotted: u32,
    /// Bytes of the node arena that have been handed out.
    pub nodes_used: u64,
    pub folded_calls: u64,
    /// Folded and cut calls that had no caller.
    pub folded_outermost: u64,
    pub deep_calls: u64,
    // Gates. A controller that serves them has set `gate_server` and moves the heartbeat; posting moves the sequence.
    pub gate_server: u32,
    pub gate_sequence: u32,
    pub gate_heartbeat: u32,
    /// Entries of the table of loaded modules that have been used.
    pub loaded: u32,
    /// Room for catalogs and ledgers of modules that are loaded later, and how much of it is used.
    pub growth_offset: u64,
    pub growth_len: u64,
    pub growth_used: u64,
    /// How many functions there can be in all.
    pub functions_limit: u64,
    /// Address of the loader's word that is 0 when its list of objects is in order; 0: unknown.
    pub list_state: u64,
    /// Entries of the table of ended threads that are given out.
    pub ended: u32,
    /// Where the next search for the slot of an ended thread begins.
    pub hand: u32,
    /// How many namespaces of processes are told apart.
    pub namespaces: u32,
    /// What `getpid` says in the target: not `pid` if that is in a PID namespace of its own.
    pub inner_pid: u32,
    /// Until this counter value all slots are taken by living threads: no search.
    pub full_until: u64,
    /// Least and most of `SharedSlot::gap`; `NO_GAP`: threads may not ask for their processor time.
    pub gap_least: i64,
    pub gap_most: i64,
    /// Ticks per nanosecond, times 2^32.
    pub ticks_per_ns: u64,
    /// With `HEADER_RECORDS`: where the rules are.
    pub rules_offset: u64,
    /// What Go's scheduler calls when a goroutine has ended; 0: unknown.
    pub goroutine_end: u64,
    /// With `HEADER_ALLOC`: see `alloc`.
    pub alloc_offset: u64,
    /// A `ProbeState` for each function.
    pub states_offset: u64,
    /// 1: somebody detaches, or has begun to: no text is patched any more.
    pub leaving: u32,
    /// The process that keeps a budget; 0: none.
    pub keeper: u32,
    pub prune: Pruning,
    /// System calls of contexts that were cut or found no room, and for which there was no room in the table of these either.
    pub lost_system_calls: u64,
    pub looks: Looks,
    /// `LIMIT_` bits: how processes of the target have limited themselves. Written by the agent, atomically.
    pub limits: u32,
    /// The thread that rewrites probes; 0: nobody does.
    pub rewriting: u32,
    /// How many threads have got a number that is made up.
    pub unnumbered: u32,
    pub reserved: u32,
    /// What controllers kept the target from doing. Only they write it.
    pub held: Held,
    pub blocks: Blocks,
    /// With `HEADER_AHEAD`: the program's arguments, each ended by a zero byte.
    pub command_offset: u64,
    pub command_len: u64,
}

/// How often and how long processes and threads of the target stood because of a controller, in ticks.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// All threads of a process stood.
    pub stops: u64,
    pub ticks: u64,
    pub longest: u64,
    /// One thread waited at a gate.
    pub gates: u64,
    pub gate_ticks: u64,
    pub longest_gate: u64,
    /// What threads that waited for a stopped process had taken out of their waits.
    pub waited_for: u64,
}

/// Thread numbers from here on are made up: the kernel, which has none so high, could not be asked.
pub const MADE_UP_TID: u32 = 1 << 30;

/// It filters or redirects its system calls: the agent makes none from then on.
pub const LIMIT_SILENT: u32 = 1;
/// It may not read the time-stamp counter: calls are counted without a clock from then on.
pub const LIMIT_FROZEN: u32 = 2;
/// It uses the GS base, or has threads without a thread pointer: nothing is counted from then on.
pub const LIMIT_RETIRED: u32 = 4;
/// It was not possible to rewrite the probes, so that the limit holds for all processes of this memory.
pub const LIMIT_SILENT_ALL: u32 = 8;

/// As a gap: one that is never exceeded.
pub const NO_GAP: i64 = i64::MAX;

pub const STATE_BUILDING: u32 = 0;
pub const STATE_ATTACHED: u32 = 1;
/// The text is as it was; only the data and perhaps the stubs are still mapped.
pub const STATE_DETACHED: u32 = 2;

pub const HEADER_TIMED: u32 = 1;
/// `rdgsbase` and `wrgsbase` may be used.
pub const HEADER_FSGSBASE: u32 = 2;
/// Launched by thalweg, as opposed to attached to.
pub const HEADER_LAUNCHED: u32 = 4;
/// Only threads that were chosen at attach are reported: new ones are not.
pub const HEADER_CHOSEN: u32 = 8;

/// Fork children are counted.
pub const HEADER_FOLLOW: u32 = 16;

/// Contexts are told apart by call site too.
pub const HEADER_SITES: u32 = 256;

/// Calls that rules choose are recorded one by one.
pub const HEADER_RECORDS: u32 = 1 << 16;

/// The agent may change the protection of its own code, for a moment, to rewrite its probes.
pub const HEADER_REWRITES: u32 = 1 << 18;

/// Short functions that call nothing are counted at their entry alone, and never timed.
pub const HEADER_LEAVES: u32 = 1 << 19;

/// The probes were put into the program's file (`Ahead`): nobody takes them out of a process.
pub const HEADER_AHEAD: u32 = 1 << 20;

/// Allocations are counted.
pub const HEADER_ALLOC: u32 = 1 << 17;

/// An uncounted fork child that has made so many events is no mere step towards an exec: it asks to be left clean.
pub const STRAY_EVENTS: u64 = 64;

/// Where things lie in one target, all relative to the start of the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub table_entries: u64,
    pub catalog_offset: u64,
    pub ledger_offset: u64,
    pub frames_offset: u64,
    pub growth_offset: u64,
    pub folded_offset: u64,
    pub functions_limit: u64,
    pub nodes_offset: u64,
    pub nodes_len: u64,
    pub waits_offset: u64,
    pub rules_offset: u64,
    /// 0: allocations are not counted.
    pub alloc_offset: u64,
    pub states_offset: u64,
    pub looks_offset: u64,
    pub shared_size: u64,
}

/// Room for what is loaded later. All of it is address space that is filled only when it is needed.
pub const GROWTH_LEN: u64 = 1 << 30;
pub const GROWTH_FUNCTIONS: u64 = 2 << 20;
/// Of these the table of probed entries has room for this many at least: it is touched all over.
pub const GROWTH_TABLE: u64 = 32 << 10;

/// As many entries as the table of probed entries has for so many functions: a power of two.
pub fn table_entries(functions: u64) -> u64 {
    ((functions + GROWTH_TABLE) * 2).next_power_of_two()
}

impl Layout {
    pub fn new(functions: u64, catalog_len: u64, ledger_len: u64, node_bytes: u64) -> Layout {
        let none = Blocks::default();
        Layout::with_blocks(functions, &none, catalog_len, ledger_len, node_bytes)
    }

    /// Where the counters of blocks begin, which code has to know before all else is known.
    pub fn blocks_offset(functions: u64) -> u64 {
        (TABLE_OFFSET + table_entries(functions) * 8).next_multiple_of(PAGE)
    }

    pub fn with_blocks(
        functions: u64,
        blocks: &Blocks,
        catalog_len: u64,
        ledger_len: u64,
        node_bytes: u64,
    ) -> Layout {
        let page_up = |n: u64| (n + PAGE - 1) & !(PAGE - 1);
        let table_entries = table_entries(functions);
        let functions_limit = functions + GROWTH_FUNCTIONS;
        let catalog_offset = Layout::blocks_offset(functions) + blocks.len();
        let ledger_offset = page_up(catalog_offset + catalog_len);
        let frames_offset = page_up(ledger_offset + ledger_len);
        let growth_offset = frames_offset + SLOTS * FRAMES_STRIDE;
        let folded_offset = growth_offset + GROWTH_LEN;
        let nodes_offset = page_up(folded_offset + functions_limit * NODE_SIZE);
        let nodes_len = page_up(node_bytes);
        let waits_offset = waits_offset(nodes_offset, nodes_len);
        let states_offset = page_up(waits_offset + waits_place(waits_offset - folded_offset));
        let looks_offset = page_up(states_offset + functions_limit * PROBE_STATE_SIZE);
        let rules_offset = looks_offset + 2 * LOOKS_ROOM;
        Layout {
            table_entries,
            catalog_offset,
            ledger_offset,
            frames_offset,
            growth_offset,
            folded_offset,
            functions_limit,
            nodes_offset,
            nodes_len,
            waits_offset,
            rules_offset,
            alloc_offset: 0,
            states_offset,
            looks_offset,
            shared_size: page_up(rules_offset + rules::len(functions_limit)),
        }
    }
}

/// Where the waits of all contexts begin.
pub const fn waits_offset(nodes_offset: u64, nodes_len: u64) -> u64 {
    nodes_offset + nodes_len + SUSPENDED_SIZE
}

/// Where the search for a probed entry address begins in the table; both sides and the probe's assembler use it.
/// Functions are aligned to 16 bytes as a rule.
pub const fn table_index(address: u64, mask: u64) -> u64 {
    ((address >> 4) ^ (address >> 16)) & mask
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Frame>() as u64 == FRAME_SIZE);
    assert!(size_of::<Node>() as u64 == NODE_SIZE);
    assert!(size_of::<Header>() as u64 <= PAGE);
    assert!(size_of::<Gate>() as u64 == GATE_SIZE);
    assert!(MAX_GATES as u64 * GATE_SIZE <= LOADED_OFFSET - GATES_OFFSET);
    assert!(size_of::<Loaded>() as u64 == LOADED_SIZE && SLOTS_OFFSET.is_multiple_of(PAGE));
    assert!(size_of::<Ended>() as u64 == ENDED_SIZE);
    assert!(size_of::<SuspendedBlock>() as u64 <= SUSPENDED_BLOCK_SIZE);
    assert!(size_of::<SuspendedCall>() == 32 && size_of::<SuspendedFrame>() == 32);
    assert!(SUSPENDED_FRAMES.is_multiple_of(2));
    assert!(
        size_of::<ThreadCreation>() as u64 == THREAD_CREATION_SIZE
            && (THREAD_CREATIONS * THREAD_CREATION_SIZE).is_multiple_of(PAGE)
    );
    assert!(size_of::<SharedSlot>() as u64 <= SPARE_ROOT && SPARE_ROOT + NODE_SIZE <= PAGE);
    assert!(offset_of!(PrivateSlot, owner) == PRIVATE_OWNER);
    assert!(offset_of!(PrivateSlot, top) == PRIVATE_TOP);
    assert!(offset_of!(PrivateSlot, limit) == PRIVATE_LIMIT);
    assert!(offset_of!(PrivateSlot, table) == PRIVATE_TABLE);
    assert!(offset_of!(PrivateSlot, table_mask) == PRIVATE_TABLE_MASK);
    assert!(offset_of!(PrivateSlot, nodes) == PRIVATE_NODES);
    assert!(offset_of!(SharedSlot, last) as u64 == SHARED_LAST);
    assert!(offset_of!(SharedSlot, off) as u64 == SHARED_OFF);
    assert!(offset_of!(SharedSlot, gap) as u64 == SHARED_GAP);
    assert!(size_of::<Waits>() as u64 == WAITS_SIZE);
    assert!(offset_of!(Frame, key) == FRAME_KEY);
    assert!(offset_of!(Frame, node) == FRAME_NODE);
    assert!(offset_of!(Frame, start) == FRAME_START);
    assert!(offset_of!(Frame, child) == FRAME_CHILD);
    assert!(offset_of!(Node, calls) == NODE_CALLS);
    assert!(offset_of!(Node, cum) == NODE_CUM);
    assert!(offset_of!(Node, base) == NODE_BASE);
    assert!(offset_of!(Node, min) == NODE_MIN);
    assert!(offset_of!(Node, max) == NODE_MAX);
    assert!(offset_of!(Node, function) == NODE_FUNCTION);
    assert!(offset_of!(Node, extension) == NODE_EXTENSION);
    assert!(offset_of!(Node, children) == NODE_CHILDREN);
    assert!((EXTENSION_SLOTS * 8).is_multiple_of(NODE_SIZE));
};
