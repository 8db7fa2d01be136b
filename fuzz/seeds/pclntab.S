// Go's table of functions (1.20 and later), by hand, for three functions.
        .intel_syntax noprefix
        .text
text:
noctxt: .byte 0xba, 0, 0, 0, 0
        .byte 0xe9
        .long morestack - (. + 4)
        .balign 16, 0xcc
morestack:
        ret
        .balign 16, 0xcc
first:  cmp rsp, [r14 + 16]
        jbe 1f
        push rbp
        mov rbp, rsp
        sub rsp, 24
        add rsp, 24
        pop rbp
        ret
1:      call noctxt
        jmp first
        .balign 16, 0xcc
end:

        .section .gopclntab, "a", @progbits
        .balign 8
table:  .long 0xfffffff1
        .byte 0, 0, 1, 8
        .quad 3, 0, 0
        .quad names - table, names - table, names - table, pctab - table, pcln - table
names:  .byte 0
n0:     .asciz "runtime.morestack_noctxt"
n1:     .asciz "runtime.morestack"
n2:     .asciz "main.first"
        .balign 8
pctab:  .byte 0
sp0:    .byte 2, 32, 0
unsafe: .byte 1, 8, 4, 24, 0
        .balign 8
pcln:   .long noctxt - text, d0 - pcln
        .long morestack - text, d1 - pcln
        .long first - text, d2 - pcln
        .long end - text
        .macro description entry, name
        .long \entry - text, \name - names, 0, 0
        .long sp0 - pctab, sp0 - pctab, sp0 - pctab, 1, 0, 1
        .byte 0, 0, 0, 0
        .long unsafe - pctab
        .endm
d0:     description noctxt, n0
d1:     description morestack, n1
d2:     description first, n2
