/* Per-CPU counters by restartable sequences, as librseq and tcmalloc make them.
 *
 * void bump_NAME(long *counters, struct rseq *area, struct rseq_cs *made)
 * adds 1 to the counter of the processor that it runs on, 64 bytes apart, by load, add, a slow division by 1, and
 * store. The kernel restarts it at the abort handler when the thread was interrupted between start and commit. Division
 * and store stand right before the `ret`, where an exit probe wants room.
 */

.macro SEQUENCE
	mov 4(%rsi), %ecx
	shl $6, %rcx
	add %rdi, %rcx
	mov (%rcx), %rax
	inc %rax
	xor %edx, %edx
	mov $1, %r8d
	div %r8
	mov %rax, (%rcx)
.endm

.macro DESCRIPTOR name
	.balign 32
.Lcs_\name:
	.long 0, 0
	.quad .Lstart_\name, .Lend_\name - .Lstart_\name, .Labort_\name
.endm

/* The kernel wants the four bytes before the handler to be what was registered. */
.macro SIGNATURE
	.byte 0x0f, 0xb9, 0x3d
	.long 0x53053053
.endm

.macro BUMP name
	.text
	.globl bump_\name
	.type bump_\name, @function
	.balign 16
bump_\name:
	.cfi_startproc
.Lagain_\name:
	lea .Lcs_\name(%rip), %rax
	mov %rax, 8(%rsi)
.Lstart_\name:
	SEQUENCE
.Lend_\name:
	ret
	.cfi_endproc
	.size bump_\name, . - bump_\name
.endm

/* librseq: the descriptor in __rseq_cs, the handler in a section of its own. */
BUMP section
	.pushsection __rseq_failure, "ax"
	SIGNATURE
.Labort_section:
	jmp .Lagain_section
	.popsection
	.pushsection __rseq_cs, "aw"
	DESCRIPTOR section
	.popsection
	.pushsection __rseq_cs_ptr_array, "aw"
	.quad .Lcs_section
	.popsection

/* By hand: the descriptor among other constants, the handler behind the function. */
BUMP data
	SIGNATURE
.Labort_data:
	jmp .Lagain_data
	.pushsection .data.rel.ro, "aw"
	.quad bump_data
	DESCRIPTOR data
	.popsection

/* The caller has made the descriptor while it ran (on its heap): no file holds it. */
.macro BUMP_MADE name
	.text
	.globl bump_\name
	.type bump_\name, @function
	.balign 16
bump_\name:
	.cfi_startproc
	mov %rdx, %r10
	lea .Lagain_\name(%rip), %r11
.Lagain_\name:
	mov %r10, 8(%rsi)
.Lstart_\name:
	SEQUENCE
.Lend_\name:
	ret
	.cfi_endproc
	.size bump_\name, . - bump_\name
	SIGNATURE
.Labort_\name:
.endm

/* void describe_NAME(struct rseq_cs *made) */
.macro DESCRIBE name
	.globl describe_\name
	.type describe_\name, @function
	.balign 16
describe_\name:
	.cfi_startproc
	movq $0, (%rdi)
	lea .Lstart_\name(%rip), %rax
	mov %rax, 8(%rdi)
	movq $.Lend_\name - .Lstart_\name, 16(%rdi)
	lea .Labort_\name(%rip), %rax
	mov %rax, 24(%rdi)
	ret
	.cfi_endproc
	.size describe_\name, . - describe_\name
.endm

BUMP_MADE made
	jmp .Lagain_made
DESCRIBE made

/* The handler's way back is in a register, too: nothing tells which function the sequence is in. */
BUMP_MADE hidden
	jmp *%r11
DESCRIBE hidden

	.section .note.GNU-stack, "", @progbits
