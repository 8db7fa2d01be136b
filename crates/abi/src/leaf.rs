//! Leaves that are counted at their entry alone. The code that counts is in their stub, since a call of a common probe would cost more than all the rest.
//!
//! ```text
//!   int3                                 never run: by it the address is known to be in a probe
//!   slow: rax and r10 as they were; call tw_leaf_*; nop dword [rax+FUNCTION]; jmp done
//!   the mark                             8 bytes, aligned; the next 8 can be replaced by one store
//!   mov [rsp - 8], rax                   becomes a jump to `done` when nothing may be counted any more
//!   ... whose thread, which frame, is the callee in one of its two places: if not, to `slow`
//!   inc qword ptr [r10 + CALLS]
//!   rax and r10 as they were
//!   done: displaced instructions
//! ```

/// Stands before the code of each leaf in the stubs: the agent finds them by it (limits.rs).
pub const LEAF_MARK: u64 = u64::from_le_bytes(*b"\xcctwleaf\xcc");
/// How long the code behind the mark is.
pub const LEAF_CODE: u64 = 96;
