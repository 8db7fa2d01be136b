/* Data among code, as assembler programmers leave it: each function here is plain enough to be patched, and beside each
 * stands something that somebody reads. text_data.c checks all of it.
 */
	.text
	.balign 16

/* No type, no size, no unwind information: and behind it a string that decodes as code up to its end. */
	.globl shout
shout:
	lea message(%rip), %rax
	mov $1, %edx
	ret
message:
	.asciz "EXIT-SUCCESS"

/* Typed, without a size: a table of zeroes behind it, which looks like padding. */
	.balign 16
	.globl zero_table
	.type zero_table, @function
zero_table:
	lea zeroes(%rip), %rax
	ret
zeroes:
	.quad 0, 0, 0, 0

/* Sized, and the next one too; constants of zero between them, which are reached from a place before them. */
	.balign 16
	.globl hidden_zeroes
	.type hidden_zeroes, @function
hidden_zeroes:
	lea before_zeroes(%rip), %rax
	add $8, %rax
	ret
	.size hidden_zeroes, . - hidden_zeroes
before_zeroes:
	.quad 0x1122334455667788
	.quad 0, 0, 0

/* Sized, with its data inside: bytes that are a function if one takes them for code. */
	.balign 16
	.globl code_like
	.type code_like, @function
code_like:
	.cfi_startproc
	lea likeness(%rip), %rax
	mov $6, %edx
	ret
likeness:
	.byte 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3
	.cfi_endproc
	.size code_like, . - code_like

/* The same, but only data of the program's points to it. */
	.balign 16
	.globl pointed
	.type pointed, @function
pointed:
	.cfi_startproc
	mov pointer(%rip), %rax
	mov $8, %edx
	ret
unnamed:
	.byte 0x48, 0x83, 0xec, 0x08, 0x48, 0x83, 0xc4, 0x08, 0xc3
	.cfi_endproc
	.size pointed, . - pointed
	.pushsection .data.rel.local, "aw"
pointer:
	.quad unnamed
	.popsection

/* A constant that an instruction loads from the function's own range. */
	.balign 16
	.globl literal
	.type literal, @function
literal:
	mov pool(%rip), %rax
	lea 1(%rax), %rax
	ret
	.balign 8
pool:
	.quad 0x00c3585848905052
	.size literal, . - literal

/* A jump table behind the function, in the text. */
	.balign 16
	.globl switched
	.type switched, @function
switched:
	.cfi_startproc
	lea table(%rip), %rdx
	movslq (%rdx,%rdi,4), %rax
	add %rdx, %rax
	jmp *%rax
.Lzero:
	mov $10, %eax
	ret
.Lone:
	mov $11, %eax
	ret
.Ltwo:
	mov $12, %eax
	ret
	.cfi_endproc
	.size switched, . - switched
	.balign 4
table:
	.long .Lzero - table, .Lone - table, .Ltwo - table

/* The call does not come back: its return address is where a string is. */
	.balign 16
	.globl inline_string
inline_string:
	call behind_string
	.asciz "PUSH IT"
behind_string:
	pop %rax
	ret

/* The same inside of one function; the string decodes up to its end. */
	.balign 16
	.globl inline_typed
	.type inline_typed, @function
inline_typed:
	call 1f
	.asciz "PQWV"
	.byte 0xc0
1:	pop %rax
	ret
	.size inline_typed, . - inline_typed

/* No type, and a name behind a call that does not return. */
	.balign 16
	.globl leaves
leaves:
	push %rbx
	lea last_words(%rip), %rdi
	call *%rsi
last_words:
	.asciz "PQRST"

	.section .note.GNU-stack, "", @progbits
