/* Functions of known sizes, each called in a loop of its own: the loops say how long they took on a processor, at their
 * quickest, which without probes is the truth that compensated figures are held against. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

volatile unsigned long sink;

static long long processor_time(void) {
    struct timespec time;
    syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

NOINLINE unsigned long tiny(unsigned long n) { return n * 3 + sink; }
NOINLINE unsigned long small(unsigned long n) {
    for (int i = 0; i < 20; i++)
        n = n * 31 + i;
    return n;
}
NOINLINE unsigned long middling(unsigned long n) {
    for (int i = 0; i < 300; i++)
        n = n * 31 + i;
    return n;
}
NOINLINE unsigned long descend(unsigned long depth) {
    if (depth == 0)
        return sink;
    unsigned long below = descend(depth - 1);
    __asm__ volatile("" : "+r"(below)); /* keeps it from becoming a loop */
    return below + 1;
}
NOINLINE unsigned long wide(unsigned long n) {
    return tiny(n) + small(n) + tiny(n + 1) + small(n + 1) + tiny(n + 2) + small(n + 2);
}

#define DRIVE(name, calls, expression)                                                                                 \
    NOINLINE void drive_##name(void) {                                                                                 \
        unsigned long sum = 0;                                                                                         \
        for (unsigned long i = 0; i < calls; i++)                                                                      \
            sum += expression;                                                                                         \
        sink = sum;                                                                                                    \
    }
DRIVE(tiny, 400000, tiny(i))
DRIVE(small, 200000, small(i))
DRIVE(middling, 20000, middling(i))
DRIVE(recursion, 4000, descend(50))
DRIVE(wide, 40000, wide(i))

int main(void) {
    struct {
        const char *name;
        void (*drive)(void);
    } kinds[] = {{"tiny", drive_tiny}, {"small", drive_small}, {"middling", drive_middling}, {"recursion", drive_recursion}, {"wide", drive_wide}};
    for (unsigned kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        long long best = -1;
        for (int round = 0; round < 10; round++) {
            long long took = processor_time();
            kinds[kind].drive();
            took = processor_time() - took;
            if (best < 0 || took < best)
                best = took;
        }
        printf("%s %lld\n", kinds[kind].name, best);
    }
    return 0;
}
