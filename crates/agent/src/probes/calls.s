# What every probe is made of: where the region is, ways to the slow path, vector registers, flags. See probes.rs, which puts the parts together and gives them their constants.

.section .text.tw_head,"ax",@progbits
.globl tw_base
tw_base:
.quad 0                         # address of the region, written by the controller
tw_silent:
.quad 0                         # limits.rs: 1: no system calls from here
tw_frozen:
.quad 0                         # the counter value at which the clock was stopped; 0: it runs

# ---- each probe names itself in a table, with the one that takes its place when the clock may not be read any more (limits.rs)
.section .rodata.tw_probes,"a",@progbits
.balign 8
tw_probes:
.macro PROBE name, frozen=tw_base
.pushsection .rodata.tw_probes,"a",@progbits
.long \name
.long \frozen
.popsection
.endm

.text
# ---- vector registers, below a stack pointer that is a multiple of 16
.macro KEEP_VECTORS
sub rsp, 256
movaps [rsp], xmm0
movaps [rsp + 16], xmm1
movaps [rsp + 32], xmm2
movaps [rsp + 48], xmm3
movaps [rsp + 64], xmm4
movaps [rsp + 80], xmm5
movaps [rsp + 96], xmm6
movaps [rsp + 112], xmm7
movaps [rsp + 128], xmm8
movaps [rsp + 144], xmm9
movaps [rsp + 160], xmm10
movaps [rsp + 176], xmm11
movaps [rsp + 192], xmm12
movaps [rsp + 208], xmm13
movaps [rsp + 224], xmm14
movaps [rsp + 240], xmm15
.endm
.macro GIVE_VECTORS
movaps xmm0, [rsp]
movaps xmm1, [rsp + 16]
movaps xmm2, [rsp + 32]
movaps xmm3, [rsp + 48]
movaps xmm4, [rsp + 64]
movaps xmm5, [rsp + 80]
movaps xmm6, [rsp + 96]
movaps xmm7, [rsp + 112]
movaps xmm8, [rsp + 128]
movaps xmm9, [rsp + 144]
movaps xmm10, [rsp + 160]
movaps xmm11, [rsp + 176]
movaps xmm12, [rsp + 192]
movaps xmm13, [rsp + 208]
movaps xmm14, [rsp + 224]
movaps xmm15, [rsp + 240]
.endm

# ---- slow path: save what Rust may clobber, call \fn, restore; rsp and the red zone as at the probe. With \values \fn is
# told where the saved registers are: rdx those from rbx to rdi, rcx the vectors.
.macro SLOW_CALL fn, values=0
lea rsp, [rsp - 168]
push rdi
push r8
push r9
push r10
push r11
push rbx
mov rbx, rsp
and rsp, -16
KEEP_VECTORS
mov rdi, rcx
.if \values
mov rdx, rbx
mov rcx, rsp
.endif
cld
call \fn
GIVE_VECTORS
mov rsp, rbx
pop rbx
pop r11
pop r10
pop r9
pop r8
pop rdi
lea rsp, [rsp + 168]
.endm

# ---- the same in Go code. A goroutine's stack has some hundred bytes left for sure: the thread goes to the slot's own
# stack if the slot is its own, and to the one of all newcomers if it is not (or, without \claims, nowhere).
# In: rcx and rsi the arguments, r14 the goroutine. Clobbers rax, rcx, rdx, rsi. With \values \fn is told where the saved
# registers are (registers.rs, Goroutine).
.macro SLOW_GO fn, claims, values=0
mov [rsp - 56], rdi
mov [rsp - 64], r11
mov rdi, rcx
mov rax, [r14 + {MACHINE}]
cmp rax, gs:[{GO_MACHINE}]
jne 70f
mov rax, fs:[0]
cmp rax, gs:[{GO_THREAD}]
jne 70f
cmp qword ptr gs:[{GO_BUSY}], 0
jne 79f
mov qword ptr gs:[{GO_BUSY}], 1
mov rax, gs:[{GO_STACK}]
ON_STACK \fn, \values
mov qword ptr gs:[{GO_BUSY}], 0
jmp 79f
70:
.if \claims
mov dword ptr [rsp - 72], 1 << 20
71: mov r11, [rip + tw_base]
mov eax, 1
xchg [r11 + {CLAIM_LOCK}], eax
test eax, eax
jz 72f
cmp qword ptr [rip + tw_silent], 0
jne 73f
mov eax, {SCHED_YIELD}
syscall
73:
dec dword ptr [rsp - 72]
jnz 71b
jmp 79f
72: lea rax, [r11 + {CLAIM_STACK_END}]
ON_STACK \fn, \values
mov r11, [rip + tw_base]
mov dword ptr [r11 + {CLAIM_LOCK}], 0
.endif
79: mov r11, [rsp - 64]
mov rdi, [rsp - 56]
.endm

# Calls \fn(rdi, rsi, r14) on the stack that ends at rax.
.macro ON_STACK fn, values
mov [rax - 8], rsp
lea rsp, [rax - 8]
push r8
push r9
push r10
.if \values
push rbx
push rbx
.endif
KEEP_VECTORS
mov rdx, r14
.if \values
mov rcx, rsp
.endif
cld
call \fn
GIVE_VECTORS
add rsp, 256 + 16 * \values
pop r10
pop r9
pop r8
pop rsp
.endm

.macro KEEP_FLAGS on, slot
.if \on
lahf
seto al
mov [rsp - \slot], rax
.endif
.endm
.macro GIVE_FLAGS on, slot
.if \on
mov rax, [rsp - \slot]
add al, 127
sahf
.endif
.endm
