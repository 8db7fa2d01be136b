# Tail jumps, goroutines that leave and arrive, gates, system calls, and switches of stacks. See probes.rs, which puts the parts together and gives them their constants.

# ---- tail jump: rsp == sp - 8
# Where a jump leads to no probe, the frame ends here, by \exit.
.macro TAIL name, flags, unknown, sites=0, exit=0
PROBE \name
.globl \name
.balign 64
\name:
mov [rsp - 8], rax
KEEP_FLAGS \flags, 48
.if \sites
mov rax, [rsp]
mov gs:[{JUMPED_FROM}], rax
mov gs:[{JUMPED_AT}], rsp
.endif
.if \unknown
mov rax, [rsp - 16]             # the target
.else
mov eax, 0
.endif
mov [rsp - 24], rcx
mov [rsp - 32], rdx
mov [rsp - 40], rsi
xor ecx, ecx
mov rcx, gs:[rcx + {TOP}]
mov rdx, gs:[rcx + {KEY}]
sub rdx, rsp
cmp rdx, -8
je 2f
cmp rdx, -6
jne 9f
2:
.if \unknown
mov rdx, rax
mov rsi, rax
shr rdx, 4
shr rsi, 16
xor rdx, rsi
mov rsi, gs:[{TABLE}]
1: and rdx, gs:[{MASK}]
cmp [rsi + rdx * 8], rax
je 4f
cmp qword ptr [rsi + rdx * 8], 0
je 5f
inc rdx
jmp 1b
4:
.endif
or qword ptr gs:[rcx + {KEY}], 1
3:  GIVE_FLAGS \flags, 48
mov rsi, [rsp - 40]
mov rdx, [rsp - 32]
mov rcx, [rsp - 24]
mov rax, [rsp - 8]
ret
9:  lea rcx, [rsp + 8]
mov rsi, rax
SLOW_CALL tw_slow_tail
jmp 3b
.if \unknown
.ifc \exit,0
5: jmp 9b
.else
5: GIVE_FLAGS \flags, 48
mov rsi, [rsp - 40]
mov rdx, [rsp - 32]
mov rcx, [rsp - 24]
mov rax, [rsp - 8]
jmp \exit
.endif
.endif
.endm

# ---- a leaf, which calls nothing and is only counted: no frame, and no probe at its exits. Called where the code in its stub does not know its place
# (abi/leaf.rs), or where flags are to be kept. rsp == sp - 8, function number behind the call. Where the leaf was reached by a tail jump
# it returns for the one that jumped, which ends here, by \exit.
.macro LEAF name, flags, exit
PROBE \name
.globl \name
.balign 64
\name:
mov [rsp - 8], rax
KEEP_FLAGS \flags, 40
mov [rsp - 16], rdx
mov [rsp - 24], rcx
mov [rsp - 32], rsi
mov rsi, [rsp]
mov rax, fs:[0]
mov esi, [rsi + 3]
cmp rax, gs:[{OWNER}]
jne 19f
xor ecx, ecx
mov rcx, gs:[rcx + {TOP}]
mov rdx, gs:[rcx + {KEY}]
sub rdx, rsp
cmp rdx, {WINDOW}
jbe 11f
bts rsi, 33
cmp rdx, -7
je 11f
cmp rdx, -5
jne 19f
11: mov rdx, gs:[rcx + {FNODE}]
FIRST_PLACE 0
COMPARE 0, 16f
17: inc qword ptr [rax + {CALLS}]
bt rsi, 33
jc 18f
13: GIVE_FLAGS \flags, 40
mov rsi, [rsp - 32]
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
mov rax, [rsp - 8]
ret
16: REST_PLACES 0, 17b, 19f # which has labels of its own: 4 and 12
jmp 17b
18: # whoever jumped here has left with that
and qword ptr gs:[rcx + {KEY}], -2
GIVE_FLAGS \flags, 40
mov rsi, [rsp - 32]
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
mov rax, [rsp - 8]
jmp \exit
19: mov ecx, esi
lea rsi, [rsp + 8]
SLOW_CALL tw_slow_leaf
jmp 13b
.endm

# ---- code that counts blocks has found another's slot at its GS base: rsp == sp - 8. Keeps all registers; flags are kept by the caller,
# where they mean anything, and so is the red zone.
PROBE tw_blocks_claim
.globl tw_blocks_claim
.balign 64
tw_blocks_claim:
mov [rsp - 8], rax
mov [rsp - 16], rdx
mov [rsp - 24], rcx
mov [rsp - 32], rsi
lea rsi, [rsp + 8]
SLOW_CALL tw_slow_claim
mov rsi, [rsp - 32]
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
mov rax, [rsp - 8]
ret

# ---- a goroutine is about to leave its thread: rsp == sp - 8. \own: r14 is that goroutine, else the scheduler's; and rax is the
# closure that the scheduler will call (runtime.mcall).
.macro LEAVE name, own
PROBE \name
.globl \name
.balign 64
\name:
.if \own
cmp r14, gs:[{GOROUTINE}]
jne 3f
.else
cmp qword ptr gs:[{GOROUTINE}], 0
je 3f
.endif
mov [rsp - 8], rax
mov [rsp - 16], rdx
mov [rsp - 24], rcx
mov [rsp - 32], rsi
.if \own
mov rcx, rax
.else
xor ecx, ecx
.endif
SLOW_GO tw_go_leave, 0
mov rsi, [rsp - 32]
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
mov rax, [rsp - 8]
3:  ret
.endm

# ---- the scheduler is about to run a goroutine (runtime.gogo): its return address is at rsp + 8, and then what tells whom
PROBE tw_go_arrive
.globl tw_go_arrive
.balign 64
tw_go_arrive:
mov [rsp - 8], rax
mov [rsp - 16], rdx
mov [rsp - 24], rcx
mov [rsp - 32], rsi
mov rcx, [rsp + 16]
mov rcx, [rcx + {GOBUF_G}]
mov rsi, rsp
SLOW_GO tw_go_arrives, 1
mov rsi, [rsp - 32]
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
mov rax, [rsp - 8]
ret

# ---- gate: called before the entry probe of a few chosen functions, rsp == sp - 8, what it is behind the call. And
# behind the entry probe of those that allocate. Nothing is in the red zone at an entry; the arguments go there.
.macro GATE name, fn, flags
PROBE \name
.globl \name
.balign 64
\name:
mov [rsp - 8], rax
KEEP_FLAGS \flags, 88
mov [rsp - 16], rdx
mov [rsp - 24], rcx
mov [rsp - 32], rsi
mov [rsp - 80], rdi
mov [rsp - 72], rsi
mov [rsp - 64], rdx
mov [rsp - 56], rcx
mov [rsp - 48], r8
mov [rsp - 40], r9
mov rcx, [rsp]
mov ecx, [rcx + 3]
lea rsi, [rsp - 80]
lea rdx, [rsp + 8]
SLOW_CALL \fn
GIVE_FLAGS \flags, 88
mov rsi, [rsp - 32]
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
mov rax, [rsp - 8]
ret
.endm

# ---- a system call follows, its number in eax; rsp is 136 below what the instruction will find. The instruction overwrites rcx.
.macro KERNEL name, sites
PROBE \name
.globl \name
.balign 64
\name:
mov [rsp - 8], rax
KEEP_FLAGS 1, 40
mov [rsp - 16], rdx
mov [rsp - 32], rsi
.if \sites
mov [rsp - 48], rdi
xor edi, edi
.endif
mov esi, [rsp - 8]
mov eax, {KERNEL_LAST}
cmp esi, eax
cmova esi, eax
add esi, {KERNEL_FIRST}
mov rax, fs:[0]
cmp rax, gs:[{OWNER}]
jne 9f
mov rcx, gs:[{TOP}]
mov rdx, gs:[rcx + {KEY}]
sub rdx, rsp
sub rdx, 120
cmp rdx, {WINDOW}
ja 9f
mov rdx, gs:[rcx + {FNODE}]
mov rcx, [rsp]
mov ecx, [rcx + 3]              # whose system call it is, unless several may share it
cmp ecx, [rdx + {FUNCTION}]
je 1f
cmp ecx, {NO_FUNCTION}
jne 9f
1:  FIRST_PLACE \sites
COMPARE \sites, 6f
2:  inc qword ptr [rax + {CALLS}]
3:  GIVE_FLAGS 1, 40
.if \sites
mov rdi, [rsp - 48]
.endif
mov rsi, [rsp - 32]
mov rdx, [rsp - 16]
mov rax, [rsp - 8]
ret
6:  REST_PLACES \sites, 2b, 9f
jmp 2b
9:  mov ecx, esi
lea rsi, [rsp + 128]
mov rdx, [rsp]
mov edx, [rdx + 3]
SLOW_CALL tw_slow_kernel
jmp 3b
.endm

# ---- a system call follows whose number, in eax, may be one that limits the thread (limits.rs); rsp as in KERNEL. The
# slow path gets the number and the first five arguments as the function `syscall` would.
PROBE tw_watch
.globl tw_watch
.balign 64
tw_watch:
mov [rsp - 8], rax
KEEP_FLAGS 1, 40
mov eax, [rsp - 8]
cmp eax, {PRCTL}
je 9f
cmp eax, {ARCH_PRCTL}
je 9f
cmp eax, {SECCOMP}
je 9f
cmp eax, {PTRACE}
je 9f
cmp eax, {CLONE}
je 9f
cmp eax, {CLONE3}
je 9f
3:  GIVE_FLAGS 1, 40
mov rax, [rsp - 8]
ret
9:  mov [rsp - 16], rdx
mov [rsp - 32], rsi
mov [rsp - 88], rax
mov [rsp - 80], rdi
mov [rsp - 72], rsi
mov [rsp - 64], rdx
mov [rsp - 56], r10
mov [rsp - 48], r8
mov ecx, {WATCHED_CALL}
lea rsi, [rsp - 88]
lea rdx, [rsp + 128]
SLOW_CALL tw_slow_gate
mov rsi, [rsp - 32]
mov rdx, [rsp - 16]
jmp 3b

# ---- exit to another stack or past callers: rsp is 136 below what the instruction that leaves will find, clear of
# whatever lives in the red zone there.
PROBE tw_switch
.globl tw_switch
.balign 64
tw_switch:
mov [rsp - 8], rax
KEEP_FLAGS 1, 40
mov [rsp - 16], rdx
mov [rsp - 24], rcx
mov [rsp - 32], rsi
mov rcx, [rsp]
mov ecx, [rcx + 3]
lea rsi, [rsp + 136]
SLOW_CALL tw_slow_switch
GIVE_FLAGS 1, 40
mov rsi, [rsp - 32]
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
mov rax, [rsp - 8]
ret

ENTRY tw_entry_t, 1, 0, 0, frozen=tw_entry_x
EXIT tw_return_t, 1, 0, -16, frozen=tw_return_x
ENTRY tw_entry_c, 0, 0, 0
EXIT tw_return_c, 0, 0, -16
EXIT tw_exit_t, 1, 0, -8, frozen=tw_exit_x
EXIT tw_exit_c, 0, 0, -8
LEAF tw_leaf_t, 0, tw_exit_t
LEAF tw_leaf_c, 0, tw_exit_c
TAIL tw_tail_mark, 0, 0
TAIL tw_tail_unknown, 0, 1
ENTRY tw_entry_tl, 1, 0, 1, frozen=tw_entry_xl
ENTRY tw_entry_cl, 0, 0, 1
ENTRY tw_entry_tf, 1, 1, 0, frozen=tw_entry_x
ENTRY tw_entry_cf, 0, 1, 0
ENTRY tw_entry_tfl, 1, 1, 1, frozen=tw_entry_xl
ENTRY tw_entry_cfl, 0, 1, 1
EXIT tw_return_tf, 1, 1, -16, frozen=tw_return_x
EXIT tw_return_cf, 0, 1, -16
EXIT tw_exit_tf, 1, 1, -8, frozen=tw_exit_x
EXIT tw_exit_cf, 0, 1, -8
LEAF tw_leaf_tf, 1, tw_exit_tf
LEAF tw_leaf_cf, 1, tw_exit_cf
TAIL tw_tail_mark_f, 1, 0
TAIL tw_tail_unknown_f, 1, 1
ENTRY tw_entry_ts, 1, 0, 0, 1, frozen=tw_entry_xs
ENTRY tw_entry_cs, 0, 0, 0, 1
ENTRY tw_entry_tls, 1, 0, 1, 1, frozen=tw_entry_xls
ENTRY tw_entry_cls, 0, 0, 1, 1
ENTRY tw_entry_tfs, 1, 1, 0, 1, frozen=tw_entry_xs
ENTRY tw_entry_cfs, 0, 1, 0, 1
ENTRY tw_entry_tfls, 1, 1, 1, 1, frozen=tw_entry_xls
ENTRY tw_entry_cfls, 0, 1, 1, 1
ENTRY tw_entry_tr, 1, 0, 0, 0, 0, 1, frozen=tw_entry_x
EXIT tw_return_tr, 1, 0, -16, 0, 1, frozen=tw_return_x
EXIT tw_exit_tr, 1, 0, -8, 0, 1, frozen=tw_exit_x
ENTRY tw_entry_tlr, 1, 0, 1, 0, 0, 1, frozen=tw_entry_xl
ENTRY tw_entry_tfr, 1, 1, 0, 0, 0, 1, frozen=tw_entry_x
ENTRY tw_entry_tflr, 1, 1, 1, 0, 0, 1, frozen=tw_entry_xl
EXIT tw_return_tfr, 1, 1, -16, 0, 1, frozen=tw_return_x
EXIT tw_exit_tfr, 1, 1, -8, 0, 1, frozen=tw_exit_x
ENTRY tw_entry_tsr, 1, 0, 0, 1, 0, 1, frozen=tw_entry_xs
ENTRY tw_entry_tlsr, 1, 0, 1, 1, 0, 1, frozen=tw_entry_xls
ENTRY tw_entry_tfsr, 1, 1, 0, 1, 0, 1, frozen=tw_entry_xs
ENTRY tw_entry_tflsr, 1, 1, 1, 1, 0, 1, frozen=tw_entry_xls
TAIL tw_tail_mark_s, 0, 0, 1
TAIL tw_tail_unknown_s, 0, 1, 1
TAIL tw_tail_mark_fs, 1, 0, 1
TAIL tw_tail_unknown_fs, 1, 1, 1
ENTRY tw_go_entry_t, 1, 0, 0, 0, 1, frozen=tw_go_entry_x
ENTRY tw_go_entry_ts, 1, 0, 0, 1, 1, frozen=tw_go_entry_xs
EXIT tw_go_return_t, 1, 0, -16, 1, frozen=tw_go_return_x
ENTRY tw_go_entry_c, 0, 0, 0, 0, 1
ENTRY tw_go_entry_cs, 0, 0, 0, 1, 1
EXIT tw_go_return_c, 0, 0, -16, 1
ENTRY tw_go_entry_tr, 1, 0, 0, 0, 1, 1, frozen=tw_go_entry_x
ENTRY tw_go_entry_tsr, 1, 0, 0, 1, 1, 1, frozen=tw_go_entry_xs
EXIT tw_go_return_tr, 1, 0, -16, 1, 1, frozen=tw_go_return_x
GATE tw_gate, tw_slow_gate, 0
GATE tw_alloc, tw_slow_alloc, 1
EXIT tw_return_ta, 1, 0, -16, 0, 0, 1, frozen=tw_return_x
EXIT tw_return_ca, 0, 0, -16, 0, 0, 1
EXIT tw_return_tfa, 1, 1, -16, 0, 0, 1, frozen=tw_return_x
EXIT tw_return_cfa, 0, 1, -16, 0, 0, 1
EXIT tw_exit_ta, 1, 0, -8, 0, 0, 1, frozen=tw_exit_x
EXIT tw_exit_ca, 0, 0, -8, 0, 0, 1
EXIT tw_exit_tfa, 1, 1, -8, 0, 0, 1, frozen=tw_exit_x
EXIT tw_exit_cfa, 0, 1, -8, 0, 0, 1
EXIT tw_return_tra, 1, 0, -16, 0, 1, 1, frozen=tw_return_x
EXIT tw_return_tfra, 1, 1, -16, 0, 1, 1, frozen=tw_return_x
EXIT tw_exit_tra, 1, 0, -8, 0, 1, 1, frozen=tw_exit_x
EXIT tw_exit_tfra, 1, 1, -8, 0, 1, 1, frozen=tw_exit_x
KERNEL tw_kernel, 0
KERNEL tw_kernel_s, 1
LEAVE tw_go_leave_own, 1
LEAVE tw_go_leave_any, 0
# CPython's evaluator.
ENTRY tw_python_t, 1, 1, 0, python=1, frozen=tw_python_x
ENTRY tw_python_ts, 1, 1, 0, 1, python=1, frozen=tw_python_xs
ENTRY tw_python_c, 0, 1, 0, python=1
ENTRY tw_python_cs, 0, 1, 0, 1, python=1
ENTRY tw_python_tr, 1, 1, 0, 0, 0, 1, python=1, frozen=tw_python_x
ENTRY tw_python_tsr, 1, 1, 0, 1, 0, 1, python=1, frozen=tw_python_xs
.macro COUNTED_TAILS clock, exit, exit_f
TAIL tw_tail_unknown_\clock, 0, 1, 0, \exit
TAIL tw_tail_unknown_\clock\()f, 1, 1, 0, \exit_f
TAIL tw_tail_unknown_\clock\()s, 0, 1, 1, \exit
TAIL tw_tail_unknown_\clock\()fs, 1, 1, 1, \exit_f
.endm
COUNTED_TAILS t, tw_exit_t, tw_exit_tf
COUNTED_TAILS c, tw_exit_c, tw_exit_cf
.irp place, 0, 1, 2, 3, 4, 5, 6, 7
ENTRY_AT tw_entry_c\place, 0, \place, 0, tw_entry_c
ENTRY_AT tw_entry_cl\place, 0, \place, 1, tw_entry_cl
ENTRY_AT tw_entry_t\place, 1, \place, 0, tw_entry_t, tw_entry_x
ENTRY_AT tw_entry_tl\place, 1, \place, 1, tw_entry_tl, tw_entry_xl
.endr
# Without a clock: what the timed ones become when it may not be read any more.
ENTRY tw_python_x, 1, 1, 0, stopped=1, python=1
ENTRY tw_python_xs, 1, 1, 0, 1, stopped=1, python=1
ENTRY tw_entry_x, 1, 1, 0, stopped=1
ENTRY tw_entry_xl, 1, 1, 1, stopped=1
ENTRY tw_entry_xs, 1, 1, 0, 1, stopped=1
ENTRY tw_entry_xls, 1, 1, 1, 1, stopped=1
EXIT tw_return_x, 1, 1, -16, alloc=1, stopped=1
EXIT tw_exit_x, 1, 1, -8, alloc=1, stopped=1
ENTRY tw_go_entry_x, 1, 0, 0, 0, 1, stopped=1
ENTRY tw_go_entry_xs, 1, 0, 0, 1, 1, stopped=1
EXIT tw_go_return_x, 1, 0, -16, 1, stopped=1
