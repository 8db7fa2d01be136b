# The clock, and where a callee is found among its caller's children. See probes.rs, which puts the parts together and gives them their constants.

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
# To \found with the child in rax, or to \other. Its own labels are none that callers have, who say where with theirs (`12b`).
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
COMPARE 1, 112f
jmp \found
.else
cmp [rax + {FUNCTION}], esi
je \found
.endif
112: mov edx, [rdx + {EXTENSION}]
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
jnz 114f
test rax, rax
jz \other
COMPARE \sites, \other
jmp \found
114: # one level deeper
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
