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

# At the entry of a function of the compiler that puts the calls of both into its code: rdi, rsi and rdx as the function has them, rsp == sp - 8.
# Where the answer is not 0 the function returns at once. A call like any other to its caller, so that registers may change that calls change.
PROBE tw_java_compile
.globl tw_java_compile
.balign 64
tw_java_compile:
push rdi
push rsi
push rdx
push rcx
call tw_java_compiles
pop rcx
pop rdx
pop rsi
pop rdi
test rax, rax
jz 1f
add rsp, 8
1: ret

.section .rodata.tw_probes,"a",@progbits
.quad 0                         # the end of the table
.text
