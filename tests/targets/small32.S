/* A 32-bit program without any library: says ready and waits for a signal. */
    .globl _start
_start:
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
