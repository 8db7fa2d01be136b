/* Calls a function whose stack ends right behind its return address: there is nothing where a ninth argument would be. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

static ucontext_t here, there;
static volatile int calls;

__attribute__((noipa)) void at_the_edge(void)
{
    calls++;
}

int main(void)
{
    const size_t size = 64 << 10, page = 4096;
    char *stack = mmap(0, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack + size, page, PROT_NONE))
        return 1;
    for (int i = 0; i < 1000; i++) {
        getcontext(&there);
        there.uc_stack.ss_sp = stack;
        there.uc_stack.ss_size = size;
        there.uc_link = &here;
        makecontext(&there, at_the_edge, 0);
        swapcontext(&here, &there);
    }
    printf("%d\n", calls);
    return 0;
}
