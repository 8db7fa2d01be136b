//! The hot path: what a stub calls at every entry, exit and tail jump. Hand-written, because a compiler would use
//! registers that the interrupted function still needs.
//!
//! ```text
//! entry stub                        stack when tw_entry_* runs
//!   call tw_entry_*                  sp      -> return address of the probed function
//!   nop dword [rax+FUNCTION]         sp - 8  -> return address into the stub   <- rsp
//!   displaced instructions           sp - 16 .. saved registers, in the red zone that a signal handler leaves alone
//!   jmp back                        (at an entry nothing lives below sp; right before a ret nothing does any more)
//!
//! exit stub: displaced instructions; jmp tw_return_*   (the ret is in the probe: rsp == sp)
//!            displaced instructions; call tw_exit_*; ret 8 | jmp thunk | jmp unprobed
//! tail stub: call tw_tail_mark; jmp probed             or, the target stored at [sp - 24]:
//!            call tw_tail_unknown; jmp *...
//! gate:      call tw_gate; nop dword [rax+KIND and FUNCTION]; then an entry stub, if the function is counted
//! Go:        the same, with r14 for whose goroutine it is and keys relative to the end of its stack; and where a goroutine
//!            leaves its thread: call tw_go_leave_*; where it gets one: call tw_go_arrive
//! alloc:     an entry stub's call, then call tw_alloc; nop dword [rax+KIND]; exits by the variants with an `a`
//! leaf:      counts by itself (abi/leaf.rs); where that is not the plain case: call tw_leaf_*; nop dword [rax+FUNCTION]
//! kernel:    displaced instructions; call tw_kernel; nop dword [rax+FUNCTION]; jmp to the `syscall` instruction, which stays: one more of the number in eax
//! watched:   the same with call tw_watch, where the number may be that of a call which no probe would survive (limits.rs)
//! elsewhere: displaced instructions; call tw_switch; nop dword [rax+KIND and FUNCTION]; ret | jmp *...
//! ```
//!
//! Every register is preserved; the flags too in the variants with an `f`. `t` reads the clock, unless two bits of the function's
//! number say otherwise (`shm::MODE_UNTIMED`; not with an `r`), `c` only counts, `l` is for functions that jump back to their own
//! entry. Those with an `a` end what an allocator began. The variants with an `s` tell contexts apart by call site: the return
//! address is part of what a callee is looked for by. A digit 0 to 7 is the callee's first place: what stubs call are these copies
//! of the plain entries. Those with an `x` take the place of all with a `t` when the clock may not be
//! read any more. Whatever is not the plain case goes to the slow path in Rust.
//!
//! limits.rs rewrites the probes' first instruction, which is one of five bytes in an aligned word, or its first byte: a probe that
//! begins with another instruction must be as easy to replace.
//!
//! The variants with an `r` are for recordings of single calls: an entry looks up whether a rule wants to hear of the function, with these arguments or
//! of its end, saves what it is called with where only the end will tell, and notes the counter beside the frame; an exit compares how long the call took with the least that any rule asks for, and its results
//! where the entry has marked the frame for that.
//!
//! Order of the stores at an entry: a signal handler may run probes between any two instructions. The bump comes first and the key
//! last. Each exit leaves a key of 0, so until then a handler finds a frame that is not there yet, and takes the slow path.
//!
//! `top` is loaded by an address with a register in it, which is 0: without one the processor does not pass on to a load what was stored
//! right before (docs/design/engine.md).

use core::arch::global_asm;
use thalweg_abi as shm;
use thalweg_abi::dynamic;

/// From the region's start.
const DYNAMIC: u64 = shm::PRIVATE_SIZE + shm::DYNAMIC_OFFSET;
const PYTHON: u64 = DYNAMIC + core::mem::offset_of!(dynamic::DynamicHead, python) as u64;

global_asm!(
    include_str!("probes/calls.s"),
    include_str!("probes/places.s"),
    include_str!("probes/rules.s"),
    include_str!("probes/dynamic.s"),
    include_str!("probes/entry.s"),
    include_str!("probes/exit.s"),
    include_str!("probes/others.s"),
    include_str!("probes/java.s"),
    OWNER = const shm::PRIVATE_OWNER,
    TOP = const shm::PRIVATE_TOP,
    LIMIT = const shm::PRIVATE_LIMIT,
    TABLE = const shm::PRIVATE_TABLE,
    MASK = const shm::PRIVATE_TABLE_MASK,
    NODES = const shm::PRIVATE_NODES,
    LAST = const shm::SHARED_FROM_GS + shm::SHARED_LAST,
    OFF = const shm::SHARED_FROM_GS + shm::SHARED_OFF,
    GAP = const shm::SHARED_FROM_GS + shm::SHARED_GAP,
    SLOW = const shm::SHARED_FROM_GS + shm::SHARED_SLOW,
    THRESHOLD = const shm::SHARED_FROM_GS + shm::record::STATE_OFFSET + shm::record::STATE_THRESHOLD,
    SIDE_ENTRY = const shm::record::SIDE_ENTRY,
    SIDE_SLOW = const shm::record::SIDE_SLOW,
    SIDE_WATCH = const shm::record::SIDE_WATCH,
    RULES = const shm::PRIVATE_RULES,
    ASK = const shm::rules::ASK,
    FILTERS = const shm::rules::FILTERS * shm::rules::FILTER_SIZE,
    FILTER_SHIFT = const shm::rules::FILTER_SIZE.trailing_zeros(),
    WATCH = const shm::rules::WATCH,
    SAVE = const shm::rules::SAVE,
    WATCHED = const shm::record::WATCHED,
    ARGUMENTS_SAVED = const shm::record::ARGUMENTS_SAVED,
    SAVED = const shm::SHARED_FROM_GS + shm::record::STATE_OFFSET + shm::record::STATE_SAVED,
    SAVED_LIMIT = const shm::SHARED_FROM_GS + shm::record::STATE_OFFSET + shm::record::STATE_SAVED_LIMIT,
    FIRST_FILTER = const shm::rules::FIRST_FILTER,
    FILTER_PLACE = const core::mem::offset_of!(shm::rules::Filter, place),
    FILTER_KIND = const core::mem::offset_of!(shm::rules::Filter, kind),
    FILTER_MASK = const core::mem::offset_of!(shm::rules::Filter, mask),
    FILTER_MET = const core::mem::offset_of!(shm::rules::Filter, met),
    FILTER_OTHER = const core::mem::offset_of!(shm::rules::Filter, other),
    FLOAT = const shm::rules::FILTER_FLOAT,
    TWO = const shm::rules::FILTER_TWO,
    NARROW = const shm::rules::FILTER_NARROW,
    SIGNED = const shm::rules::FILTER_SIGNED,
    EQUAL = const shm::rules::FILTER_EQUAL,
    NAMES_EXIT = const shm::rules::NAMES_EXIT,
    FLOATS_SAVED = const shm::record::FLOATS_SAVED,
    NEEDS_TIME = const shm::rules::FILTER_NEEDS_TIME,
    NEEDS_FLOATS = const shm::rules::FILTER_NEEDS_FLOATS,
    NEEDS_ERRNO = const shm::rules::FILTER_NEEDS_ERRNO,
    RULES_TABLE = const shm::rules::TABLE_OFFSET,
    ERRNO_OFFSET = const core::mem::offset_of!(shm::rules::Head, errno_offset),
    FILTER_CUT = const core::mem::offset_of!(shm::rules::Filter, cut),
    FILTER_LOW = const core::mem::offset_of!(shm::rules::Filter, low),
    FILTER_SPAN = const core::mem::offset_of!(shm::rules::Filter, span),
    GOROUTINE = const shm::PRIVATE_GOROUTINE,
    GO_MACHINE = const shm::PRIVATE_GO_MACHINE,
    GO_THREAD = const shm::PRIVATE_GO_THREAD,
    GO_STACK = const shm::PRIVATE_GO_STACK,
    GO_BUSY = const shm::PRIVATE_GO_BUSY,
    STACK_END = const shm::G_STACK_END,
    MACHINE = const shm::G_MACHINE,
    GOBUF_G = const shm::GOBUF_G,
    CLAIM_LOCK = const shm::CLAIM_LOCK,
    CLAIM_STACK_END = const shm::CLAIM_STACK_END,
    SCHED_YIELD = const shm::calls::SCHED_YIELD,
    PRCTL = const shm::calls::PRCTL,
    ARCH_PRCTL = const shm::calls::ARCH_PRCTL,
    SECCOMP = const shm::calls::SECCOMP,
    PTRACE = const shm::calls::PTRACE,
    CLONE = const shm::calls::CLONE,
    CLONE3 = const shm::calls::CLONE3,
    WATCHED_CALL = const (shm::GATE_KIND_SYSCALL << shm::GATE_KIND_SHIFT | shm::GATE_NO_FUNCTION) as i32,
    WINDOW = const shm::WINDOW,
    KEY = const shm::FRAME_KEY,
    FNODE = const shm::FRAME_NODE,
    START = const shm::FRAME_START,
    CHILD = const shm::FRAME_CHILD,
    CALLS = const shm::NODE_CALLS,
    CUM = const shm::NODE_CUM,
    BASE = const shm::NODE_BASE,
    MIN = const shm::NODE_MIN,
    MAX = const shm::NODE_MAX,
    FUNCTION = const shm::NODE_FUNCTION,
    EXTENSION = const shm::NODE_EXTENSION,
    CHILDREN = const shm::NODE_CHILDREN,
    SITE = const shm::NODE_SITE,
    SITE_SLOT = const shm::SITE_SLOT,
    SITE_TURN = const shm::SITE_TURN,
    SITE_FACTOR = const shm::SITE_FACTOR as i32,
    JUMPED_FROM = const shm::PRIVATE_JUMPED_FROM,
    JUMPED_AT = const shm::PRIVATE_JUMPED_AT,
    ALLOC_AT = const shm::PRIVATE_ALLOC_AT,
    ALLOC_KIND = const shm::PRIVATE_ALLOC_KIND,
    FREE = const shm::alloc::kind::FREE,
    NO_FUNCTION = const shm::NO_FUNCTION as i32,
    KERNEL_FIRST = const shm::kernel::FIRST,
    KERNEL_LAST = const shm::kernel::LAST,
    UNTIMED_BIT = const shm::MODE_UNTIMED.trailing_zeros(),
    SAMPLED_BIT = const shm::MODE_SAMPLED.trailing_zeros(),
    MODE_FUNCTION = const shm::MODE_FUNCTION,
    MODE_AT = const 3 + shm::MODE_BYTE,
    SAMPLED_BYTE = const shm::MODE_SAMPLED >> 24,
    UNTIMED = const shm::PRIVATE_UNTIMED,
    COUNTDOWN = const shm::PRIVATE_COUNTDOWN,
    SEED = const shm::PRIVATE_SEED,
    SEED_FACTOR = const shm::SEED_FACTOR,
    SEED_SHIFT = const 64 - shm::SAMPLED_BITS,
    MODES = const !shm::MODE_FUNCTION as i32,
    PY_FLOOR = const shm::PRIVATE_PYTHON_FLOOR,
    DYNAMIC_FACTOR = const dynamic::DYNAMIC_FACTOR,
    SET_BITS = const dynamic::SET_BITS,
    SET_SHIFT = const dynamic::SET_SIZE.trailing_zeros(),
    DYNAMIC_PLACES = const DYNAMIC + dynamic::DYNAMIC_PLACES,
    PY_INTERPRETER = const PYTHON + core::mem::offset_of!(dynamic::Python, interpreter) as u64,
    PY_EVAL = const PYTHON + core::mem::offset_of!(dynamic::Python, eval) as u64,
    PY_FRAME_CODE = const PYTHON + core::mem::offset_of!(dynamic::Python, frame_code) as u64,
    PY_NAME = const PYTHON + core::mem::offset_of!(dynamic::Python, name) as u64,
    PY_ASCII = const PYTHON + core::mem::offset_of!(dynamic::Python, ascii) as u64,
    PY_FILE = const PYTHON + core::mem::offset_of!(dynamic::Python, file) as u64,
    PY_LINE = const PYTHON + core::mem::offset_of!(dynamic::Python, line) as u64,
);
