//! A program under thalweg, seen from inside: read its own figures, name a piece of code, ask for a checkpoint.
//!
//! Beside the way of the data: what the agent has counted goes straight to the program that asks. Where nobody counts each
//! of these is a call of a function that does nothing. thalweg finds these functions by their names, so the program must
//! not be stripped of them. `include/thalweg.h` is the same for C.
//!
//! ```
//! let before = thalweg_self::thread_totals();
//! let sum: u64 = thalweg_self::region!(add_up, (1..=10u64).sum());
//! let after = thalweg_self::thread_totals();
//! assert_eq!(sum, 55);
//! assert!(after.calls >= before.calls);
//! ```
#![no_std]
#![forbid(unsafe_code)]

use core::hint::black_box;

/// All 0 where nobody counts. Times in nanoseconds; what was allocated only with `--metric alloc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// 1: somebody counts.
    pub attached: u64,
    pub calls: u64,
    /// On a processor, in counted functions: of the asking thread up to now, of others up to their last returns.
    pub base_ns: u64,
    pub waited_ns: u64,
    pub alloc_calls: u64,
    pub alloc_bytes: u64,
    pub free_calls: u64,
    pub free_bytes: u64,
    pub live_bytes: u64,
    /// 1: some contexts were too deep to be added up.
    pub partial: u64,
}

/// Of this thread.
pub fn thread_totals() -> Totals {
    let mut totals = Totals::default();
    answer_thread(&mut totals);
    totals
}

/// Of all threads of this process, ended ones included.
pub fn process_totals() -> Totals {
    let mut totals = Totals::default();
    answer_process(&mut totals);
    totals
}

/// `thalweg record` saves what was counted so far, at most once a second, beside its output.
#[inline(never)]
pub extern "C" fn checkpoint() {
    black_box(0u64);
}

// Told apart by what they pass on, or a linker might make them one.
#[inline(never)]
extern "C" fn answer_thread(into: &mut Totals) {
    black_box((into, 1u8));
}

#[inline(never)]
extern "C" fn answer_process(into: &mut Totals) {
    black_box((into, 2u8));
}

/// `region!(parse, code)`: the code, in the profile below a context of that name.
#[macro_export]
macro_rules! region {
    ($name:ident, $code:expr) => {{
        #[inline(never)]
        fn $name<R>(code: impl FnOnce() -> R) -> R {
            let result = code();
            ::core::hint::black_box(0u64);
            result
        }
        $name(|| $code)
    }};
}
