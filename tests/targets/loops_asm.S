/* Functions whose loop head is their first instruction, in forms compilers rarely make. */
    .text
    .macro begin name
    .p2align 4
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    .endm
    .macro end name
    .cfi_endproc
    .size \name, . - \name
    .endm

/* Short backward branch to the entry. */
    begin asm_loop
    dec %rdi
    jnz asm_loop
    mov %rdi, %rax
    ret
    end asm_loop

/* The same with near (6-byte) branches and work between. */
    begin asm_loop_far
    sub $1, %rdi
    test %rdi, %rdi
    .byte 0x0f, 0x84        /* je near */
    .long 1f - 8f
8:
    .byte 0xe9              /* jmp near */
    .long asm_loop_far - 8f
8:
1:  mov %rdi, %rax
    ret
    end asm_loop_far

/* The sum lives below the stack pointer while the loop comes back through the entry. */
    begin asm_red_zone_loop
    test %rsi, %rsi         /* rsi: garbage from the caller, only its flags are touched */
    cmp $0x7fffffff, %rdi
    ja 2f                   /* bit 31 set: not the first turn */
    movq $0, -8(%rsp)
    movq $0, -16(%rsp)
    movq $0, -64(%rsp)
    movq $0, -128(%rsp)
    bts $40, %rdi
2:  mov %edi, %eax
    add %rax, -8(%rsp)
    add %rax, -16(%rsp)
    add %rax, -64(%rsp)
    add %rax, -128(%rsp)
    dec %rdi
    test %edi, %edi
    jnz asm_red_zone_loop
    mov -8(%rsp), %rax
    cmp -16(%rsp), %rax
    jne 3f
    cmp -64(%rsp), %rax
    jne 3f
    cmp -128(%rsp), %rax
    jne 3f
    ret
3:  mov $-1, %rax
    ret
    end asm_red_zone_loop

/* A call in the loop, then a jump to the entry with the frame taken down. */
    begin asm_loop_with_call
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    call loop_helper
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    mov %rax, %rdi
    test %rax, %rax
    jnz asm_loop_with_call
    ret
    end asm_loop_with_call

/* Carry flag and rsi stay live across the jump to the entry. */
    begin asm_loop_prefix
    lea 0(%rsi), %rcx
    sub %rcx, %rdi
    jz 4f
    jmp asm_loop_prefix
4:  mov %rdi, %rax
    ret
    end asm_loop_prefix

    .section .note.GNU-stack, "", @progbits
