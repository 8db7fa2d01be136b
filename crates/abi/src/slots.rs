//! What a thread has of its own: the private page at its GS base, its account in the shared memory, and what is left of it when
//! it has ended.

use crate::{CREATORS, SlotPruning, THREAD_CREATIONS};

/// What a thread has at its GS base; zeroed in a fork child.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct PrivateSlot {
    /// `fs:[0]` of the thread that this slot belongs to.
    pub owner: u64,
    /// Offset from the GS base to the top frame.
    pub top: u64,
    /// Offset from the GS base beyond which no frame may be pushed.
    pub limit: u64,
    /// Address of the hash table of probed entries, and its index mask.
    pub table: u64,
    pub table_mask: u64,
    /// Address of the node arena.
    pub nodes: u64,
    /// In a fork child that is not counted: its events so far.
    pub strayed: u64,
    /// Stacks beside the thread's main one that were found to be its own, by `stack_place`: the megabyte they lie in.
    pub stacks: [u64; KNOWN_STACKS],
    /// With `HEADER_SITES`: where in its stub the last tail jump was made, and by whom: 8 less than the address of the
    /// activation's return address.
    pub jumped_from: u64,
    pub jumped_at: u64,
    /// The goroutine whose activations are on the shadow stack; 0: none's.
    pub goroutine: u64,
    /// Its thread, as Go's runtime knows it (`g.m`), and `fs:[0]` there: 0 in programs without cgo.
    pub go_machine: u64,
    pub go_thread: u64,
    /// End of the stack for the slow path of Go's probes, and 1 while that is in use.
    pub go_stack: u64,
    pub go_busy: u64,
    /// With `HEADER_RECORDS`: address of the table with a byte per function, see `rules`.
    pub rules: u64,
    /// With `HEADER_ALLOC`: the allocator that the thread is in.
    pub alloc: AllocNote,
    /// What a quarter of a node's address is added to: where its calls without a clock are counted (`Waits::untimed`).
    pub untimed: u64,
    /// How many calls of sampled functions go by until one is timed, and what the next such number is drawn from.
    pub countdown: u64,
    pub seed: u64,
    pub python: PythonStack,
}

/// How deep Python calls may go on the thread's stack: without thalweg those between Python functions take none of it.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PythonStack {
    /// The complement of the address below which the evaluator's entry takes the slow path. 0: not known yet, always.
    pub floor: u64,
    /// Where the first evaluator was seen, and how far below that they may go.
    pub base: u64,
    pub span: u64,
    /// 1: the entry that follows is the first beyond that.
    pub pending: u64,
    /// Where that one's return address is, until it has returned, and its interpreter's word; 0: there is none.
    pub deep: u64,
    pub word: u64,
}

/// What an allocator was asked for that has not returned yet.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct AllocNote {
    /// Address of its return address; 0: the thread is in none.
    pub at: u64,
    /// One of `alloc::kind`.
    pub kind: u64,
    /// Its frame and its context, by which one that was left without a return is known.
    pub frame: u64,
    pub node: u64,
    /// The context that is charged.
    pub caller: u64,
    pub size: u64,
    /// The block that is freed or resized, and what is known of it.
    pub old: u64,
    pub old_bytes: u64,
    pub old_node: u64,
    /// Where the block's address goes, if it is not returned.
    pub into: u64,
}

pub const KNOWN_STACKS: usize = 32;

/// Where in `PrivateSlot::stacks` the stack around `sp` is remembered, and as what.
pub const fn stack_place(sp: u64) -> (usize, u64) {
    let megabyte = sp >> 20;
    (
        ((megabyte ^ (megabyte >> 5)) % KNOWN_STACKS as u64) as usize,
        megabyte,
    )
}

impl PythonStack {
    pub const UNKNOWN: PythonStack = PythonStack {
        floor: 0,
        base: 0,
        span: 0,
        pending: 0,
        deep: 0,
        word: 0,
    };
}

pub const PRIVATE_OWNER: usize = 0;
pub const PRIVATE_TOP: usize = 8;
pub const PRIVATE_LIMIT: usize = 16;
pub const PRIVATE_TABLE: usize = 24;
pub const PRIVATE_TABLE_MASK: usize = 32;
pub const PRIVATE_NODES: usize = 40;
pub const PRIVATE_JUMPED_FROM: usize = core::mem::offset_of!(PrivateSlot, jumped_from);
pub const PRIVATE_JUMPED_AT: usize = core::mem::offset_of!(PrivateSlot, jumped_at);
pub const PRIVATE_GOROUTINE: usize = core::mem::offset_of!(PrivateSlot, goroutine);
pub const PRIVATE_GO_MACHINE: usize = core::mem::offset_of!(PrivateSlot, go_machine);
pub const PRIVATE_GO_THREAD: usize = core::mem::offset_of!(PrivateSlot, go_thread);
pub const PRIVATE_GO_STACK: usize = core::mem::offset_of!(PrivateSlot, go_stack);
pub const PRIVATE_GO_BUSY: usize = core::mem::offset_of!(PrivateSlot, go_busy);
pub const PRIVATE_RULES: usize = core::mem::offset_of!(PrivateSlot, rules);
pub const PRIVATE_ALLOC_AT: usize = core::mem::offset_of!(PrivateSlot, alloc.at);
pub const PRIVATE_ALLOC_KIND: usize = core::mem::offset_of!(PrivateSlot, alloc.kind);
pub const PRIVATE_UNTIMED: usize = core::mem::offset_of!(PrivateSlot, untimed);
pub const PRIVATE_COUNTDOWN: usize = core::mem::offset_of!(PrivateSlot, countdown);
pub const PRIVATE_SEED: usize = core::mem::offset_of!(PrivateSlot, seed);
pub const PRIVATE_PYTHON_FLOOR: usize = core::mem::offset_of!(PrivateSlot, python.floor);

/// The part of a thread's account that outlives the process. When the thread has ended, a new one may take the slot
/// over: the account then goes to the table of ended ones, or (where that or the arena is full) is carried on.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct SharedSlot {
    /// The thread's clock at its last event. That clock is the time-stamp counter less `off`: it stands still while the
    /// thread is off the processor, and while it is in the slow path.
    pub last: u64,
    pub off: u64,
    /// Two events farther apart than this, in ticks, and the thread may have been off the processor in between.
    pub gap: i64,
    /// When the thread's processor time was last read: counter value, and the time in nanoseconds.
    pub read_ticks: u64,
    pub read_cpu: u64,
    /// Ticks off the processor that no function has been charged with yet, or (negative) too many that were.
    pub uncharged: i64,
    /// Part of `off`: not waited, but spent in the slow path.
    pub slow_ticks: u64,
    /// The controller has seen that the wait which began at this value of `last` is for a terminal's input.
    pub terminal_wait: u64,
    /// Ticks for which controllers kept the thread from running, up to the counter value `held_until`: it stood in a stop of
    /// theirs, or waited for a process that did. Written by them; what of it has been taken out of the waits is in
    /// `held_out`, which the thread writes.
    pub held: u64,
    pub held_until: u64,
    pub held_out: u64,
    /// Counter value when the slot was claimed.
    pub start: u64,
    pub pid: u32,
    pub tid: u32,
    /// Address of the root node; 0 while the slot is not in use.
    pub root: u64,
    /// Address of the next free node of this thread's run, which ends at the next multiple of its size.
    pub chunk_next: u64,
    /// One of the `SLOT_` states in its `SLOT_STATE` bits, and how often the slot was taken: a compare-exchange that
    /// succeeds proves that the slot has not changed hands in between.
    pub state: u64,
    /// The thread that created this one; 0: unknown.
    pub creator_pid: u32,
    pub creator_tid: u32,
    /// The functions it was in when it did, innermost first; `NO_FUNCTION`: no more are known.
    pub creators: [u32; CREATORS],
    /// GS base to give back at detach.
    pub original_gs: u64,
    /// Flags, `SLOT_` bits.
    pub flags: u32,
    /// Processes whose numbers mean the same to each other, because they are in one PID namespace: that of `pid`.
    pub namespace: u32,
    /// Counter value when the thread was first found to have ended; 0: not yet.
    pub dead_since: u64,
    /// How many threads, one after the other, the tree has belonged to, and when the first of them began.
    pub threads: u64,
    pub first_start: u64,
    /// As the kernel knew the thread at the counter value `named`. It is asked again at the slow event `name_due`.
    pub name: [u8; 16],
    pub named: u64,
    pub name_due: u64,
    pub name_step: u64,
    /// Times the slow path had to mend the shadow stack.
    pub resyncs: u64,
    pub slow_entries: u64,
    pub slow_exits: u64,
    /// Calls of Java methods that are off and still have their probes.
    pub off_calls: u64,
    /// Address of the frame that stands for the stack of the coroutine that the thread is in; 0 on its own stack.
    pub base: u64,
    /// 1 while the slow path follows the thread to another stack.
    pub switching: u32,
    /// How many of `resumed_by` there are.
    pub resumers: u32,
    /// Coroutines that have resumed one another, down to the one that runs.
    pub resumed_by: [Resumer; RESUMERS],
    pub prune: SlotPruning,
}

/// A coroutine that waits for the one that it has resumed.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Resumer {
    /// Where its stack was left.
    pub sp: u64,
    /// The context in which it runs itself.
    pub node: u64,
}

pub const RESUMERS: usize = 4;

/// `SharedSlot::flags`: the slot belongs to a fork child.
pub const SLOT_FORKED: u32 = 1;
/// `SharedSlot::flags`: the user chose other threads; what this one counts is not reported.
pub const SLOT_IGNORED: u32 = 2;
/// `SharedSlot::flags`: the thread was there when thalweg attached.
pub const SLOT_AT_ATTACH: u32 = 4;
/// `SharedSlot::flags`: the tree is handed on from ended threads to new ones.
pub const SLOT_RECYCLED: u32 = 8;
/// Its clock has stopped: what was open then has had its time up to `last`.
pub const SLOT_FROZEN: u32 = 16;

/// The part of `SharedSlot::state` that is not a generation.
pub const SLOT_STATE: u64 = 3;
/// A thread has it, which may have ended.
pub const SLOT_TAKEN: u64 = 1;
/// A thread is just taking it over from one that has ended.
pub const SLOT_CHANGING: u64 = 2;

/// What a creator notes before it makes a thread.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct ThreadCreation {
    /// The thread pointer that the child will have; 0: free, 1: being written or read.
    pub owner: u64,
    pub ticks: u64,
    pub pid: u32,
    pub tid: u32,
    /// Its functions, innermost first.
    pub functions: [u32; CREATORS],
    pub reserved: u64,
}

pub const THREAD_CREATION_BUSY: u64 = 1;

/// Where the note for a child with this thread pointer is looked for: there and in the `THREAD_CREATION_PLACES - 1` that follow.
pub const fn thread_creation_place(owner: u64) -> u64 {
    // Thread pointers are far apart, often by a round number of pages.
    (owner >> 6 ^ owner >> 12 ^ owner >> 20) % THREAD_CREATIONS
}

pub const THREAD_CREATION_PLACES: u64 = 4;

/// The account of a thread that has ended and whose slot another one has.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct Ended {
    /// Address of the root node; 0 while the entry is being written.
    pub root: u64,
    pub start: u64,
    pub end: u64,
    pub pid: u32,
    pub tid: u32,
    pub creator_pid: u32,
    pub creator_tid: u32,
    pub creators: [u32; CREATORS],
    pub flags: u32,
    pub reserved: u32,
    pub threads: u64,
    pub name: [u8; 16],
}

pub const SHARED_LAST: u64 = 0;
pub const SHARED_OFF: u64 = 8;
pub const SHARED_GAP: u64 = 16;
pub const SHARED_SLOW: u64 = core::mem::offset_of!(SharedSlot, slow_ticks) as u64;
/// Where in its page a slot has a root node for a thread that finds the arena full.
pub const SPARE_ROOT: u64 = 2048;

/// Bits of a process's number in its own PID namespace: the kernel gives no larger ones.
pub const NUMBER_BITS: u32 = 22;
const NUMBER: u32 = (1 << NUMBER_BITS) - 1;

/// What a process is called in the shared memory (`pid`, `creator_pid`): what it calls itself, and the namespace in which it does so. The first process's
/// namespace is 0; those of which there are too many are one.
pub const fn process(namespace: u32, number: u32) -> u32 {
    let most = u32::MAX >> NUMBER_BITS;
    let namespace = if namespace < most { namespace } else { most };
    namespace << NUMBER_BITS | number & NUMBER
}

/// What a process calls itself.
pub const fn number(process: u32) -> u32 {
    process & NUMBER
}

pub const fn namespace(process: u32) -> u32 {
    process >> NUMBER_BITS
}
