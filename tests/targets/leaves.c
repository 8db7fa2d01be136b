/* Functions that call nothing, short and long ones, reached in every way: by calls, by tail jumps, after a jump out of a stack, in handlers, as the first thing
 * that a thread does, and in fork children. */
#include "target.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static jmp_buf out;

FN int leaf(int x) { KEEP; return x * 3 + 1; }
FN int branching(int x)
{
    KEEP;
    if (x & 1)
        return x + 1;
    KEEP;
    return x & 2 ? x - 1 : x ^ 7;
}

/* Call nothing either, but a loop and a jump by a table keep them from being counted at their entry alone. */
FN int looping(int x)
{
    int sum = 0;
    KEEP;
    for (int i = 0; i < (x & 7) + 2; i++) {
        sum += i ^ x;
        KEEP;
    }
    return sum;
}
FN int chooses(int x)
{
    KEEP;
    switch (x & 7) {
    case 0: KEEP; return x * 3;
    case 1: KEEP; return x - 70;
    case 2: KEEP; return x ^ 21;
    case 3: KEEP; return x / 3;
    case 4: KEEP; return x << 3;
    case 5: KEEP; return x | 64;
    default: KEEP; return -x;
    }
}
FN int jumps_to_loop(int x) { KEEP; return looping(x + 1); }

/* Returns for whoever jumps to it, and for those who have jumped there. */
FN int jumps(int x) { KEEP; return leaf(x + 1); }
FN int jumps_twice(int x) { KEEP; return jumps(x + 1); }
static int (*volatile pointer)(int) = leaf;
FN int jumps_by_pointer(int x) { KEEP; return pointer(x); }
FN int calls_jumps(int x)
{
    int a = jumps_twice(x);
    KEEP;
    int b = leaf(a);
    KEEP;
    return a + b;
}

FN int deep(int left)
{
    if (left == 0)
        longjmp(out, 1);
    int r = deep(left - 1);
    KEEP;
    return r;
}
FN int jumped_out(int x)
{
    if (setjmp(out) == 0)
        return deep(7);
    int r = leaf(x);
    KEEP;
    return r;
}

static volatile int sum, last;
FN void on_signal(int number) { sum += leaf(number); KEEP; }
FN void quiet(int number) { last = number; KEEP; }
FN void interrupted(int number) { raise(number); KEEP; }

FN void *first(void *x) { KEEP; return x; }
FN void *worker(void *x) { sum += leaf(1); KEEP; return x; }

FN void child(void)
{
    for (int i = 0; i < 10; i++)
        sum += leaf(i);
    KEEP;
}

static void handle(int number, void (*handler)(int), int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    sigaction(number, &action, 0);
}

int main(void)
{
    static char stack[1 << 16];
    stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
    sigaltstack(&other, 0);
    handle(SIGUSR1, on_signal, 0);
    handle(SIGUSR2, on_signal, SA_ONSTACK);
    handle(SIGHUP, quiet, 0);
    for (int i = 0; i < 100; i++) {
        sum += leaf(i) + branching(i) + jumps(i) + jumps_twice(i) + jumps_by_pointer(i);
        sum += calls_jumps(i) + jumped_out(i);
        sum += looping(i) + chooses(i) + jumps_to_loop(i);
        interrupted(SIGUSR1);
        interrupted(SIGUSR2);
        interrupted(SIGHUP);
    }
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        pthread_create(&thread, 0, i & 1 ? first : worker, 0);
        pthread_join(thread, 0);
    }
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            child();
            _exit(0);
        }
        waitpid(pid, 0, 0);
    }
    printf("leaves: ok %d\n", sum);
    return 0;
}
