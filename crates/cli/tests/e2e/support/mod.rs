//! What every end-to-end test stands on: targets are compiled here, run with and without thalweg, and what
//! thalweg says about them is put beside what two independent references say.

pub mod build;
pub mod callgrind;
pub mod counts;
pub mod instrumented;
pub mod live;
pub mod many;
pub mod profile;
pub mod scratch;
pub mod screen;
pub mod text;
pub mod thalweg;
pub mod watched;

/// The parts of `all.c`, each with its sources.
pub const PARTS: &[(&str, &[&str])] = &[
    ("recursion", &["recursion.c"]),
    ("tail", &["tail.c", "tail_lib.c"]),
    ("interp", &["interp.c"]),
    ("tiny", &["tiny.c", "tiny_asm.S"]),
    ("abi", &["abi.c"]),
    ("avx", &["avx.c"]),
    ("regs", &["regs.c", "regs_asm.S"]),
    ("jumps", &["jumps.c"]),
    ("callbacks", &["callbacks.c"]),
    ("threads", &["threads.c"]),
];

/// `THALWEG_LONG` asks for the long form of what is done many times over or waits for a quiet machine.
pub fn long() -> bool {
    std::env::var_os("THALWEG_LONG").is_some_and(|value| !value.is_empty() && value != "0")
}

pub fn in_short_or_long(short: u64, in_long: u64) -> u64 {
    if long() { in_long } else { short }
}
