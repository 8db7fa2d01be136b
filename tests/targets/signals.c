/* Handlers at 10 kHz on the normal and on an alternate stack while the program counts; a handler that mends what raised
 * SIGSEGV; users of SIGTRAP, SIGURG and SIGPROF. At the end a line per function: its name, how often it was called. */
#define _GNU_SOURCE
#include "target.h"
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { TICKS = 2000, FAULTS = 50, TRAPS = 50 };

static volatile long ticks, in_handler, workers, leaves, faults, traps, urgent, profiled;
static char *page;
static long page_size;

FN int leaf(int x) { leaves++; KEEP; return x * 3 + 1; }

FN int work(int depth)
{
    workers++;
    int r = depth ? work(depth - 1) + leaf(depth) : leaf(depth);
    KEEP;
    return r;
}

FN void inner(int depth)
{
    in_handler++;
    if (depth)
        inner(depth - 1);
    KEEP;
}

FN void on_tick(int signal)
{
    (void)signal;
    ticks++;
    inner((int)(ticks % 4));
}

FN void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    faults++;
    CHECK((char *)info->si_addr == page + 8);
    CHECK(mprotect(page, (size_t)page_size, PROT_READ | PROT_WRITE) == 0);
}

FN void on_trap(int signal) { (void)signal; traps++; }
FN void on_urgent(int signal) { (void)signal; urgent++; }
FN void on_profile(int signal) { (void)signal; profiled++; }

FN void handle(int signal, void *handler, int flags)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = (void (*)(int))handler;
    action.sa_flags = SA_RESTART | flags;
    CHECK(sigaction(signal, &action, NULL) == 0);
}

FN void every_100_us(int which, int on)
{
    struct itimerval interval = { { 0, on ? 100 : 0 }, { 0, on ? 100 : 0 } };
    CHECK(setitimer(which, &interval, NULL) == 0);
}

FN int under_fire(int flags)
{
    handle(SIGALRM, on_tick, flags);
    long until = ticks + TICKS;
    int r = 0;
    every_100_us(ITIMER_REAL, 1);
    while (ticks < until)
        r ^= work(20);
    every_100_us(ITIMER_REAL, 0);
    return r;
}

int main(void)
{
    static char alternate[64 << 10];
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    CHECK(sigaltstack(&stack, NULL) == 0);
    under_fire(0);
    under_fire(SA_ONSTACK);

    page_size = sysconf(_SC_PAGESIZE);
    page = mmap(NULL, (size_t)page_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    handle(SIGSEGV, (void *)on_fault, SA_SIGINFO | SA_ONSTACK);
    for (int i = 0; i < FAULTS; i++) {
        ((volatile char *)page)[8] = (char)i;
        CHECK(page[8] == (char)i);
        CHECK(mprotect(page, (size_t)page_size, PROT_NONE) == 0);
    }
    handle(SIGTRAP, on_trap, 0);
    handle(SIGURG, on_urgent, 0);
    for (int i = 0; i < TRAPS; i++) {
        __asm__ volatile("int3");
        raise(SIGURG);
    }
    handle(SIGPROF, on_profile, 0);
    every_100_us(ITIMER_PROF, 1);
    while (profiled < 5)
        work(5);
    every_100_us(ITIMER_PROF, 0);
    CHECK(faults == FAULTS && traps == TRAPS && urgent == TRAPS);
    printf("work %ld\nleaf %ld\non_tick %ld\ninner %ld\non_fault %ld\non_trap %ld\non_urgent %ld\non_profile %ld\n",
           workers, leaves, ticks, in_handler, faults, traps, urgent, profiled);
    return 0;
}
