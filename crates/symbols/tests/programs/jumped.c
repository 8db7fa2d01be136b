/* Functions that only jumps reach: tail calls, and a cold part that GCC splits off. */
#include <stdio.h>
#include <stdlib.h>

/* Unaligned, as -Os leaves functions, so that they look like cold parts. */
#define SMALL __attribute__((noinline, noclone, used, aligned(1)))

SMALL long odd(long x) { asm volatile(""); return x; }
SMALL long target(long x) { asm volatile(""); return x + 1; }
SMALL long gives_up(long x) { asm volatile("" ::"r"(x)); abort(); }

long jumper(long x);
asm(".text\n"
    ".type jumper,@function\n"
    "jumper: .cfi_startproc\n"
    "  cmp $1000, %rdi\n"
    "  .byte 0x0f, 0x87\n .long gives_up - . - 4\n"
    "  test $1, %rdi\n"
    "  .byte 0x0f, 0x85\n .long target - . - 4\n"
    "  mov %rdi, %rax\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size jumper, . - jumper\n");

__attribute__((noinline, cold)) static void note(const char *what) { puts(what); }

__attribute__((noinline)) int split(int *p, int n)
{
    if (__builtin_expect(n < 0, 0)) {
        note("negative");
        *p = 0;
        n = 1;
    }
    for (int i = 0; i < n; i++)
        asm volatile("addl %1, %0" : "+m"(*p) : "r"(i));
    return *p;
}

int main(int count, char **words)
{
    int sum = count;
    long total = 0;
    for (int i = 0; i < 10; i++)
        total += jumper(i) + odd(i) + split(&sum, i);
    return total == 0 && words[0][0];
}
