//! The contract between the agent in the target and the controller outside: every structure in memory that both sides
//! touch, its offsets, and the layout of the region. `no_std`, no dependencies, versioned; size and offset asserts at
//! the end keep the hand-written assembler of the probes honest.
//!
//! ```text
//! base            PRIVATE_SIZE                                       shared_size
//! |-- private ----|-- shared memory (a memfd) --------------------------------|
//! | slot page x N, stack | header | gates | loaded | slot x N | ended | births | table | blobs | frames x N | growth | folded | nodes | parked | waits | states | rules | alloc |
//! ```
//!
//! A thread's GS base points to its own private page, which is wiped in a fork child: there the first probe finds
//! `owner == 0` and takes the slow path. Its shared page lies at the constant distance `SHARED_FROM_GS`, its shadow
//! stack at an offset that `top` carries (relative to the GS base, so that a wiped `top` of 0 reads the wiped page
//! itself, which no stack pointer matches).
#![no_std]
#![forbid(unsafe_code)]

pub mod alloc;
pub mod kernel;
mod prune;
pub mod record;
pub mod rules;
mod states;
pub mod totals;

pub use prune::*;
pub use states::*;

/// "thalweg" and a format digit; the first word of the shared memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"thalweg1");
/// Of this layout and of the meaning of every field. Both sides must agree on it.
pub const VERSION: u32 = 12;
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
pub const BIRTHS_OFFSET: u64 = ENDED_OFFSET + (ENDED_LIMIT * ENDED_SIZE).next_multiple_of(PAGE);
pub const TABLE_OFFSET: u64 = BIRTHS_OFFSET + BIRTHS * BIRTH_SIZE;

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
pub const BIRTHS: u64 = 4096;
pub const BIRTH_SIZE: u64 = 64;

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

/// What a thread has at its GS base; zeroed in a fork child.
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
}

/// What an allocator was asked for that has not returned yet.
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

/// Fields of Go's `g`, the same in all versions that pass it in r14: the end of its stack, and its thread.
pub const G_STACK_END: usize = 8;
pub const G_MACHINE: usize = 48;
/// Of its `gobuf`: whose it is.
pub const GOBUF_G: usize = 16;

/// The part of a thread's account that outlives the process. When the thread has ended, a new one may take the slot
/// over: the account then goes to the table of ended ones, or (where that or the arena is full) is carried on.
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
    /// Processes whose numbers mean the same to each other, because they are in one PID namespace.
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
    /// Address of the frame that stands for the stack of the coroutine that the thread is in; 0 on its own stack.
    pub base: u64,
    /// 1 while the slow path follows the thread to another stack.
    pub switching: u32,
    /// How many of `resumed_by` there are.
    pub resumers: u32,
    /// Coroutines that have resumed one another, down to the one that runs.
    pub resumed_by: [Resumer; RESUMERS],
    pub sweep: Sweeping,
}

/// A coroutine that waits for the one that it has resumed.
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
pub const SLOT_HANDED_ON: u32 = 8;

/// The part of `SharedSlot::state` that is not a generation.
pub const SLOT_STATE: u64 = 3;
/// A thread has it, which may have ended.
pub const SLOT_TAKEN: u64 = 1;
/// A thread is just taking it over from one that has ended.
pub const SLOT_CHANGING: u64 = 2;

/// What a creator notes before it makes a thread.
#[repr(C)]
pub struct Birth {
    /// The thread pointer that the child will have; 0: free, 1: being written or read.
    pub owner: u64,
    pub ticks: u64,
    pub pid: u32,
    pub tid: u32,
    /// Its functions, innermost first.
    pub functions: [u32; CREATORS],
    pub reserved: u64,
}

pub const BIRTH_BUSY: u64 = 1;

/// Where the note for a child with this thread pointer is looked for: there and in the `BIRTH_PLACES - 1` that follow.
pub const fn birth_place(owner: u64) -> u64 {
    // Thread pointers are far apart, often by a round number of pages.
    (owner >> 6 ^ owner >> 12 ^ owner >> 20) % BIRTHS
}

pub const BIRTH_PLACES: u64 = 4;

/// The account of a thread that has ended and whose slot another one has.
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

/// One activation on a shadow stack.
///
/// `key = sp - 16 + flags`, where `sp` is the address of the activation's return address. The bias makes the
/// two checks of the hot path single compares: a callee's probe runs 8 bytes below its own `sp` (it was called from
/// the stub), so `key - rsp` is at least 0 for a callee deeper in the stack and negative for one at the same place.
#[repr(C)]
pub struct Frame {
    /// 0 when the frame is not in use.
    pub key: u64,
    /// Address of the tree node.
    pub node: u64,
    /// 0: the call is not timed.
    pub start: u64,
    /// Time spent in callees so far.
    pub child: u64,
}

pub const FRAME_KEY: usize = 0;
pub const FRAME_NODE: usize = 8;
pub const FRAME_START: usize = 16;
pub const FRAME_CHILD: usize = 24;

pub const KEY_BIAS: u64 = 16;
/// The activation has jumped to a probed function, whose entry comes next.
pub const KEY_PENDING: u64 = 1;
/// The activation was reached by a tail jump: it returns together with the frame below it.
pub const KEY_TAIL: u64 = 2;
/// Its exit is no plain one: the node is one of the process-wide folded ones, to be updated atomically, or the end of the call is
/// recorded, or both.
pub const KEY_CLOSER: u64 = 4;
pub const KEY_FLAGS: u64 = 7;

/// Flags of the sentinel below a thread's first frame. Its place may be that of a real activation that the shadow stack
/// does not know (a stack too deep to be unwound at attach): with this mark no exit and no tail jump ever matches it.
pub const KEY_SENTINEL: u64 = KEY_CLOSER;

/// The `key` of an activation whose return address is at `sp`.
pub const fn frame_key(sp: u64, flags: u64) -> u64 {
    sp.wrapping_sub(KEY_BIAS).wrapping_add(flags)
}

/// Where an activation of a goroutine is: how far from the end of its stack, which is moved when it grows. Such places, and
/// the keys made of them, are negative, as no address of a program is.
pub const fn goroutine_sp(sp: u64, stack_end: u64) -> u64 {
    sp.wrapping_sub(stack_end)
}

pub const fn is_goroutine(key: u64) -> bool {
    (key as i64) < 0
}

/// The key of the sentinel of a thread that runs goroutines: the end of any stack.
pub const GO_SENTINEL: u64 = frame_key(0, KEY_SENTINEL);

/// The inverse of `frame_key`.
pub const fn frame_sp(key: u64) -> u64 {
    (key & !KEY_FLAGS).wrapping_add(KEY_BIAS)
}

/// One context: a function reached by one path of calls. Two cache lines: figures, then where its callees are.
#[repr(C)]
pub struct Node {
    pub calls: u64,
    pub cum: u64,
    pub base: u64,
    /// Signed: a signal in the middle of a probe can make one activation's self time come out a little below zero.
    pub min: i64,
    pub max: i64,
    pub function: u32,
    pub flags: u32,
    /// How often it was left without a return: by an exception, longjmp or cancellation. Stays at its maximum.
    pub unwound: u32,
    /// Links are numbers of nodes in the arena, plus one; 0: none.
    pub first_child: u32,
    pub sibling: u32,
    /// Table of all children, `EXTENSION_SLOTS` words, for nodes with many.
    pub extension: u32,
    /// Addresses, in one of two places by function number; what was pushed out is in the extension and the sibling list.
    /// Where call sites are told apart, the last is no place but the node's own site: the return address of its
    /// calls, or for tail jumps the place in the stub that they are made from; 0: unknown.
    pub children: [u64; CHILD_SLOTS as usize],
}

pub const NODE_CALLS: usize = 0;
pub const NODE_CUM: usize = 8;
pub const NODE_BASE: usize = 16;
pub const NODE_MIN: usize = 24;
pub const NODE_MAX: usize = 32;
pub const NODE_FUNCTION: usize = 40;
pub const NODE_EXTENSION: usize = 60;
pub const NODE_CHILDREN: usize = 64;
pub const NODE_SITE: usize = NODE_CHILDREN + SITE_SLOT * 8;
pub const SITE_SLOT: usize = CHILD_SLOTS as usize - 1;

/// `Node::flags`: on the stack when thalweg attached.
pub const NODE_AT_ATTACH: u32 = 1;
/// `Node::flags`: memory ran out while children were entered in the extension; the sibling list has them all.
pub const NODE_PARTLY_EXTENDED: u32 = 2;
/// `Node::flags`: was running when its thread ended.
pub const NODE_OPEN_AT_END: u32 = 4;
/// `Node::flags`: some of its time was waited: only then are there waits beside it.
pub const NODE_WAITED: u32 = 8;
/// `Node::flags`: while its thread cuts contexts: it is active.
pub const NODE_HELD: u32 = 16;
/// `Node::flags`: it has allocated or freed: only then are there figures of that.
pub const NODE_ALLOCATED: u32 = 32;
/// `Node::flags`: from this bit on, how often a child was there but in none of its places.
pub const NODE_MISSES_SHIFT: u32 = 8;
/// That often, or that many children, and the node gets its extension.
pub const MISSES_FOR_EXTENSION: u32 = 16;

/// In the word behind the call of a switch probe: the function's number, and what kind of exit it is.
pub const SWITCH_FUNCTION: u32 = (1 << 28) - 1;
/// It leaves by a jump, the return address already popped.
pub const SWITCH_JUMPS: u32 = 1 << 31;
/// It goes on further up the same stack.
pub const SWITCH_UNWINDS: u32 = 1 << 30;

/// One activation of a coroutine that nobody runs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ParkedFrame {
    pub key: u64,
    /// Time spent in itself so far.
    pub own: u64,
    /// The call site, where sites are told apart.
    pub site: u64,
    pub function: u32,
    /// 1: the call is not timed.
    pub untimed: u32,
}

/// How many activations a block holds.
pub const PARKED_FRAMES: u64 = 30;

/// Part of a parked stack: the outermost activations are in its first block. All but `next`, `count` and `frames` is of
/// the first block only.
#[repr(C)]
pub struct ParkedBlock {
    /// Where the stack was left, in which process and when.
    pub sp: u64,
    pub parked_at: u64,
    /// Sum of `own`.
    pub total: u64,
    pub pid: u32,
    /// Number of the next block plus one, in a stack or among the free ones.
    pub next: u32,
    pub count: u32,
    pub reserved: u32,
    /// Innermost first.
    pub frames: [ParkedFrame; PARKED_FRAMES as usize],
}

pub const PARKED_BLOCK_SIZE: u64 = 1024;
pub const PARKED_BLOCKS: u64 = 1 << 16;
/// A word of the index is `(sp >> 3) << PARKED_NUMBER_BITS`, and the number of the first block plus one.
pub const PARKED_NUMBER_BITS: u32 = 20;
/// Words of the index.
pub const PARKED_INDEX: u64 = 1 << 17;
/// Offsets in the store, which starts with the list of free blocks and how many were ever used.
pub const PARKED_INDEX_OFFSET: u64 = PAGE;
pub const PARKED_BLOCKS_OFFSET: u64 = PARKED_INDEX_OFFSET + PARKED_INDEX * 8;
/// The store lies behind the nodes. Only what was used of it exists.
pub const PARKED_SIZE: u64 = PARKED_BLOCKS_OFFSET + PARKED_BLOCKS * PARKED_BLOCK_SIZE;

/// What a context has waited, beside its node: only pages of contexts that did wait exist. Ticks off the processor.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub ticks: u64,
    /// Part of `ticks`: for a terminal's input.
    pub terminal: u64,
    pub times: u64,
    /// Of the context's calls, those that were counted without a clock.
    pub untimed: u64,
}

pub const WAITS_SIZE: u64 = 32;

/// Where the waits of the node at `node` lie behind the start of the waits; both count from the first folded node on.
pub const fn waits_place(node: u64) -> u64 {
    node / NODE_SIZE * WAITS_SIZE
}

pub const MAX_CODE_REGIONS: usize = 128;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CodeRegion {
    pub start: u64,
    /// 0: not in use.
    pub len: u64,
}

pub const MAX_GATES: usize = 64;

/// One thread that waits for the controller at a gated function.
///
/// The low two bits of `word` are a `GATE_` state, the others count how often the entry was taken, so that nobody takes
/// a late answer for his own. A waiter goes on as soon as `word` is not what it posted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// The futex word.
    pub word: u32,
    /// One of the `GATE_KIND_` values.
    pub kind: u32,
    pub pid: u32,
    pub tid: u32,
    /// Its number, `GATE_NO_FUNCTION` where it is not counted.
    pub function: u32,
    pub reserved: u32,
    /// rdi, rsi, rdx, rcx, r8, r9 at the function's entry.
    pub args: [u64; 6],
    /// Address of its return address.
    pub sp: u64,
}

pub const GATE_SIZE: u64 = 80;
pub const GATE_FREE: u32 = 0;
/// Being filled.
pub const GATE_TAKEN: u32 = 1;
pub const GATE_POSTED: u32 = 2;
pub const GATE_SERVED: u32 = 3;
pub const GATE_STATES: u32 = 3;
/// What is added to `word` for each new holder.
pub const GATE_TURN: u32 = 4;

/// The loader has changed its list of objects, or is about to (`_dl_debug_state`).
pub const GATE_KIND_LINK_MAP: u32 = 1;
/// About to become another program.
pub const GATE_KIND_EXEC: u32 = 2;
pub const GATE_KIND_CHECKPOINT: u32 = 3;
/// About to make a thread. Nobody is waited for: the agent notes who does.
pub const GATE_KIND_CLONE: u32 = 4;
pub const GATE_KIND_CLONE3: u32 = 5;
/// A fork child: with its slot, where children are counted; after `STRAY_EVENTS` events, where they are not.
pub const GATE_KIND_BIRTH: u32 = 6;
/// As `GATE_KIND_EXEC`, with the program given by a directory and a path, or by a descriptor.
pub const GATE_KIND_EXEC_AT: u32 = 7;
pub const GATE_KIND_EXEC_FILE: u32 = 8;
/// `prctl` and `syscall`: the thread may be about to confine itself to a few system calls. Nobody is waited for.
pub const GATE_KIND_PRCTL: u32 = 9;
pub const GATE_KIND_SYSCALL: u32 = 10;

/// A stub tells its gate kind and function in one word.
pub const GATE_KIND_SHIFT: u32 = 28;
pub const GATE_NO_FUNCTION: u32 = (1 << GATE_KIND_SHIFT) - 1;

/// How long a thread waits at a stretch, and how many such waits without a heartbeat tell it that nobody serves.
pub const GATE_WAIT_NS: u64 = 100_000_000;
pub const GATE_PATIENCE: u32 = 20;
/// After so many it goes on in any case: a controller may live and yet hang.
pub const GATE_LONGEST: u32 = 300;
/// `Header::gate_server` once a thread has waited in vain: nobody waits until the controller is back.
pub const GATE_DESERTED: u32 = u32::MAX;

/// System calls that the agent makes. A process whose seccomp filters forbid one of `ALL` is left alone.
pub mod calls {
    pub const RT_SIGPROCMASK: u64 = 14;
    /// Only in Go code, whose runtime makes it as well.
    pub const SCHED_YIELD: u64 = 24;
    pub const SIG_SETMASK: u64 = 2;
    /// As a first argument of `RT_SIGPROCMASK` refused, but only after the kernel has read the set: so a sweep asks whether memory can be
    /// read. Can be done without: where a filter forbids it, contexts are not cut but folded.
    pub const NO_SIG_PURPOSE: u64 = 99;
    pub const GETPID: u64 = 39;
    pub const GETPPID: u64 = 110;
    pub const PRCTL: u64 = 157;
    pub const PR_GET_NAME: u64 = 16;
    /// Only where a program may not set its GS base by itself.
    pub const ARCH_PRCTL: u64 = 158;
    pub const ARCH_SET_GS: u64 = 0x1001;
    pub const ARCH_GET_GS: u64 = 0x1004;
    pub const GETTID: u64 = 186;
    pub const FUTEX: u64 = 202;
    pub const TGKILL: u64 = 234;

    /// Can be done without: where a filter forbids it, waiting counts as working.
    pub const CLOCK_GETTIME: u64 = 228;
    pub const CLOCK_THREAD_CPUTIME_ID: u64 = 3;

    /// Can be done without: where a filter forbids it, rules that follow pointers are refused.
    pub const PROCESS_VM_READV: u64 = 310;

    /// Number and first argument of those that cannot.
    pub const ALL: [(u64, u64); 8] = [
        (RT_SIGPROCMASK, SIG_SETMASK),
        (GETPID, 0),
        (GETPPID, 0),
        (PRCTL, PR_GET_NAME),
        (ARCH_PRCTL, ARCH_SET_GS),
        (GETTID, 0),
        (FUTEX, 0),
        (TGKILL, 0),
    ];
}

pub const MAX_LOADED: usize = 4096;
pub const LOADED_SIZE: u64 = 64;

/// A module that came after attaching: what it adds to the catalog and to the ledger. Blobs lie in the growth area.
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
    /// With `HEADER_ALLOC`: see `alloc`.
    pub alloc_offset: u64,
    /// A `ProbeState` for each function.
    pub states_offset: u64,
    /// 1: somebody detaches, or has begun to: no text is patched any more.
    pub leaving: u32,
    /// The process that keeps a budget while nobody records; 0: none.
    pub keeper: u32,
    pub prune: Pruning,
    /// System calls that were counted in contexts for which there was no room, or that were cut.
    pub lost_system_calls: u64,
}

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
    pub shared_size: u64,
}

/// Room for what is loaded later. All of it is address space that is filled only when it is needed.
pub const GROWTH_LEN: u64 = 1 << 30;
pub const GROWTH_FUNCTIONS: u64 = 2 << 20;
/// Of these the table of probed entries has room for this many at least: it is touched all over.
pub const GROWTH_TABLE: u64 = 32 << 10;

impl Layout {
    pub fn new(functions: u64, catalog_len: u64, ledger_len: u64, node_bytes: u64) -> Layout {
        let page_up = |n: u64| (n + PAGE - 1) & !(PAGE - 1);
        let table_entries = ((functions + GROWTH_TABLE) * 2).next_power_of_two();
        let functions_limit = functions + GROWTH_FUNCTIONS;
        let catalog_offset = TABLE_OFFSET + table_entries * 8;
        let ledger_offset = page_up(catalog_offset + catalog_len);
        let frames_offset = page_up(ledger_offset + ledger_len);
        let growth_offset = frames_offset + SLOTS * FRAMES_STRIDE;
        let folded_offset = growth_offset + GROWTH_LEN;
        let nodes_offset = page_up(folded_offset + functions_limit * NODE_SIZE);
        let nodes_len = page_up(node_bytes);
        let waits_offset = waits_offset(nodes_offset, nodes_len);
        let states_offset = page_up(waits_offset + waits_place(waits_offset - folded_offset));
        let rules_offset = page_up(states_offset + functions_limit * PROBE_STATE_SIZE);
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
            shared_size: page_up(rules_offset + rules::len(functions_limit)),
        }
    }
}

/// Where the waits of all contexts begin.
pub const fn waits_offset(nodes_offset: u64, nodes_len: u64) -> u64 {
    nodes_offset + nodes_len + PARKED_SIZE
}

/// The two places of a child among its parent's `children`, by function number.
pub const fn child_places(function: u32) -> [usize; 2] {
    [
        (function as u64 % CHILD_SLOTS) as usize,
        ((function >> 3) as u64 % CHILD_SLOTS) as usize,
    ]
}

pub const SITE_FACTOR: u32 = 0x9e37_79b1;
pub const SITE_TURN: u32 = 20;

/// With `HEADER_SITES`: what a child is filed under. The probe's assembler does the same.
pub const fn site_hash(function: u32, site: u64) -> u32 {
    function
        .rotate_left(SITE_TURN)
        .wrapping_add(site as u32)
        .wrapping_mul(SITE_FACTOR)
}

/// With `HEADER_SITES`: the two places of a child, by its hash.
pub const fn site_places(hash: u32) -> [usize; 2] {
    [
        ((hash as u64 * SITE_SLOT as u64) >> 32) as usize,
        ((hash.rotate_left(16) as u64 * SITE_SLOT as u64) >> 32) as usize,
    ]
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
    assert!(size_of::<ParkedBlock>() as u64 <= PARKED_BLOCK_SIZE);
    assert!(size_of::<Birth>() as u64 == BIRTH_SIZE && (BIRTHS * BIRTH_SIZE).is_multiple_of(PAGE));
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
