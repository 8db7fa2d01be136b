/* The number in a name is the function's size in bytes. */
    .text
    .macro begin name
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    .endm
    .macro end name
    .cfi_endproc
    .size \name, . - \name
    .endm

    .p2align 4
    begin padded1
    ret
    end padded1
    .p2align 4
    begin padded2
    rep ret
    end padded2
    .p2align 4
    begin padded3
    xor %eax, %eax
    ret
    end padded3
    .p2align 4
    begin padded3b
    mov %edi, %eax
    ret
    end padded3b
    .p2align 4
    begin padded4
    lea 1(%rdi), %eax
    ret
    end padded4
    .p2align 4
    begin padded5
    lea (%rdi, %rdi), %rax
    ret
    end padded5
    .p2align 4
    begin padded6
    mov $0x12345678, %eax
    ret
    end padded6
    .p2align 4
    begin jump2
    .byte 0xeb, padded6 - 8f
8:
    end jump2
    .p2align 4
    begin jump5
    .byte 0xe9
    .long padded4 - 8f
8:
    end jump5
    .p2align 4
    begin endbr_only
    endbr64
    ret
    end endbr_only

/* One after another: no free byte anywhere between them. */
    .p2align 4
    begin packed1
    ret
    end packed1
    begin packed2
    rep ret
    end packed2
    begin packed3
    xor %eax, %eax
    ret
    end packed3
    begin packed4
    lea 1(%rdi), %eax
    ret
    end packed4
    begin packed5
    lea (%rdi, %rdi), %rax
    ret
    end packed5
    begin packed6
    mov $0x1234567, %eax
    ret
    end packed6

    .section .note.GNU-stack, "", @progbits
