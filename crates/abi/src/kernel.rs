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

/// How often a function has made a system call in contexts that were cut or found no room.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct Cut {
    /// What `cut_key` says; 0: free.
    pub key: u64,
    pub calls: u64,
}

pub const CUT_SIZE: u64 = 16;
/// Of a table at `CUT_SYSTEM_CALLS_OFFSET`. What finds no place within `CUT_PLACES` of its first one is in `Header::lost_system_calls`.
pub const CUTS: u64 = 4096;
pub const CUT_PLACES: u64 = 64;

pub const fn cut_key(function: u32, number: u32) -> u64 {
    (function as u64) << 32 | (number as u64 + 1)
}

/// The function and the system call of a key.
pub const fn of_cut_key(key: u64) -> Option<(u32, u32)> {
    match (key as u32).checked_sub(1) {
        Some(number) => Some(((key >> 32) as u32, number)),
        None => None,
    }
}

/// Where the search for a key begins.
pub const fn cut_place(key: u64) -> u64 {
    (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52
}

const _: () = {
    assert!(core::mem::size_of::<Cut>() as u64 == CUT_SIZE && CUTS == 1 << 12);
    // Where no function is known the place is not free, and the number is known.
    let of_nobody = of_cut_key(cut_key(crate::NO_FUNCTION, 0));
    assert!(matches!(of_nobody, Some((crate::NO_FUNCTION, 0))));
    assert!(of_cut_key(0).is_none());
};
