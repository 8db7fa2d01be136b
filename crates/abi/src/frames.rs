//! Shadow stacks: one frame for each activation, and the keys by which the probes know whose exit they see.

/// One activation on a shadow stack.
///
/// `key = sp - 16 + flags`, where `sp` is the address of the activation's return address. The bias makes the
/// two checks of the hot path single compares: a callee's probe runs 8 bytes below its own `sp` (it was called from
/// the stub), so `key - rsp` is at least 0 for a callee deeper in the stack and negative for one at the same place.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
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

/// Fields of Go's `g`, the same in all versions that pass it in r14: the end of its stack, and its thread.
pub const G_STACK_END: usize = 8;
pub const G_MACHINE: usize = 48;
/// Of its `gobuf`: whose it is.
pub const GOBUF_G: usize = 16;
