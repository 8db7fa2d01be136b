//! The calibration program: makes every sequence of two events that the probes can see, many times, and nothing else. Run by
//! itself it writes how long its loops take without probes; run under `thalweg record` the profile says the same with
//! them, and the difference is what a probe costs (`crates/cli/src/calibration.rs`).
//!
//! ```text
//! loop_leaf -> leaf               entry, exit | exit, entry
//! loop_nest -> outer -> inner     the same, and entry, entry | exit, exit
//! loop_bare                       the loop itself
//! ```
//!
//! Freestanding, so that there is nothing else to be patched.
#![no_std]
#![no_main]

use core::arch::global_asm;

global_asm!(
    r#"
    .text
    .macro FN name
    .globl \name
    .type \name, @function
    .balign 32
\name:
    .endm
    .macro END name
    .size \name, . - \name
    .fill 16, 1, 0xcc
    .endm

    FN leaf
    lea rax, [rdi + 1]
    lea rdx, [rdi + 2]
    ret
    END leaf

    FN inner
    lea rax, [rdi + 1]
    lea rdx, [rdi + 2]
    ret
    END inner

    FN outer
    sub rsp, 8
    call inner
    add rsp, 8
    ret
    END outer

    .macro LOOP name, callee
    FN \name
    push rbx
    mov ebx, 50000
2:  call \callee
    dec ebx
    jnz 2b
    pop rbx
    ret
    END \name
    .endm
    LOOP loop_leaf, leaf
    LOOP loop_nest, outer

    FN loop_bare
    push rbx
    mov ebx, 50000
2:  lea rax, [rdi + 1]
    lea rdx, [rdi + 2]
    dec ebx
    jnz 2b
    pop rbx
    ret
    END loop_bare

    # The quickest of all rounds counts.
    .macro TIME loop, place
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov r13, rax
    call \loop
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub rax, r13
    cmp rax, [rip + best + \place]
    jae 2f
    mov [rip + best + \place], rax
2:
    .endm

    FN _start
    mov r12d, 40
3:  TIME loop_leaf, 0
    TIME loop_nest, 8
    TIME loop_bare, 16
    dec r12d
    jnz 3b
    mov eax, 1                      # write
    mov edi, 1
    lea rsi, [rip + best]
    mov edx, 24
    syscall
    mov eax, 60                     # exit
    xor edi, edi
    syscall
    END _start

    .data
    .balign 8
best:
    .quad -1, -1, -1
"#
);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
