# Whether a rule wants to hear of a call, decided before anybody is asked. See probes.rs, which puts the parts together and gives them their constants.

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
