//! System calls in the trees: one that is counted where it is made is a child of the context that makes it, under a number behind those of
//! all functions, without a time.

/// Of system call 0.
pub const FIRST: u32 = 1 << 28;
/// Stands for every number that is no smaller.
pub const LAST: u32 = 511;

/// The system call that a node counts, if it does.
pub const fn number(function: u32) -> Option<u32> {
    match function.checked_sub(FIRST) {
        Some(number) if number <= LAST => Some(number),
        _ => None,
    }
}
