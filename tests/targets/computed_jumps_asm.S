/* Jumps to computed places in the middle of an unrolled loop, and tail calls by pointer, which look much the same. */
    .intel_syntax noprefix
    .text

/* How many additions are left from the place that is entered; a negative number enters at the first one, straight on. */
    .macro unrolled
    .rept 8
    add rax, 1
    .endr
    .endm

    .globl forwards
    .type forwards, @function
forwards:
    .cfi_startproc
    xor eax, eax
    test rdi, rdi
    js 1f
    lea rdx, [rip + 1f]
    lea rdx, [rdx + rdi * 4]
    jmp rdx
1:  unrolled
    ret
    .cfi_endproc
    .size forwards, . - forwards

    .globl backwards
    .type backwards, @function
backwards:
    .cfi_startproc
    xor eax, eax
    test rdi, rdi
    js 1f
    lea rdx, [rip + 2f]
    shl rdi, 2
    sub rdx, rdi
    jmp rdx
1:  unrolled
2:  ret
    .cfi_endproc
    .size backwards, . - backwards

/* The same through another register. */
    .globl moved
    .type moved, @function
moved:
    .cfi_startproc
    xor eax, eax
    test rdi, rdi
    js 1f
    lea rdx, [rip + 1f]
    lea rdx, [rdx + rdi * 4]
    mov rcx, rdx
    jmp rcx
1:  unrolled
    ret
    .cfi_endproc
    .size moved, . - moved

/* rdi: a function; rsi: another one, for an even rdx. */
    .globl through
    .type through, @function
through:
    .cfi_startproc
    mov rax, rdi
    test rdx, 1
    cmovz rax, rsi
    mov rdi, rdx
    jmp rax
    .cfi_endproc
    .size through, . - through

    .section .note.GNU-stack, "", @progbits
