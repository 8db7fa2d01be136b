//! The hot path: what a stub calls at every entry, exit and tail jump. Hand-written, because a compiler would use
//! registers that the interrupted function still needs.
//!
//! ```text
//! entry stub                        stack when tw_entry_* runs
//!   call tw_entry_*                  sp      -> return address of the probed function
//!   nop dword [rax+FUNCTION]         sp - 8  -> return address into the stub   <- rsp
//!   displaced instructions           sp - 16 .. saved registers, in the red zone that a signal handler leaves alone
//!   jmp back                        (at an entry nothing lives below sp; right before a ret nothing does any more)
//!
//! exit stub: displaced instructions; jmp tw_return_*   (the ret is in the probe: rsp == sp)
//!            displaced instructions; call tw_exit_*; ret 8 | jmp thunk | jmp unprobed
//! tail stub: call tw_tail_mark; jmp probed             or, the target stored at [sp - 24]:
//!            call tw_tail_unknown; jmp *...
//! gate:      call tw_gate; nop dword [rax+KIND and FUNCTION]; then an entry stub, if the function is counted
//! Go:        the same, with r14 for whose goroutine it is and keys relative to the end of its stack; and where a goroutine
//!            leaves its thread: call tw_go_leave_*; where it gets one: call tw_go_arrive
//! alloc:     an entry stub's call, then call tw_alloc; nop dword [rax+KIND]; exits by the variants with an `a`
//! kernel:    displaced instructions; call tw_kernel; nop dword [rax+FUNCTION]; jmp to the `syscall` instruction, which stays: one more of the number in eax
//! elsewhere: displaced instructions; call tw_switch; nop dword [rax+KIND and FUNCTION]; ret | jmp *...
//! ```
//!
//! Every register is preserved; the flags too in the variants with an `f`. `t` reads the clock, unless two bits of the function's
//! number say otherwise (`shm::MODE_UNTIMED`; not with an `r`), `c` only counts, `l` is for functions that jump back to their own
//! entry. Those with an `a` end what an allocator began. The variants with an `s` tell contexts apart by call site: the return
//! address is part of what a callee is looked for by. Whatever is not the plain case goes to the slow path in Rust.
//!
//! The variants with an `r` are for recordings of single calls: an entry looks up whether a rule wants to hear of the function, with these arguments or
//! of its end, saves what it is called with where only the end will tell, and notes the counter beside the frame; an exit compares how long the call took with the least that any rule asks for, and its results
//! where the entry has marked the frame for that.
//!
//! Order of the stores at an entry: a signal handler may run probes between any two instructions. The frame is filled
//! before the bump (so that a handler that sees it finds it whole) and once more after it (a handler that ran
//! in between has used the same place).

use core::arch::global_asm;
use thalweg_shm as shm;

global_asm!(
    r#"
    .section .text.tw_head,"ax",@progbits
    .globl tw_base
tw_base:
    .quad 0                         # address of the region, written by the controller

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
    # In: rcx and rsi the arguments, r14 the goroutine. Clobbers rax, rcx, rdx, rsi.
    .macro SLOW_GO fn, claims
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
    ON_STACK \fn
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
    mov eax, {SCHED_YIELD}
    syscall
    dec dword ptr [rsp - 72]
    jnz 71b
    jmp 79f
72: lea rax, [r11 + {CLAIM_STACK_END}]
    ON_STACK \fn
    mov r11, [rip + tw_base]
    mov dword ptr [r11 + {CLAIM_LOCK}], 0
    .endif
79: mov r11, [rsp - 64]
    mov rdi, [rsp - 56]
    .endm

    # Calls \fn(rdi, rsi, r14) on the stack that ends at rax.
    .macro ON_STACK fn
    mov [rax - 8], rsp
    lea rsp, [rax - 8]
    push r8
    push r9
    push r10
    KEEP_VECTORS
    mov rdx, r14
    cld
    call \fn
    GIVE_VECTORS
    add rsp, 256
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
    # The thread's clock -> rax; clobbers rdx
    .macro TICKS
    COUNTER
    sub rax, gs:[{OFF}]
    .endm
    .macro COUNTER
    rdtsc
    shl rdx, 32
    or rax, rdx
    .endm
    # The counter is at rax: to \long if the frame at gs:rcx began long enough before that; clobbers rdx
    .macro IS_LONG counter, long
    mov rdx, \counter
    sub rdx, gs:[rcx + {SIDE_ENTRY}]
    cmp rdx, gs:[{THRESHOLD}]
    ja \long
    .endm

    # ---- the place of a callee where sites are told apart: function in esi, site in rdi -> hash in eax
    .macro SITE_HASH
    mov eax, esi
    rol eax, {SITE_TURN}
    add eax, edi
    imul eax, eax, {SITE_FACTOR}
    .endm
    # hash in eax -> address of the child in rax
    .macro SITE_CHILD
    imul rax, rax, {SITE_SLOT}
    shr rax, 32
    mov rax, [rdx + rax * 8 + {CHILDREN}]
    .endm
    # not the callee that is looked for: to \other
    .macro COMPARE sites, other
    cmp [rax + {FUNCTION}], esi
    jne \other
    .if \sites
    cmp [rax + {SITE}], rdi
    jne \other
    .endif
    .endm
    .macro FIRST_PLACE sites
    .if \sites
    SITE_HASH
    SITE_CHILD
    .else
    mov eax, esi
    and eax, 7
    mov rax, [rdx + rax * 8 + {CHILDREN}]
    .endif
    .endm

    # ---- the callee esi, rdi of the node rdx was not in its first place: the second, then the table of all children.
    # To \found with the child in rax, or to \other.
    .macro REST_PLACES sites, found, other
    .if \sites
    SITE_HASH
    rol eax, 16
    SITE_CHILD
    .else
    mov eax, esi
    shr eax, 3
    and eax, 7
    mov rax, [rdx + rax * 8 + {CHILDREN}]
    .endif
    .if \sites
    COMPARE 1, 12f
    jmp \found
    .else
    cmp [rax + {FUNCTION}], esi
    je \found
    .endif
12: mov edx, [rdx + {EXTENSION}]
    test edx, edx
    jz \other
    shl rdx, 7
    add rdx, gs:[{NODES}]
    sub rdx, 128
    .if \sites
    SITE_HASH
    movzx eax, al
    .else
    movzx eax, sil
    .endif
    mov rax, [rdx + rax * 8]
    test al, 1
    jnz 4f
    test rax, rax
    jz \other
    COMPARE \sites, \other
    jmp \found
4:  # one level deeper
    lea rdx, [rax - 1]
    .if \sites
    SITE_HASH
    .else
    mov eax, esi
    .endif
    shr eax, 8
    movzx eax, al
    mov rax, [rdx + rax * 8]
    test al, 1
    jnz \other
    test rax, rax
    jz \other
    COMPARE \sites, \other
    .endm

    # ---- the comparisons of a function (shm::rules::Filter) from the one at rdx on -> what they come to in edx, below FIRST_FILTER or from NAMES_EXIT on.
    # Registers lie below rsp; what the caller has put on the stack is farther up with \loops, and is there for certain only on the page that
    # rsp is on. Clobbers rax and rcx.
    .macro DECIDE loops
40: movsx rax, word ptr [rdx - {FILTERS} + {FILTER_PLACE}]
    test rax, rax
    js 41f
    .if \loops
    sub rax, -128
    .endif
    lea rcx, [rsp + rax + 7]
    xor rcx, rsp
    test rcx, -4096
    jnz 47f
41: mov cl, [rdx - {FILTERS} + {FILTER_CUT}]
    mov rax, [rsp + rax]
    and rax, [rdx - {FILTERS} + {FILTER_MASK}]
    shl rax, cl
    test byte ptr [rdx - {FILTERS} + {FILTER_KIND}], {FLOAT} + {TWO}
    jnz 44f
42: sub rax, [rdx - {FILTERS} + {FILTER_LOW}]
    cmp rax, [rdx - {FILTERS} + {FILTER_SPAN}]
    ja 43f
48: movzx edx, word ptr [rdx - {FILTERS} + {FILTER_MET}]
    lea eax, [rdx - {FIRST_FILTER}]
    cmp eax, {NAMES_EXIT} - {FIRST_FILTER}
    jae 46f
    jmp 45f
43: movzx edx, word ptr [rdx - {FILTERS} + {FILTER_OTHER}]
    lea eax, [rdx - {FIRST_FILTER}]
    cmp eax, {NAMES_EXIT} - {FIRST_FILTER}
    jae 46f
45: shl edx, {FILTER_SHIFT}
    add rdx, gs:[{RULES}]
    jmp 40b
44: test byte ptr [rdx - {FILTERS} + {FILTER_KIND}], {TWO}
    jnz 58f
    # those below zero are turned around, the others lie above them
    mov rcx, rax
    sar rcx, 63
    bts rcx, 63
    xor rax, rcx
    jmp 42b
58: # with another word
    movsx rcx, word ptr [rdx - {FILTERS} + {FILTER_LOW}]
    mov rcx, [rsp + rcx]
    test byte ptr [rdx - {FILTERS} + {FILTER_KIND}], {NARROW}
    jz 59f
    shl rcx, 32
59: test byte ptr [rdx - {FILTERS} + {FILTER_KIND}], {SIGNED}
    jz 60f
    btc rax, 63
    btc rcx, 63
60: test byte ptr [rdx - {FILTERS} + {FILTER_KIND}], {EQUAL}
    jz 61f
    sub rax, rcx
    xor ecx, ecx
61: cmp rax, rcx
    ja 43b
    jmp 48b
47: mov edx, {ASK}
46:
    .endm

    # ---- entry: rsp == sp - 8, function number behind the call. A function that jumps back to its entry may have live
    # data in its red zone then: with `loops` the stub has moved rsp down by 128 first.
    .macro ENTRY name, clock, flags, loops, sites=0, go=0, rec=0
    .globl \name
    .balign 64
\name:
    mov [rsp - 8], rax
    KEEP_FLAGS \flags, 40
    mov [rsp - 16], rdx
    mov [rsp - 24], rcx
    mov [rsp - 32], rsi
    .if \sites
    mov [rsp - 48], rdi
    mov rdi, [rsp + 8 + 128 * \loops]
    .endif
    mov rsi, [rsp]
    .if \go
    mov esi, [rsi + 3]
    cmp r14, gs:[{GOROUTINE}]
    .else
    mov rax, fs:[0]
    mov esi, [rsi + 3]
    cmp rax, gs:[{OWNER}]
    .endif
    jne 9f
    .if \rec
    mov rcx, gs:[{RULES}]
    movzx edx, byte ptr [rcx + rsi * 2]
    test edx, edx
    jnz 30f
    .endif
31: mov rcx, gs:[{TOP}]
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
    mov gs:[rcx + 32 + {KEY}], rdx
    mov gs:[rcx + 32 + {FNODE}], rax
    add rcx, 32
    mov gs:[{TOP}], rcx
    mov gs:[rcx + {KEY}], rdx
    mov gs:[rcx + {FNODE}], rax
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
3:  GIVE_FLAGS \flags, 40
    .if \sites
    mov rdi, [rsp - 48]
    .endif
    mov rsi, [rsp - 32]
    mov rcx, [rsp - 24]
    mov rdx, [rsp - 16]
    mov rax, [rsp - 8]
    ret
6:
    .if \clock * (1 - \go) * (1 - \rec)
    test esi, esi
    js 16f
    .endif
    REST_PLACES \sites, 5f, 9f
5:  bt rsi, 33
    jnc 2b
    and qword ptr gs:[rcx + {KEY}], -2
    jmp 2b
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
    FIRST_PLACE \sites
    COMPARE \sites, 6b
    jmp 5b
    .endif
9:  mov ecx, esi
    lea rsi, [rsp + 8]
    .if \loops
    sub rsi, -128
    .endif
    .if \go
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
    .if \clock
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
    .if \clock * (1 - \go) * (1 - \rec)
16: # a function whose calls are not timed, or one now and then
    btr rsi, {UNTIMED_BIT}
    btr rsi, {SAMPLED_BIT}
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
    mov gs:[rcx + 32 + {KEY}], rdx
    mov gs:[rcx + 32 + {FNODE}], rax
    add rcx, 32
    mov gs:[{TOP}], rcx
    mov gs:[rcx + {KEY}], rdx
    mov gs:[rcx + {FNODE}], rax
    mov qword ptr gs:[rcx + {START}], 0
    mov qword ptr gs:[rcx + {CHILD}], 0
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
    .endm

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
    mov rax, gs:[rcx + {FNODE}]
    add gs:[rcx - 32 + {CHILD}], rdx
    add [rax + {CUM}], rdx
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

    # ---- exit: \bias is key - rsp for a plain frame: -16 with rsp == sp, -8 when called
    .macro EXIT name, clock, flags, bias, go=0, rec=0, alloc=0
    .globl \name
    .balign 64
\name:
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
    .if \clock * \go
    TICKS
    .elseif \rec
    COUNTER
    .endif
    .if \go
    cmp r14, gs:[{GOROUTINE}]
    jne 7f
    .endif
    mov rcx, gs:[{TOP}]
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
    .if (1 - \go) * (1 - \rec)
    cmp qword ptr gs:[rcx + {START}], 0
    je 28f
    TICKS
    .endif
    mov rdx, rax
    sub rdx, gs:[{LAST}]
    cmp rdx, gs:[{GAP}]
    jg 14f
    .endif
2:  POP_FRAME \clock
3:  GIVE_FLAGS \flags, 40
    mov rcx, [rsp - 24]
    mov rdx, [rsp - 16]
    .if \clock + \flags
    mov rax, [rsp - 8]
    .endif
    ret
7:  mov [rsp - 32], rsi
    .if \rec
    cmp rdx, \bias + 4
    je 50f
51: sub rax, gs:[{OFF}]
    .endif
    .if \go == 0
    cmp rdx, \bias + 2
    jne 9f
    .if \clock
    .if \rec == 0
    TICKS
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
    .if \go
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
    .if \rec == 0
28: POP_UNTIMED
    jmp 3b
    .endif
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

    # ---- tail jump: rsp == sp - 8
    .macro TAIL name, flags, unknown, sites=0
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
    mov rcx, gs:[{TOP}]
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
    and rdx, gs:[{MASK}]
    mov rsi, gs:[{TABLE}]
    cmp [rsi + rdx * 8], rax
    jne 9f
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
    .endm

    # ---- a goroutine is about to leave its thread: rsp == sp - 8. \own: r14 is that goroutine, else the scheduler's.
    .macro LEAVE name, own
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
    SLOW_GO tw_go_leave, 0
    mov rsi, [rsp - 32]
    mov rcx, [rsp - 24]
    mov rdx, [rsp - 16]
    mov rax, [rsp - 8]
3:  ret
    .endm

    # ---- the scheduler is about to run a goroutine (runtime.gogo): its return address is at rsp + 8, and then what tells whom
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

    # ---- exit to another stack or past callers: rsp is 136 below what the instruction that leaves will find, clear of
    # whatever lives in the red zone there.
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

    ENTRY tw_entry_t, 1, 0, 0
    EXIT tw_return_t, 1, 0, -16
    ENTRY tw_entry_c, 0, 0, 0
    EXIT tw_return_c, 0, 0, -16
    EXIT tw_exit_t, 1, 0, -8
    EXIT tw_exit_c, 0, 0, -8
    TAIL tw_tail_mark, 0, 0
    TAIL tw_tail_unknown, 0, 1
    ENTRY tw_entry_tl, 1, 0, 1
    ENTRY tw_entry_cl, 0, 0, 1
    ENTRY tw_entry_tf, 1, 1, 0
    ENTRY tw_entry_cf, 0, 1, 0
    ENTRY tw_entry_tfl, 1, 1, 1
    ENTRY tw_entry_cfl, 0, 1, 1
    EXIT tw_return_tf, 1, 1, -16
    EXIT tw_return_cf, 0, 1, -16
    EXIT tw_exit_tf, 1, 1, -8
    EXIT tw_exit_cf, 0, 1, -8
    TAIL tw_tail_mark_f, 1, 0
    TAIL tw_tail_unknown_f, 1, 1
    ENTRY tw_entry_ts, 1, 0, 0, 1
    ENTRY tw_entry_cs, 0, 0, 0, 1
    ENTRY tw_entry_tls, 1, 0, 1, 1
    ENTRY tw_entry_cls, 0, 0, 1, 1
    ENTRY tw_entry_tfs, 1, 1, 0, 1
    ENTRY tw_entry_cfs, 0, 1, 0, 1
    ENTRY tw_entry_tfls, 1, 1, 1, 1
    ENTRY tw_entry_cfls, 0, 1, 1, 1
    ENTRY tw_entry_tr, 1, 0, 0, 0, 0, 1
    EXIT tw_return_tr, 1, 0, -16, 0, 1
    EXIT tw_exit_tr, 1, 0, -8, 0, 1
    ENTRY tw_entry_tlr, 1, 0, 1, 0, 0, 1
    ENTRY tw_entry_tfr, 1, 1, 0, 0, 0, 1
    ENTRY tw_entry_tflr, 1, 1, 1, 0, 0, 1
    EXIT tw_return_tfr, 1, 1, -16, 0, 1
    EXIT tw_exit_tfr, 1, 1, -8, 0, 1
    ENTRY tw_entry_tsr, 1, 0, 0, 1, 0, 1
    ENTRY tw_entry_tlsr, 1, 0, 1, 1, 0, 1
    ENTRY tw_entry_tfsr, 1, 1, 0, 1, 0, 1
    ENTRY tw_entry_tflsr, 1, 1, 1, 1, 0, 1
    TAIL tw_tail_mark_s, 0, 0, 1
    TAIL tw_tail_unknown_s, 0, 1, 1
    TAIL tw_tail_mark_fs, 1, 0, 1
    TAIL tw_tail_unknown_fs, 1, 1, 1
    ENTRY tw_go_entry_t, 1, 0, 0, 0, 1
    ENTRY tw_go_entry_ts, 1, 0, 0, 1, 1
    EXIT tw_go_return_t, 1, 0, -16, 1
    ENTRY tw_go_entry_c, 0, 0, 0, 0, 1
    ENTRY tw_go_entry_cs, 0, 0, 0, 1, 1
    EXIT tw_go_return_c, 0, 0, -16, 1
    GATE tw_gate, tw_slow_gate, 0
    GATE tw_alloc, tw_slow_alloc, 1
    EXIT tw_return_ta, 1, 0, -16, 0, 0, 1
    EXIT tw_return_ca, 0, 0, -16, 0, 0, 1
    EXIT tw_return_tfa, 1, 1, -16, 0, 0, 1
    EXIT tw_return_cfa, 0, 1, -16, 0, 0, 1
    EXIT tw_exit_ta, 1, 0, -8, 0, 0, 1
    EXIT tw_exit_ca, 0, 0, -8, 0, 0, 1
    EXIT tw_exit_tfa, 1, 1, -8, 0, 0, 1
    EXIT tw_exit_cfa, 0, 1, -8, 0, 0, 1
    EXIT tw_return_tra, 1, 0, -16, 0, 1, 1
    EXIT tw_return_tfra, 1, 1, -16, 0, 1, 1
    EXIT tw_exit_tra, 1, 0, -8, 0, 1, 1
    EXIT tw_exit_tfra, 1, 1, -8, 0, 1, 1
    KERNEL tw_kernel, 0
    KERNEL tw_kernel_s, 1
    LEAVE tw_go_leave_own, 1
    LEAVE tw_go_leave_any, 0
"#,
    OWNER = const shm::PRIVATE_OWNER,
    TOP = const shm::PRIVATE_TOP,
    LIMIT = const shm::PRIVATE_LIMIT,
    TABLE = const shm::PRIVATE_TABLE,
    MASK = const shm::PRIVATE_TABLE_MASK,
    NODES = const shm::PRIVATE_NODES,
    LAST = const shm::SHARED_FROM_GS + shm::SHARED_LAST,
    OFF = const shm::SHARED_FROM_GS + shm::SHARED_OFF,
    GAP = const shm::SHARED_FROM_GS + shm::SHARED_GAP,
    SLOW = const shm::SHARED_FROM_GS + shm::SHARED_SLOW,
    THRESHOLD = const shm::SHARED_FROM_GS + shm::record::STATE_OFFSET + shm::record::STATE_THRESHOLD,
    SIDE_ENTRY = const shm::record::SIDE_ENTRY,
    SIDE_SLOW = const shm::record::SIDE_SLOW,
    SIDE_WATCH = const shm::record::SIDE_WATCH,
    RULES = const shm::PRIVATE_RULES,
    ASK = const shm::rules::ASK,
    FILTERS = const shm::rules::FILTERS * shm::rules::FILTER_SIZE,
    FILTER_SHIFT = const shm::rules::FILTER_SIZE.trailing_zeros(),
    SAVE = const shm::rules::SAVE,
    WATCHED = const shm::record::WATCHED,
    ARGUMENTS_SAVED = const shm::record::ARGUMENTS_SAVED,
    SAVED = const shm::SHARED_FROM_GS + shm::record::STATE_OFFSET + shm::record::STATE_SAVED,
    SAVED_LIMIT = const shm::SHARED_FROM_GS + shm::record::STATE_OFFSET + shm::record::STATE_SAVED_LIMIT,
    FIRST_FILTER = const shm::rules::FIRST_FILTER,
    FILTER_PLACE = const core::mem::offset_of!(shm::rules::Filter, place),
    FILTER_KIND = const core::mem::offset_of!(shm::rules::Filter, kind),
    FILTER_MASK = const core::mem::offset_of!(shm::rules::Filter, mask),
    FILTER_MET = const core::mem::offset_of!(shm::rules::Filter, met),
    FILTER_OTHER = const core::mem::offset_of!(shm::rules::Filter, other),
    FLOAT = const shm::rules::FILTER_FLOAT,
    TWO = const shm::rules::FILTER_TWO,
    NARROW = const shm::rules::FILTER_NARROW,
    SIGNED = const shm::rules::FILTER_SIGNED,
    EQUAL = const shm::rules::FILTER_EQUAL,
    NAMES_EXIT = const shm::rules::NAMES_EXIT,
    FLOATS_SAVED = const shm::record::FLOATS_SAVED,
    NEEDS_TIME = const shm::rules::FILTER_NEEDS_TIME,
    NEEDS_FLOATS = const shm::rules::FILTER_NEEDS_FLOATS,
    NEEDS_ERRNO = const shm::rules::FILTER_NEEDS_ERRNO,
    RULES_TABLE = const shm::rules::TABLE_OFFSET,
    ERRNO_OFFSET = const core::mem::offset_of!(shm::rules::Head, errno_offset),
    FILTER_CUT = const core::mem::offset_of!(shm::rules::Filter, cut),
    FILTER_LOW = const core::mem::offset_of!(shm::rules::Filter, low),
    FILTER_SPAN = const core::mem::offset_of!(shm::rules::Filter, span),
    GOROUTINE = const shm::PRIVATE_GOROUTINE,
    GO_MACHINE = const shm::PRIVATE_GO_MACHINE,
    GO_THREAD = const shm::PRIVATE_GO_THREAD,
    GO_STACK = const shm::PRIVATE_GO_STACK,
    GO_BUSY = const shm::PRIVATE_GO_BUSY,
    STACK_END = const shm::G_STACK_END,
    MACHINE = const shm::G_MACHINE,
    GOBUF_G = const shm::GOBUF_G,
    CLAIM_LOCK = const shm::CLAIM_LOCK,
    CLAIM_STACK_END = const shm::CLAIM_STACK_END,
    SCHED_YIELD = const shm::calls::SCHED_YIELD,
    WINDOW = const shm::WINDOW,
    KEY = const shm::FRAME_KEY,
    FNODE = const shm::FRAME_NODE,
    START = const shm::FRAME_START,
    CHILD = const shm::FRAME_CHILD,
    CALLS = const shm::NODE_CALLS,
    CUM = const shm::NODE_CUM,
    BASE = const shm::NODE_BASE,
    MIN = const shm::NODE_MIN,
    MAX = const shm::NODE_MAX,
    FUNCTION = const shm::NODE_FUNCTION,
    EXTENSION = const shm::NODE_EXTENSION,
    CHILDREN = const shm::NODE_CHILDREN,
    SITE = const shm::NODE_SITE,
    SITE_SLOT = const shm::SITE_SLOT,
    SITE_TURN = const shm::SITE_TURN,
    SITE_FACTOR = const shm::SITE_FACTOR as i32,
    JUMPED_FROM = const shm::PRIVATE_JUMPED_FROM,
    JUMPED_AT = const shm::PRIVATE_JUMPED_AT,
    ALLOC_AT = const shm::PRIVATE_ALLOC_AT,
    ALLOC_KIND = const shm::PRIVATE_ALLOC_KIND,
    FREE = const shm::alloc::kind::FREE,
    NO_FUNCTION = const shm::NO_FUNCTION as i32,
    KERNEL_FIRST = const shm::kernel::FIRST,
    KERNEL_LAST = const shm::kernel::LAST,
    UNTIMED_BIT = const shm::MODE_UNTIMED.trailing_zeros(),
    SAMPLED_BIT = const shm::MODE_SAMPLED.trailing_zeros(),
    MODE_FUNCTION = const shm::MODE_FUNCTION,
    UNTIMED = const shm::PRIVATE_UNTIMED,
    COUNTDOWN = const shm::PRIVATE_COUNTDOWN,
    SEED = const shm::PRIVATE_SEED,
    SEED_FACTOR = const shm::SEED_FACTOR,
    SEED_SHIFT = const 64 - shm::SAMPLED_BITS,
);
