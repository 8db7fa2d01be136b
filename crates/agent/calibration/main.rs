//! The calibration program: makes every sequence of two events that the probes can see, many times, between pieces of work of several
//! kinds; then calls functions that are too many for a cache, and one that has just left all of them. Run by itself it writes how
//! long all that takes without probes; run under `thalweg record` the profile says the same with them, and the difference is what
//! a probe costs (`crates/cli/src/calibration.rs`).
//!
//! ```text
//! leaves_N -> leaf_N                 entry, exit | exit, entry
//! nests_N -> outer_N -> inner_N      the same, and entry, entry | exit, exit
//! bare_N                             the loop and a leaf's work, without a call
//! wide_N -> N of many_*              each once, in an order that nothing foresees
//! cold -> sweep, chilled             a call when nothing of it is in a cache near by
//! ```
//!
//! The work is of the kind that compiled code does: loads, stores, sums, comparisons and branches, several instructions at a time, none
//! to many; and, as N = 4, a chain in which each instruction waits for the one before. It stands on both sides of each call,
//! because what the processor does beside a probe's reading of the clock depends on it.
//!
//! With an argument the first two go on for some tenths of a second, so that samples tell how long each is seen outside of probes.
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
    .balign 64
\name:
    .endm
    .macro END name
    .size \name, . - \name
    .fill 16, 1, 0xcc
    .endm

    # Pieces of ten instructions, and links of a chain.
    .macro WORK pieces, links, to
    .rept \pieces
    mov rax, [rsi + \to]
    mov rcx, [rsi + \to + 16]
    add rax, rdi
    cmp rax, rcx
    je 9f
    lea rdx, [rax + rcx * 2]
    xor rcx, rdi
    mov [rsi + \to + 32], rdx
    test edx, edx
    mov [rsi + \to + 40], rcx
    .endr
    .rept \links
    imul r8, r8, 31
    .endr
9:
    .endm

    .macro KIND n, pieces, links
    FN leaf_\n
    lea rax, [rdi + 1]
    lea rdx, [rdi + 2]
    WORK \pieces, \links, 0
    ret
    END leaf_\n

    FN inner_\n
    lea rax, [rdi + 1]
    lea rdx, [rdi + 2]
    WORK \pieces, \links, 0
    ret
    END inner_\n

    FN outer_\n
    sub rsp, 8
    WORK \pieces, \links, 64
    call inner_\n
    WORK \pieces, \links, 64
    add rsp, 8
    ret
    END outer_\n

    FN leaves_\n
    push rbx
    push r14
    lea rsi, [rip + cells]
    mov edi, 1                      # so that no branch is taken
    mov ebx, 20000
2:  WORK \pieces, \links, 128
    call leaf_\n
    dec ebx
    jnz 2b
    pop r14
    pop rbx
    ret
    END leaves_\n

    FN nests_\n
    push rbx
    push r14
    lea rsi, [rip + cells]
    mov edi, 1
    mov ebx, 20000
2:  WORK \pieces, \links, 128
    call outer_\n
    dec ebx
    jnz 2b
    pop r14
    pop rbx
    ret
    END nests_\n

    FN bare_\n
    push rbx
    push r14
    lea rsi, [rip + cells]
    mov edi, 1
    mov ebx, 20000
2:  WORK \pieces, \links, 128
    lea rax, [rdi + 1]
    lea rdx, [rdi + 2]
    WORK \pieces, \links, 0
    dec ebx
    jnz 2b
    pop r14
    pop rbx
    ret
    END bare_\n
    .endm
    KIND 0, 0, 0
    KIND 1, 1, 0
    KIND 2, 4, 0
    KIND 3, 16, 0
    KIND 4, 0, 4

    # 1024 functions of 32 bytes.
    .macro ONE
    .type many_\@, @function
    .balign 32
many_\@:
    mov rax, [rip + cells]
    add rax, rdi
    lea rdx, [rax + rdi]
    lea rcx, [rdi + 3]
    ret
    .size many_\@, . - many_\@
    .endm
    .balign 64
many:
    .rept 1024
    ONE
    .endr

    # In their order first, when edi is not 0, so that memory is given to their contexts in that order; then in another.
    .macro WIDE name, number
    FN \name
    push rbx
    test edi, edi
    jz 2f
    .set at, 0
    .rept \number
    call many + at * 32
    .set at, at + 1
    .endr
2:
    .set at, 0
    .rept \number
    call many + ((at * 389) & (\number - 1)) * 32
    .set at, at + 1
    .endr
    pop rbx
    ret
    END \name
    .endm
    WIDE wide_256, 256
    WIDE wide_512, 512
    WIDE wide_1024, 1024

    # Most of what the last cache holds.
    FN sweep
    lea rsi, [rip + field]
    mov ecx, 16 << 20
2:  sub ecx, 64
    add dword ptr [rsi + rcx], 1
    test ecx, ecx
    jnz 2b
    ret
    END sweep

    FN chilled
    lea rax, [rdi + 1]
    lea rdx, [rdi + 2]
    ret
    END chilled

    FN cold
    push rbx
    mov ebx, 20
    mov qword ptr [rip + cold_ticks], 0
2:  call sweep
    lfence
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub [rip + cold_ticks], rax
    call chilled
    lfence
    rdtsc
    shl rdx, 32
    or rax, rdx
    add [rip + cold_ticks], rax
    dec ebx
    jnz 2b
    pop rbx
    ret
    END cold

    # The quickest of all rounds counts.
    .macro TIME what
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov r13, rax
    xor edi, edi
    call \what
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub rax, r13
    mov r14, [rip + place]
    cmp rax, [r14]
    jae 2f
    mov [r14], rax
2:  add r14, 8
    mov [rip + place], r14
    .endm
    .macro TIMES n
    TIME leaves_\n
    TIME nests_\n
    TIME bare_\n
    .endm

    FN _start
    cmp qword ptr [rsp], 1
    ja 4f
    mov edi, 1
    call wide_256
    mov edi, 1
    call wide_512
    mov edi, 1
    call wide_1024
    mov r12d, 30
3:  lea rax, [rip + best]
    mov [rip + place], rax
    TIMES 0
    TIMES 1
    TIMES 2
    TIMES 3
    TIMES 4
    xor edi, edi
    call wide_256
    TIME wide_256
    xor edi, edi
    call wide_512
    TIME wide_512
    xor edi, edi
    call wide_1024
    TIME wide_1024
    dec r12d
    jnz 3b
    call sweep
    call chilled
    call cold

    mov eax, 1                      # write
    mov edi, 1
    lea rsi, [rip + best]
    mov edx, 19 * 8
    syscall
    mov eax, 60                     # exit
    xor edi, edi
    syscall
    # With an argument: for long enough to be sampled, and nothing is said.
4:  mov r12d, 400
5:  call leaves_0
    call nests_0
    call leaves_1
    call nests_1
    call leaves_2
    call nests_2
    call leaves_4
    call nests_4
    test r12d, 15
    jnz 6f
    call leaves_3
    call nests_3
6:  dec r12d
    jnz 5b
    mov eax, 60                     # exit
    xor edi, edi
    syscall
    END _start

    .data
    .balign 64
cells:
    .fill 32, 8, 7
place:
    .quad 0
best:
    .rept 18
    .quad -1
    .endr
cold_ticks:
    .quad 0

    .bss
    .balign 4096
field:
    .skip 16 << 20
"#
);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
