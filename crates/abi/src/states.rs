//! What the probes of a function do: switched by whoever controls the target, while it runs.
//!
//! ```text
//! timed     every call is counted and timed
//! sampled   every call is counted, one in some sixty is timed
//! counted   every call is counted
//! off       the text is as it was: nothing runs
//! ```
//!
//! The first three are told apart by two bits of the function's number in its entry stub, which is the displacement of a `nop`: the
//! probe reads it as data, so a single byte changes what it does, at any moment and with no thread stopped. An exit sees by its
//! frame (`Frame::start`) whether the call was timed.

use crate::{Frame, Header, NODE_SIZE, WAITS_SIZE, Waits, is_goroutine, waits_offset, waits_place};

/// In the word behind the call of an entry probe: calls are not timed ...
pub const MODE_UNTIMED: u32 = 1 << 31;
/// ... but for one now and then.
pub const MODE_SAMPLED: u32 = 1 << 30;
pub const MODE_FUNCTION: u32 = MODE_SAMPLED - 1;
/// Where the modes are in that word: byte, and bits of it.
pub const MODE_BYTE: u64 = 3;
pub const MODE_BITS: u8 = 0xc0;

/// Of a sampled function's calls one in 1 to this many, by chance, is timed.
pub const SAMPLED_MOST: u64 = 1 << SAMPLED_BITS;
pub const SAMPLED_BITS: u32 = 7;
/// How the numbers are drawn.
pub const SEED_FACTOR: u64 = 6_364_136_223_846_793_005;

pub const PROBE_TIMED: u32 = 0;
pub const PROBE_SAMPLED: u32 = 1;
pub const PROBE_COUNTED: u32 = 2;
pub const PROBE_OFF: u32 = 3;

/// `ProbeState::flags`, where calls are timed: this function's are not, because it is counted at its entry alone.
pub const PROBE_LEAF: u32 = 1;

/// How one function's probes stand. The controller alone writes it, the agent only asks whether it was ever off.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeState {
    /// One of the values above.
    pub state: u32,
    /// How often it was switched off. Activations that began before may have gone unseen since: they are no unwound ones.
    pub offs: u32,
    /// How often its state changed.
    pub changes: u32,
    /// `PROBE_LEAF`, or 0.
    pub flags: u32,
    /// Counter value when its state last changed.
    pub since: u64,
    /// Ticks that it was off in all, before that.
    pub off_ticks: u64,
}

pub const PROBE_STATE_SIZE: u64 = 32;

/// An activation that had lasted for so many nanoseconds when its function was switched off is likely to go on for long: it stays on the shadow
/// stack and keeps its time. A shorter one has returned right after that, unseen.
const LASTING_NS: u64 = 1_000_000;

/// Whether the activation is such a one. `since`: when its function was switched off, on the same clock. One that seems to have begun later is a
/// goroutine's that was suspended then, and came back because it had lasted for as long.
pub const fn lasts(frame: &Frame, since: u64, ticks_per_ns: u64) -> bool {
    let came_back = is_goroutine(frame.key) && frame.start >= since;
    let before = since.saturating_sub(frame.start);
    frame.start != 0 && (came_back || is_lasting(before, ticks_per_ns))
}

/// The same for one that has taken so many ticks.
pub const fn is_lasting(ticks: u64, ticks_per_ns: u64) -> bool {
    ticks as u128 >= (LASTING_NS as u128 * ticks_per_ns as u128) >> 32
}

/// What a quarter of a node's address is added to, to find where its untimed calls are counted: `PrivateSlot::untimed`.
pub const fn untimed_base(shared_start: u64, header: &Header) -> u64 {
    let waits = shared_start + waits_offset(header.nodes_offset, header.nodes_len);
    let field = core::mem::offset_of!(Waits, untimed) as u64;
    (waits + field).wrapping_sub(waits_place(shared_start + header.folded_offset))
}

const _: () = {
    assert!(core::mem::size_of::<ProbeState>() as u64 == PROBE_STATE_SIZE);
    assert!(NODE_SIZE == 4 * WAITS_SIZE);
};
