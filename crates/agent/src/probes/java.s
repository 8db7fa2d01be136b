# Java's method probes (java.rs), in place of two functions of the virtual machine: rdi the thread, rsi the method, and at rsp the return address into
# the machine's generated code, which expects of a C function what the ABI says. Their stubs jump here, so that `ret` goes there.
.macro METHOD name, fn
PROBE \name
.globl \name
.balign 64
\name:
mov [rsp - 8], rax
mov rdx, rsp
jmp \fn
.endm

METHOD tw_java_entry, tw_java_enters
METHOD tw_java_exit, tw_java_leaves

.section .rodata.tw_probes,"a",@progbits
.quad 0                         # the end of the table
.text
