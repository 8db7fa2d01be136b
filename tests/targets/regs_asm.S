/* What compilers do with -fipa-ra and people do by hand: values kept across a call in registers that the
 * ABI lets a callee destroy, because this callee does not; flags as arguments and results. */
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
    .macro frame
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    .endm
    .macro unframe
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    .endm
    .macro call_kept name
    frame
    call \name
    unframe
    .endm

/* Touches rax only. */
    begin touch_rax
    lea 5(%rdi), %rax
    imul $3, %rax, %rax
    ret
    end touch_rax

    begin keep_integers
    mov %rdi, %rcx
    lea 1(%rdi), %rdx
    lea 2(%rdi), %rsi
    lea 3(%rdi), %r8
    lea 4(%rdi), %r9
    lea 5(%rdi), %r10
    lea 6(%rdi), %r11
    call_kept touch_rax
    sub $3, %r8
    cmp %rdi, %r8
    jne 9f
    lea 5(%rdi), %r8
    imul $3, %r8, %r8
    cmp %r8, %rax
    jne 9f
    cmp %rdi, %rcx
    jne 9f
    sub $1, %rdx
    cmp %rdi, %rdx
    jne 9f
    sub $2, %rsi
    cmp %rdi, %rsi
    jne 9f
    sub $4, %r9
    cmp %rdi, %r9
    jne 9f
    sub $5, %r10
    cmp %rdi, %r10
    jne 9f
    sub $6, %r11
    cmp %rdi, %r11
    jne 9f
    xor %eax, %eax
    ret
9:  mov $1, %eax
    ret
    end keep_integers

/* xmm0 to xmm15 all live across the call. */
    begin keep_vectors
    movq %rdi, %xmm0
    punpcklqdq %xmm0, %xmm0
    .irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movdqa %xmm0, %xmm\n
    .endr
    call_kept touch_rax
    .irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    pcmpeqb %xmm0, %xmm\n
    pmovmskb %xmm\n, %eax
    cmp $0xffff, %eax
    jne 9f
    .endr
    movq %xmm0, %rax
    cmp %rdi, %rax
    jne 9f
    xor %eax, %eax
    ret
9:  mov $1, %eax
    ret
    end keep_vectors

/* Answers in carry and zero: carry = odd, zero = multiple of eight. */
    begin answer_in_flags
    mov %rdi, %rax
    and $7, %eax
    bt $0, %rax
    ret
    end answer_in_flags

/* bt leaves zero as `and` made it; both are read after the call. */
    begin flags_out
    frame
    call answer_in_flags
    setc %al
    setz %cl
    unframe
    mov %rdi, %rdx
    and $1, %edx
    cmp %dl, %al
    jne 9f
    test $7, %dil
    setz %dl
    cmp %dl, %cl
    jne 9f
    xor %eax, %eax
    ret
9:  mov $1, %eax
    ret
    end flags_out

/* Reads the carry that its caller left. */
    begin add_with_carry
    mov %rdi, %rax
    adc $0, %rax
    ret
    end add_with_carry

    begin flags_in
    frame
    bt $0, %rdi
    call add_with_carry
    unframe
    mov %rdi, %rcx
    and $1, %ecx
    add %rdi, %rcx
    sub %rcx, %rax
    ret
    end flags_in

    begin result_in_r10
    lea 17(%rdi), %r10
    ret
    end result_in_r10

    begin return_in_r10
    mov $42, %eax
    call_kept result_in_r10
    cmp $42, %eax
    jne 9f
    sub $17, %r10
    sub %rdi, %r10
    mov %r10, %rax
    ret
9:  mov $1, %eax
    ret
    end return_in_r10

/* A conditional tail jump while the red zone is in use on the other branch. */
    begin red_zone_over_tail
    lea (%rdi, %rdi, 2), %rax
    mov %rax, -8(%rsp)
    mov %rax, -24(%rsp)
    mov %rax, -48(%rsp)
    mov %rax, -120(%rsp)
    test $1, %dil
    jne c_target
    mov -8(%rsp), %rax
    cmp -24(%rsp), %rax
    jne 9f
    cmp -48(%rsp), %rax
    jne 9f
    cmp -120(%rsp), %rax
    jne 9f
    ret
9:  mov $-1, %rax
    ret
    end red_zone_over_tail

    begin takes_stack
    mov 8(%rsp), %rax
    sub 16(%rsp), %rax
    ret
    end takes_stack

    begin stack_arguments
    push %rdi
    .cfi_adjust_cfa_offset 8
    push %rdi
    .cfi_adjust_cfa_offset 8
    call takes_stack
    add $16, %rsp
    .cfi_adjust_cfa_offset -16
    ret
    end stack_arguments

/* The loop counter stays in rcx, which the callee reads and does not change. */
    begin reads_rcx
    add %rcx, %rax
    ret
    end reads_rcx

    begin count_in_rcx
    xor %eax, %eax
    mov $4, %ecx
    frame
1:  call reads_rcx
    dec %ecx
    jnz 1b
    unframe
    sub $10, %rax
    ret
    end count_in_rcx

/* Callee pops its argument: ret with an immediate. */
    begin pops
    mov 8(%rsp), %rax
    ret $8
    end pops

    begin pop_arguments
    push %rdi
    .cfi_adjust_cfa_offset 8
    call pops
    .cfi_adjust_cfa_offset -8
    sub %rdi, %rax
    ret
    end pop_arguments

    .section .note.GNU-stack, "", @progbits
