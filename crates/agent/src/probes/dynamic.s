# Functions that are named by a pointer (abi/dynamic.rs): their numbers. See probes.rs, which puts the parts together and gives them their constants.

# ---- the number of the function that the pointer in rsi names, whose check is in eax: to \found with it in esi, or on. rcx is
# the region's start. Clobbers rcx and rdx.
.macro FIND_DYNAMIC found
movabs rdx, {DYNAMIC_FACTOR}
imul rdx, rsi
shr rdx, 64 - {SET_BITS}
shl rdx, {SET_SHIFT}
lea rcx, [rcx + rdx + {DYNAMIC_PLACES}]
.irp place, 0, 16, 32, 48
cmp [rcx + \place], rsi
jne 93f
cmp [rcx + \place + 8], eax
jne 93f
mov esi, [rcx + \place + 12]
jmp \found
93:
.endr
.endm

# ---- the evaluator of CPython begins with the thread state rdi and the frame rsi: the word of its Python function -> rsi. rsp == sp - 8;
# rax, rdx, rcx and rsi are saved as in ENTRY. To \slow with it in esi if this is the first call that is too deep. The slow path does the
# same (agent's python.rs).
.macro PYTHON_NUMBER slow
mov rax, gs:[{PY_FLOOR}]
not rax
mov rcx, [rip + tw_base]
cmp rsp, rax
jb 91f
mov eax, [rcx + {PY_INTERPRETER}]
mov edx, [rcx + {PY_EVAL}]
mov rax, [rdi + rax]
cmp qword ptr [rax + rdx], 0
je 91f
mov eax, [rcx + {PY_FRAME_CODE}]
mov rsi, [rsi + rax]
mov edx, [rcx + {PY_NAME}]
mov rdx, [rsi + rdx]
mov rax, rsi
rol rax, 21
add rax, rdx
rol rax, 21
add rax, [rdx + 24]
rol rax, 21
add rdx, [rcx + {PY_ASCII}]
add rax, [rdx]
rol rax, 21
mov edx, [rcx + {PY_FILE}]
add rax, [rsi + rdx]
rol rax, 21
mov edx, [rcx + {PY_LINE}]
mov edx, [rsi + rdx]
add rax, rdx
movabs rdx, {DYNAMIC_FACTOR}
imul rax, rdx
shr rax, 32
FIND_DYNAMIC 92f
91: mov rcx, rdi
mov rsi, [rsp - 32]
mov rdx, [rsp]
mov edx, [rdx + 3]
SLOW_CALL tw_slow_python
mov esi, eax
test rax, rax
js \slow
jmp 94f
92: # its mode is the evaluator's
mov rax, [rsp]
mov eax, [rax + 3]
and eax, {MODES}
or esi, eax
94:
.endm
