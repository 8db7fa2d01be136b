/* Prints its own stack as libgcc unwinds it, and everything another unwinder needs to do the same. */
#define _GNU_SOURCE
#include <alloca.h>
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

static uintptr_t low;

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *unused)
{
    (void)unused;
    int before = 0;
    uintptr_t ip = _Unwind_GetIPInfo(context, &before);
    printf("frame %lx %lx\n", (long)(before ? ip : ip - 1), (long)_Unwind_GetCFA(context));
    return _URC_NO_REASON;
}

static char alternate[1 << 16] __attribute__((aligned(16)));

static void memory(const char *from, const char *to)
{
    for (; from + 8 <= to; from += 8)
        printf("word %lx %lx\n", (long)from, *(long *)from);
}

__attribute__((noinline)) void dump(void)
{
    uintptr_t ip, sp, bp;
    asm volatile("lea 0(%%rip), %0; mov %%rsp, %1; mov %%rbp, %2" : "=r"(ip), "=r"(sp), "=r"(bp));
    printf("registers %lx %lx %lx\n", ip, sp, bp);
    _Unwind_Backtrace(frame, NULL);
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    uintptr_t top = 0;
    while (fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        if (strstr(line, "[stack]") && sscanf(line, "%lx-%lx", &from, &to) == 2)
            top = to;
        printf("map %s", line);
    }
    if (sp >= (uintptr_t)alternate && sp < (uintptr_t)alternate + sizeof alternate) {
        memory((char *)sp, alternate + sizeof alternate);
        memory((char *)low, (char *)top);
    } else {
        memory((char *)sp, (char *)top);
    }
    fflush(stdout);
}

static void handler(int signal)
{
    (void)signal;
    dump();
    asm volatile("");
}

__attribute__((noinline)) void realigned(int n)
{
    __attribute__((aligned(64))) volatile char block[128];
    block[n] = 1;
    low = (uintptr_t)__builtin_frame_address(0) - 4096;
    raise(SIGUSR1);
    asm volatile("" ::"r"(block) : "memory");
}

__attribute__((noinline)) void variable(int n)
{
    volatile char *block = alloca(n * 33 + 1);
    block[0] = 1;
    realigned(n);
    asm volatile("" ::"r"(block) : "memory");
}

__attribute__((noinline)) int recursive(int n)
{
    if (n == 0) {
        variable(7);
        return 1;
    }
    return recursive(n - 1) * 3 + n;
}

int compare(const void *a, const void *b)
{
    static int once;
    if (!once++)
        recursive(20);
    return *(const int *)a - *(const int *)b;
}

int main(int argc, char **argv)
{
    (void)argv;
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    sigaltstack(&stack, NULL);
    struct sigaction action = {.sa_handler = handler, .sa_flags = argc > 1 ? SA_ONSTACK : 0};
    sigaction(SIGUSR1, &action, NULL);
    int numbers[] = {3, 1, 2};
    qsort(numbers, 3, sizeof *numbers, compare);
    return 0;
}
