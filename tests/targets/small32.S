/* A 32-bit program without any library: says ready and waits for a signal; with an argument it ends with status 7. */
    .globl _start
_start:
    cmpl $1, (%esp)
    je 0f
    mov $1, %eax
    mov $7, %ebx
    int $0x80
0:
    mov $4, %eax
    mov $1, %ebx
    mov $text, %ecx
    mov $6, %edx
    int $0x80
1:  mov $29, %eax
    int $0x80
    jmp 1b
    .section .rodata
text: .ascii "ready\n"
