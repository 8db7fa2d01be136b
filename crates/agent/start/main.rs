//! The start code of a copy made by `thalweg instrument`: it does what a controller does at an attach, from within, before the
//! program's first own instruction. Freestanding, one flat image.
//!
//! ```text
//! tw_start_program   the file's entry        -> join -> the program's own entry
//! tw_start_library   the library's DT_INIT   -> join -> the library's own one
//!
//! join    does a library count here already? then in its region, else begin
//!
//! begin   may this process be counted? -> a file, or a memfd -> map it -> header, tables, the first thread's slot
//!         -> the probes' first words (they return at once until then) -> GS base
//! ```
//!
//! Nothing is said and nothing ends here: whatever fails, what was made is taken back, and the program runs on with
//! probes that return at once. No write to the program's own code or data. What is larger than some words is never moved: the
//! compiler would call a libc for that.
#![no_std]
#![no_main]
#![no_builtins]

mod counting;
mod given;
mod joining;
mod kernel;
mod output;
mod region;

use core::arch::global_asm;
use thalweg_abi::Ahead;

global_asm!(
    ".section .text.tw_head,\"ax\",@progbits",
    // From here to the head of what the copy carries.
    ".globl tw_start_ahead",
    "tw_start_ahead: .quad 0",
    // As the kernel or the loader begins a program: rsp at argc, rdx a function for its end. Where it goes on is told in r11, which has
    // nothing then.
    ".globl tw_start_program",
    ".balign 16",
    "tw_start_program:",
    "endbr64",
    "sub rsp, 8",
    "push rax",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "lea rdi, [rsp + 80]",
    "xor ebp, ebp",
    "call {program}",
    "mov [rsp + 72], rax",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "pop r11",
    "jmp r11",
    // As the loader calls an initialiser: a function with three arguments.
    ".globl tw_start_library",
    ".balign 16",
    "tw_start_library:",
    "endbr64",
    "push rdi",
    "push rsi",
    "push rdx",
    "mov rdi, rsp",
    "call {library}",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "test rax, rax",
    "jz 1f",
    "jmp rax",
    "1: ret",
    ".text",
    program = sym program,
    library = sym library,
);

/// The head, and what the loader has added to all addresses in it.
fn ahead() -> (&'static Ahead, u64) {
    let own: u64;
    // SAFETY: the word was filled when the copy was made; the head is mapped as long as this code is, and constant.
    unsafe {
        core::arch::asm!(
            "lea {0}, [rip + tw_start_ahead]",
            "add {0}, [{0}]",
            out(reg) own,
            options(nostack, readonly)
        );
        let ahead = &*(own as *const Ahead);
        (ahead, own.wrapping_sub(ahead.own))
    }
}

/// # Safety
/// `stack` must be what the kernel has put on the stack of a new program.
unsafe extern "C" fn program(stack: *const u64) -> u64 {
    let (ahead, bias) = ahead();
    // SAFETY: by the caller's promise.
    let given = unsafe { given::of_program(stack) };
    let begun = given.and_then(|given| joining::join(ahead, bias, &given, stack as u64));
    let _ = begun;
    bias.wrapping_add(ahead.original)
}

extern "C" fn library(stack: u64) -> u64 {
    let (ahead, bias) = ahead();
    let _ = given::with_library(|given| joining::join(ahead, bias, given, stack));
    match ahead.original {
        0 => 0,
        original => bias.wrapping_add(original),
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Not reached: nothing here panics, and the linker script refuses the data that panic messages would need.
    loop {}
}
