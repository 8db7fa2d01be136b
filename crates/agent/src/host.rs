//! What stands in for the image on the host, where the agent is a library with tests: its head, which probes and the
//! controller write and read there, and an empty table of probes.

use core::arch::global_asm;

/// Where this package lies, for the build script that makes the image of it.
pub const SOURCE: &str = env!("CARGO_MANIFEST_DIR");

global_asm!(
    ".pushsection .data.tw_head,\"aw\",@progbits",
    ".balign 8",
    ".globl tw_base",
    "tw_base: .quad 0",
    ".globl tw_silent",
    "tw_silent: .quad 0",
    ".globl tw_frozen",
    "tw_frozen: .quad 0",
    ".globl tw_probes",
    "tw_probes: .quad 0",
    ".globl tw_end",
    "tw_end: .quad 0",
    ".popsection",
);
