# Exits. See probes.rs, which puts the parts together and gives them their constants.

# ---- the frame at gs:rcx ends at rax; leaves the one below it in rcx, clobbers rax and rdx
.macro POP_FRAME clock
.if \clock
mov rdx, gs:[rcx + {FNODE}]
mov gs:[{LAST}], rax
sub rax, gs:[rcx + {START}]
add [rdx + {CUM}], rax
add gs:[rcx - 32 + {CHILD}], rax
sub rax, gs:[rcx + {CHILD}]
add [rdx + {BASE}], rax
cmp rax, [rdx + {MIN}]
jl 21f
20: cmp rax, [rdx + {MAX}]
jle 23f
mov [rdx + {MAX}], rax
jmp 23f
21: mov [rdx + {MIN}], rax
jmp 20b
23:
.endif
# The bump comes first: a handler that found an emptied frame still on top would take it for one left behind.
sub rcx, 32
mov gs:[{TOP}], rcx
mov qword ptr gs:[rcx + 32 + {KEY}], 0
.endm

# ---- the frame at gs:rcx, whose call was not timed, ends; leaves the one below it in rcx, clobbers rax and rdx
.macro POP_UNTIMED
mov rdx, gs:[rcx + {CHILD}]
test rdx, rdx
jz 25f
mov rax, gs:[rcx + {FNODE}]
add gs:[rcx - 32 + {CHILD}], rdx
add [rax + {CUM}], rdx
25:
sub rcx, 32
mov gs:[{TOP}], rcx
mov qword ptr gs:[rcx + 32 + {KEY}], 0
.endm

# ---- the frame at gs:rcx, timed or not, ends at rsi
.macro POP_EITHER clock
.if \clock
cmp qword ptr gs:[rcx + {START}], 0
je 26f
mov rax, rsi
.endif
POP_FRAME \clock
.if \clock
jmp 27f
26: POP_UNTIMED
27:
.endif
.endm

# ---- the moment of an exit -> rax; without a clock that of the last event
# ---- exit: \bias is key - rsp for a plain frame: -16 with rsp == sp, -8 when called
.macro NOW stopped
.if \stopped
mov rax, gs:[{LAST}]
.else
TICKS
.endif
.endm

.macro EXIT name, clock, flags, bias, go=0, rec=0, alloc=0, stopped=0, frozen=tw_base
PROBE \name, \frozen
.globl \name
.balign 64
\name:
.if \clock + \flags + \alloc + \go == 0
# the plain case first, with one register: what is compared is where rsp would be
mov [rsp - 24], rcx
xor ecx, ecx
mov rcx, gs:[rcx + {TOP}]
lea rsp, [rsp + \bias]
cmp gs:[rcx + {KEY}], rsp
.if \bias == -16
lea rsp, [rsp + 16]
.else
lea rsp, [rsp + 8]
.endif
jne 60f
sub rcx, 32
mov gs:[{TOP}], rcx
mov qword ptr gs:[rcx + 32 + {KEY}], 0
mov rcx, [rsp - 24]
ret
60: mov [rsp - 16], rdx
mov rdx, gs:[rcx + {KEY}]
sub rdx, rsp
jmp 7f
.else
.if \clock + \flags + \alloc
mov [rsp - 8], rax
.endif
KEEP_FLAGS \flags, 40
mov [rsp - 16], rdx
mov [rsp - 24], rcx
.if \alloc
lea rcx, [rsp + 16 + \bias]
cmp rcx, gs:[{ALLOC_AT}]
je 16f
17:
.endif
.if \rec
COUNTER
.endif
.if \go
cmp r14, gs:[{GOROUTINE}]
jne 7f
.endif
xor ecx, ecx
mov rcx, gs:[rcx + {TOP}]
mov rdx, gs:[rcx + {KEY}]
sub rdx, rsp
.if \go
add rdx, [r14 + {STACK_END}]
.endif
cmp rdx, \bias
jne 7f
52:
.if \rec
IS_LONG rax, 10f
sub rax, gs:[{OFF}]
.endif
.if \clock
.if \rec == 0
cmp qword ptr gs:[rcx + {START}], 0
je 28f
NOW \stopped
.endif
mov rdx, rax
sub rdx, gs:[{LAST}]
cmp rdx, gs:[{GAP}]
jg 14f
.endif
2:  POP_FRAME \clock
.endif
3:  GIVE_FLAGS \flags, 40
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
.if \clock + \flags
mov rax, [rsp - 8]
.endif
ret
7:  mov [rsp - 32], rsi
.if \rec * (1 - \go)
cmp rdx, \bias + 4
je 50f
51: sub rax, gs:[{OFF}]
.endif
.if \go == 0
cmp rdx, \bias + 2
jne 9f
.if \clock
.if \rec == 0
58: # the frame below returns with it, and so on: the first that is timed needs the clock
cmp qword ptr gs:[rcx + {START}], 0
jne 59f
POP_UNTIMED
mov rdx, gs:[rcx + {KEY}]
sub rdx, rsp
cmp rdx, \bias + 2
je 58b
cmp rdx, \bias
jne 3b
mov rax, [rsp - 8]
jmp 52b
59: NOW \stopped
.endif
mov rdx, rax
sub rdx, gs:[{LAST}]
cmp rdx, gs:[{GAP}]
jg 15f
.endif
6:  mov rsi, rax
8:  # reached by a tail jump: the frame below returns with it
.if \rec
add rax, gs:[{OFF}]
IS_LONG rax, 9f
mov rax, rsi
.endif
POP_EITHER \clock
mov rax, rsi
mov rdx, gs:[rcx + {KEY}]
sub rdx, rsp
cmp rdx, \bias + 2
je 8b
cmp rdx, \bias
.if \rec
# its end is to be told, by the slow path
jne 9f
add rax, gs:[{OFF}]
IS_LONG rax, 9f
mov rax, rsi
.else
jne 4f
.endif
POP_EITHER \clock
4:  mov rsi, [rsp - 32]
jmp 3b
.endif
9:  lea rcx, [rsp + 16 + \bias]
.if \clock + \flags == 0
mov [rsp - 8], rax
.endif
.if \go * \rec
SLOW_GO tw_go_exit_r, 1, 1
.elseif \go
SLOW_GO tw_go_exit, 1
.elseif \rec
SLOW_CALL tw_slow_exit_r, 1
.else
SLOW_CALL tw_slow_exit
.endif
.if \clock + \flags == 0
mov rax, [rsp - 8]
.endif
mov rsi, [rsp - 32]
jmp 3b
.if \rec
10: mov [rsp - 32], rsi
jmp 9b
.endif
.if \rec * (1 - \go)
50: # the frame is marked: if that is for its results, they may say that nobody wants to hear of it
mov edx, gs:[rcx + {SIDE_WATCH}]
test dl, {WATCHED}
jz 51b
mov rsi, gs:[{RULES}]
shr edx, 8
jnz 62f
mov rdx, gs:[rcx + {FNODE}]
mov edx, [rdx + {FUNCTION}]
movzx edx, byte ptr [rsi + rdx * 2 + 1]
56: cmp edx, {ASK}
je 51b
jb 57f
shl edx, {FILTER_SHIFT}
add rdx, rsi
mov rsi, rax
test byte ptr [rdx - {FILTERS} + {FILTER_KIND}], {NEEDS_FLOATS} + {NEEDS_ERRNO} + {NEEDS_TIME}
jz 55f
test byte ptr [rdx - {FILTERS} + {FILTER_KIND}], {NEEDS_FLOATS} + {NEEDS_TIME}
jz 53f
movlps [rsp - 72], xmm0
movlps [rsp - 80], xmm1
sub rax, gs:[rcx + {SIDE_ENTRY}]
mov [rsp - 96], rax
53: test byte ptr [rdx - {FILTERS} + {FILTER_KIND}], {NEEDS_ERRNO}
jz 55f
mov rax, gs:[{RULES}]
mov rax, [rax - {RULES_TABLE} + {ERRNO_OFFSET}]
test rax, rax
jz 54f
mov eax, fs:[rax]
54: mov [rsp - 88], rax
55: DECIDE 0
mov rax, rsi
mov rcx, gs:[{TOP}]
test edx, edx
jnz 51b
57: mov rsi, [rsp - 32]
jmp 52b
62: # a filter that the entry has named: a handler that came before the frame was there may have written its own
lea rsi, [rsp + 16 + \bias]
cmp esi, gs:[rcx + {SIDE_WATCH} + 4]
mov rsi, gs:[{RULES}]
je 56b
jmp 51b
.endif
.if \clock
14: # long after the last event: the function may have waited
mov [rsp - 32], rsi
mov rcx, rax
mov rsi, rdx
.if \go
mov gs:[{LAST}], rax
SLOW_GO tw_slow_gap_exit, 0
mov rax, gs:[{LAST}]
.else
SLOW_CALL tw_slow_gap_exit
.endif
mov rsi, [rsp - 32]
mov rcx, gs:[{TOP}]
jmp 2b
.endif
.if \clock * (1 - \go)
15: mov rcx, rax
mov rsi, rdx
SLOW_CALL tw_slow_gap_exit
mov rcx, gs:[{TOP}]
jmp 6b
.endif
.if \clock * (1 - \rec)
28: mov rdx, gs:[rcx + {CHILD}]
test rdx, rdx
jnz 29f
sub rcx, 32
mov gs:[{TOP}], rcx
mov qword ptr gs:[rcx + 32 + {KEY}], 0
GIVE_FLAGS \flags, 40
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
.if \flags
mov rax, [rsp - 8]
.endif
ret
29: POP_UNTIMED
jmp 3b
.endif
.if \alloc
16: # an allocator returns, or what it has jumped to; where called there is a jump to elsewhere yet to come
cmp dword ptr gs:[{ALLOC_KIND}], {FREE}
jne 18f
mov qword ptr gs:[{ALLOC_AT}], 0
jmp 17b
18: mov [rsp - 32], rsi
mov rsi, rcx
mov rcx, [rsp - 8]
mov edx, \bias + 16
SLOW_CALL tw_slow_alloc_exit
mov rax, [rsp - 8]
mov rsi, [rsp - 32]
jmp 17b
.endif
.endm
