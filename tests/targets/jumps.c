/* setjmp and longjmp: frames that never return, functions that return twice, jumps out of a handler. */
#include "target.h"
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>

static jmp_buf outer, inner;
static sigjmp_buf from_signal;

FN int sink(int left, int code)
{
    if (left == 0)
        longjmp(outer, code);
    int r = sink(left - 1, code);
    KEEP;
    return r;
}

FN int after(int x) { KEEP; return x + 1; }

FN int jump_out(int depth, int code)
{
    int got = setjmp(outer);
    if (got == 0)
        return sink(depth, code) + 1000;
    int r = after(got);
    KEEP;
    return r;
}

FN void bounce(void) { KEEP; longjmp(inner, 1); }

/* The same setjmp is returned to over and over. */
FN int many_returns(int times)
{
    volatile int count = 0;
    setjmp(inner);
    if (count < times) {
        count++;
        bounce();
    }
    int r = after(count);
    KEEP;
    return r;
}

FN void on_signal(int number)
{
    (void)number;
    siglongjmp(from_signal, 5);
}

FN int out_of_handler(void)
{
    int got = sigsetjmp(from_signal, 1);
    if (got == 0) {
        raise(SIGUSR2);
        return -1;
    }
    int r = after(got);
    KEEP;
    return r;
}

int main(void)
{
    struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGUSR2, &action, 0);
    long sum = 0;
    for (int i = 1; i <= 60; i++) {
        CHECK(jump_out(i % 12, i) == i + 1);
        CHECK(many_returns(i % 7) == i % 7 + 1);
        CHECK(out_of_handler() == 6);
        sum += after(i);
    }
    printf("jumps: ok %ld\n", sum);
    return 0;
}
