# Entries. See probes.rs, which puts the parts together and gives them their constants.

# ---- what an entry that is only counted is made of
# Number of the function -> eax, as it stands in nodes
.macro NUMBER timed
mov rax, [rsp]
mov eax, [rax + 3]
.if \timed
and eax, {MODE_FUNCTION}
.endif
.endm
# A call of a function of which one now and then is timed: to \rest if this is such a one. Clobbers rax
.macro SKIP_SAMPLED rest
mov rax, [rsp]
test byte ptr [rax + {MODE_AT}], {SAMPLED_BYTE}
jz 46f
cmp qword ptr gs:[{COUNTDOWN}], 0
je \rest
dec qword ptr gs:[{COUNTDOWN}]
46:
.endm
# The frame on top -> r11, how far its key lies above rsp -> r10; to \rest if that does not tell enough, to \tail if the callee is not deeper
.macro TOP_FRAME loops, tail, rest
mov [rsp - 16], r10
mov [rsp - 24], r11
xor r11d, r11d
mov r10, fs:[r11]
cmp r10, gs:[r11 + {OWNER}]
jne \rest
mov r11, gs:[r11 + {TOP}]
mov r10, gs:[r11 + {KEY}]
cmp r11, gs:[{LIMIT}]
jae \rest
sub r10, rsp
.if \loops
sub r10, 128
.endif
cmp r10, {WINDOW}
ja \tail
.endm
# The callee at r10 gets a frame, its key in rax, and back. The bump comes first: as long as the key is 0 a handler takes the frame for one that
# is not there yet
.macro PUSH_COUNTED timed, flags
add r11, 32
mov gs:[{TOP}], r11
mov gs:[r11 + {FNODE}], r10
.if \timed
mov qword ptr gs:[r11 + {START}], 0
mov qword ptr gs:[r11 + {CHILD}], 0
.endif
mov gs:[r11 + {KEY}], rax
inc qword ptr [r10 + {CALLS}]
.if \timed
shr r10, 2
add r10, gs:[{UNTIMED}]
inc qword ptr [r10]
.endif
GIVE_FLAGS \flags, 40
mov r11, [rsp - 24]
mov r10, [rsp - 16]
mov rax, [rsp - 8]
ret
.endm
# The callee eax of the frame r11, which is not in its first place -> r10, to \found or \rest: in the table of all, where the node has one, else in
# the second place. Many callees push one another out of their places.
.macro OTHER_PLACES timed, found, rest
mov r10, gs:[r11 + {FNODE}]
mov r10d, [r10 + {EXTENSION}]
test r10d, r10d
jz 147f
shl r10, 7
add r10, gs:[{NODES}]
movzx eax, al
mov r10, [r10 + rax * 8 - 128]
test r10b, 1
jnz 148f
149: test r10, r10
jz \rest
NUMBER \timed
cmp [r10 + {FUNCTION}], eax
je \found
jmp \rest
148: # one level deeper
NUMBER \timed
shr eax, 8
movzx eax, al
mov r10, [r10 + rax * 8 - 1]
test r10b, 1
jz 149b
jmp \rest
147: mov r10, gs:[r11 + {FNODE}]
shr eax, 3
and eax, 7
mov r10, [r10 + rax * 8 + {CHILDREN}]
NUMBER \timed
cmp [r10 + {FUNCTION}], eax
je \found
.endm

# ---- a call that is counted and not timed, in the plain case: done, and back to the stub. In all others everything is as it was, and the
# general way goes on behind this. \timed: in a recording that times; r10 and r11 are the registers that are needed least at an entry.
.macro COUNT name, timed, flags, loops
TOP_FRAME \loops, \name\()_jumped, \name\()_rest
mov r10, gs:[r11 + {FNODE}]
mov rax, [rsp]
mov eax, [rax + 3]
and eax, 7
mov r10, [r10 + rax * 8 + {CHILDREN}]
NUMBER \timed
cmp [r10 + {FUNCTION}], eax
jne \name\()_second
44:
.if \timed
SKIP_SAMPLED \name\()_rest
.endif
lea rax, [rsp - 8 + 128 * \loops]
48: PUSH_COUNTED \timed, \flags
\name\()_second:
OTHER_PLACES \timed, 44b, \name\()_rest
jmp \name\()_rest
\name\()_jumped: # the frame on top has jumped here: it stays, no longer pending, and the new one returns for both
cmp r10, -7
je 43f
cmp r10, -5
jne \name\()_rest
43: NUMBER \timed
mov r10, gs:[r11 + {FNODE}]
and eax, 7
mov r10, [r10 + rax * 8 + {CHILDREN}]
NUMBER \timed
cmp [r10 + {FUNCTION}], eax
je 42f
OTHER_PLACES \timed, 42f, \name\()_rest
jmp \name\()_rest
42:
.if \timed
SKIP_SAMPLED \name\()_rest
.endif
and qword ptr gs:[r11 + {KEY}], -2
lea rax, [rsp - 6 + 128 * \loops]
jmp 48b
\name\()_rest:
mov r11, [rsp - 24]
mov r10, [rsp - 16]
.endm

# ---- entry: rsp == sp - 8, function number behind the call. A function that jumps back to its entry may have live
# data in its red zone then: with `loops` the stub has moved rsp down by 128 first. \python: CPython's evaluator, whose
# call is that of the Python function that it runs.
.macro ENTRY name, clock, flags, loops, sites=0, go=0, rec=0, stopped=0, python=0, frozen=tw_base
PROBE \name, \frozen
.globl \name
.balign 64
\name:
mov [rsp - 8], rax
KEEP_FLAGS \flags, 40
.if (1 - \sites) * (1 - \go) * (1 - \rec) * (1 - \stopped) * (1 - \python)
# the plain case of a call that is not timed, first
.if \clock
mov rax, [rsp]
cmp dword ptr [rax + 3], 0
jge \name\()_timed
.endif
COUNT \name, \clock, \flags, \loops
\name\()_timed:
.endif
mov [rsp - 16], rdx
mov [rsp - 24], rcx
mov [rsp - 32], rsi
.if \sites
mov [rsp - 48], rdi
.endif
.if \python
PYTHON_NUMBER 9f
.endif
.if \sites
mov rdi, [rsp + 8 + 128 * \loops]
.endif
.if \python
mov rax, fs:[0]
cmp rax, gs:[{OWNER}]
.else
mov rsi, [rsp]
.if \go
mov esi, [rsi + 3]
cmp r14, gs:[{GOROUTINE}]
.else
mov rax, fs:[0]
mov esi, [rsi + 3]
cmp rax, gs:[{OWNER}]
.endif
.endif
jne 9f
.if \rec
mov rcx, gs:[{RULES}]
movzx edx, byte ptr [rcx + rsi * 2]
test edx, edx
jnz 30f
.endif
31: xor ecx, ecx
mov rcx, gs:[rcx + {TOP}]
mov rdx, gs:[rcx + {KEY}]
cmp rcx, gs:[{LIMIT}]
jae 9f
sub rdx, rsp
.if \loops
sub rdx, 128
.endif
.if \go
add rdx, [r14 + {STACK_END}]
.endif
cmp rdx, {WINDOW}
ja 7f
mov rdx, gs:[rcx + {FNODE}]
.if \stopped
jmp 16f
.else
FIRST_PLACE \sites
COMPARE \sites, 6f
2:  mov rdx, rsi
shr rdx, 32
lea rdx, [rsp + rdx - 8]        # key of the new frame
.if \loops
sub rdx, -128
.endif
.if \go
sub rdx, [r14 + {STACK_END}]
.endif
add rcx, 32
mov gs:[{TOP}], rcx
mov gs:[rcx + {FNODE}], rax
mov gs:[rcx + {KEY}], rdx
inc qword ptr [rax + {CALLS}]
.if \clock
.if \rec
COUNTER
mov rdx, gs:[{SLOW}]
mov gs:[rcx + {SIDE_ENTRY}], rax
mov gs:[rcx + {SIDE_SLOW}], rdx
sub rax, gs:[{OFF}]
.else
TICKS
.endif
mov rdx, rax
sub rdx, gs:[{LAST}]
mov gs:[rcx + {START}], rax
mov qword ptr gs:[rcx + {CHILD}], 0
mov gs:[{LAST}], rax
cmp rdx, gs:[{GAP}]
jg 14f
.endif
.endif
3:  GIVE_FLAGS \flags, 40
.if \sites
mov rdi, [rsp - 48]
.endif
mov rsi, [rsp - 32]
mov rcx, [rsp - 24]
mov rdx, [rsp - 16]
mov rax, [rsp - 8]
ret
.if \stopped == 0
6:
.if \clock * (1 - \rec)
test esi, esi
js 16f
.endif
REST_PLACES \sites, 5f, 9f
5:  bt rsi, 33
jnc 2b
and qword ptr gs:[rcx + {KEY}], -2
jmp 2b
.endif
.if \go
7:
.else
7:  # at the place of the frame on top: the target of its tail jump, a loop to the entry, or a frame left behind
cmp rdx, -7
je 8f
cmp rdx, -5
je 8f
.if \loops
or rdx, 2
cmp rdx, -6
jne 9f
mov rax, gs:[rcx + {FNODE}]
mov edx, esi
.if \clock
and edx, {MODE_FUNCTION}
.endif
cmp [rax + {FUNCTION}], edx
je 3b
.endif
jmp 9f
8:  # the frame on top stays, no longer pending; the new one is marked as reached by a tail jump
bts rsi, 33
mov rdx, gs:[rcx + {FNODE}]
.if \sites
# a handler that came between the jump and this entry may have jumped too
lea rdi, [rsp + 128 * \loops]
cmp rdi, gs:[{JUMPED_AT}]
mov rdi, gs:[{JUMPED_FROM}]
je 13f
xor edi, edi
13:
.endif
.if \stopped
jmp 16f
.else
FIRST_PLACE \sites
COMPARE \sites, 6b
jmp 5b
.endif
.endif
9:  mov ecx, esi
lea rsi, [rsp + 8]
.if \loops
sub rsi, -128
.endif
.if \go * \rec
.if \sites
mov rdi, [rsp - 48]
.endif
SLOW_GO tw_go_entry_r, 1, 1
.elseif \go
SLOW_GO tw_go_entry, 1
.elseif \rec
.if \loops
bts rcx, 32
.endif
.if \sites
mov rdi, [rsp - 48]
.endif
SLOW_CALL tw_slow_entry_r, 1
.else
mov edx, \loops
SLOW_CALL tw_slow_entry
.endif
jmp 3b
.if \clock * (1 - \stopped)
14: # long after the last event: the caller may have waited
mov rcx, rax
mov rsi, rdx
.if \go
SLOW_GO tw_slow_gap_entry, 0
.else
SLOW_CALL tw_slow_gap_entry
.endif
jmp 3b
.endif
.if \clock * (1 - \rec)
16: # a function whose calls are not timed, or one now and then; without a clock (`stopped`) every call
btr rsi, {UNTIMED_BIT}
btr rsi, {SAMPLED_BIT}
.if \stopped == 0
jnc 17f
dec qword ptr gs:[{COUNTDOWN}]
jns 17f
movabs rax, {SEED_FACTOR}
imul rax, gs:[{SEED}]
inc rax
mov gs:[{SEED}], rax
shr rax, {SEED_SHIFT}
mov gs:[{COUNTDOWN}], rax
FIRST_PLACE \sites
COMPARE \sites, 6b
jmp 5b
.endif
17: FIRST_PLACE \sites
COMPARE \sites, 18f
jmp 19f
18: REST_PLACES \sites, 19f, 21f
19: bt rsi, 33
jnc 20f
and qword ptr gs:[rcx + {KEY}], -2
20: mov rdx, rsi
shr rdx, 32
lea rdx, [rsp + rdx - 8]
.if \loops
sub rdx, -128
.endif
.if \go
sub rdx, [r14 + {STACK_END}]
.endif
add rcx, 32
mov gs:[{TOP}], rcx
mov gs:[rcx + {FNODE}], rax
mov qword ptr gs:[rcx + {START}], 0
mov qword ptr gs:[rcx + {CHILD}], 0
mov gs:[rcx + {KEY}], rdx
inc qword ptr [rax + {CALLS}]
shr rax, 2
add rax, gs:[{UNTIMED}]
inc qword ptr [rax]
jmp 3b
21: bts rsi, {UNTIMED_BIT}
jmp 9b
.endif
.if \rec
30: # a rule wants to hear of it, perhaps only with certain arguments, or of its end
cmp edx, {ASK}
je 9b
.if \go
# a goroutine moves from thread to thread: nothing is saved for the end of a call, and no filter is made for its registers
cmp edx, {WATCH}
jne 9b
bts rsi, 34
jmp 31b
.else
cmp edx, {FIRST_FILTER}
jb 33f
.if \sites == 0
mov [rsp - 48], rdi
.endif
mov [rsp - 56], r8
mov [rsp - 64], r9
shl edx, {FILTER_SHIFT}
add rdx, rcx
test byte ptr [rdx - {FILTERS} + {FILTER_KIND}], {NEEDS_FLOATS}
jz 32f
movlps [rsp - 72], xmm0
movlps [rsp - 80], xmm1
movlps [rsp - 88], xmm2
movlps [rsp - 96], xmm3
movlps [rsp - 104], xmm4
movlps [rsp - 112], xmm5
movlps [rsp - 120], xmm6
movlps [rsp - 128], xmm7
32: DECIDE \loops
cmp edx, {ASK}
je 9b
33: # beside the frame to come stands what is known of it; if its end is looked at it is marked
mov rcx, gs:[{TOP}]
cmp edx, {SAVE}
jae 35f
shr edx, 1
34: mov gs:[rcx + 32 + {SIDE_WATCH}], rdx
test dl, {WATCHED}
jz 31b
bts rsi, 34
jmp 31b
35: cmp edx, {NAMES_EXIT}
jae 37f
sub edx, {SAVE} - {ARGUMENTS_SAVED}
36: # what it is called with, for its end (shm::record::Saved); a handler that comes meanwhile may save its own there
cmp rcx, gs:[{SAVED_LIMIT}]
jae 9b
lea rax, [rcx * 4]
add rax, gs:[{SAVED}]
lea rcx, [rsp + 8 + 128 * \loops]
mov [rax], rcx
.if \sites
mov rcx, [rsp - 48]
mov [rax + 8], rcx
.else
mov [rax + 8], rdi
.endif
mov rcx, [rsp - 32]
mov [rax + 16], rcx
mov rcx, [rsp - 16]
mov [rax + 24], rcx
mov rcx, [rsp - 24]
mov [rax + 32], rcx
mov [rax + 40], r8
mov [rax + 48], r9
test dl, {FLOATS_SAVED}
jz 38f
movlps [rax + 56], xmm0
movlps [rax + 64], xmm1
movlps [rax + 72], xmm2
movlps [rax + 80], xmm3
movlps [rax + 88], xmm4
movlps [rax + 96], xmm5
movlps [rax + 104], xmm6
movlps [rax + 112], xmm7
38: mov ecx, esi
mov [rax + 120], rcx
lea rcx, [rsp + 8 + 128 * \loops]
cmp [rax], rcx
jne 9b
mov rcx, gs:[{TOP}]
jmp 34b
37: # with these arguments its end is looked at in a way of its own
mov eax, edx
movzx ecx, dl
shl ecx, 8
or ecx, {WATCHED}
lea rdx, [rsp + 8 + 128 * \loops]
shl rdx, 32
or rdx, rcx
mov rcx, gs:[{TOP}]
shr eax, 8
and eax, {ARGUMENTS_SAVED} + {FLOATS_SAVED}
jz 34b
or rdx, rax
jmp 36b
.endif
.endif
.endm

# ---- entries that are counted, a copy for each first place that a callee may have: the plain case alone, the rest is in \general. What a
# function's branches do is told better by a place that fewer functions share.
.macro ENTRY_AT name, timed, place, loops, general, frozen=tw_base
PROBE \name, \frozen
.globl \name
.balign 64
\name:
mov [rsp - 8], rax
.if \timed
mov rax, [rsp]
mov eax, [rax + 3]
btr eax, {UNTIMED_BIT}
jnc \general\()_timed
.endif
TOP_FRAME \loops, \general\()_jumped, \general\()_rest
mov r10, gs:[r11 + {FNODE}]
.if \timed
btr eax, {SAMPLED_BIT}
jc 2f
.else
NUMBER 0
.endif
mov r10, [r10 + \place * 8 + {CHILDREN}]
cmp [r10 + {FUNCTION}], eax
jne \general\()_second
1: lea rax, [rsp - 8 + 128 * \loops]
PUSH_COUNTED \timed, 0
.if \timed
2: mov r10, [r10 + \place * 8 + {CHILDREN}]
cmp [r10 + {FUNCTION}], eax
jne \general\()_second
cmp qword ptr gs:[{COUNTDOWN}], 0
je \general\()_rest
dec qword ptr gs:[{COUNTDOWN}]
jmp 1b
.endif
.endm
