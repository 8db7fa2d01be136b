/* The frame of a program with thousands of functions (written by the tests into many_functions.S): one thread
 * spins and keeps the largest gap between two readings of the clock, one calls the functions and checks them.
 * Arguments: how many threads sleep beside them, and how many spin (1). Commands on stdin: "reset", "gap" (prints nanoseconds),
 * "calls" (prints calls made), "wake" (each sleeper calls one of the functions in a handler; prints how many did), "end". */
#include "target.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

extern unsigned (*const many_table[])(unsigned);
extern const unsigned many_count;

static atomic_long largest_gap, calls;
static atomic_int reset_wanted, awake;
static pthread_t sleepers[4096];

static inline long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

FN void *spin(void *unused)
{
    (void)unused;
    unsigned low, high;
    /* Ticks, so that nothing in this loop is a call that a probe could lengthen. */
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    unsigned long start_ticks = (unsigned long)high << 32 | low, last = start_ticks, worst = 0;
    long start_ns = now();
    struct timespec span = { 0, 20000000 };
    nanosleep(&span, 0);
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    double ns_per_tick = (double)(now() - start_ns) / (double)(((unsigned long)high << 32 | low) - start_ticks);
    last = (unsigned long)high << 32 | low;
    for (;;) {
        __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
        unsigned long ticks = (unsigned long)high << 32 | low;
        if (ticks - last > worst) {
            worst = ticks - last;
            atomic_store(&largest_gap, (long)((double)worst * ns_per_tick));
        }
        last = ticks;
        if (atomic_load_explicit(&reset_wanted, memory_order_relaxed)) {
            worst = 0;
            atomic_store(&largest_gap, 0);
            atomic_store(&reset_wanted, 0);
        }
    }
}

FN void call(unsigned i)
{
    unsigned x = i * 7, expected = x * 3 + i;
    expected += expected & 1 ? 7 : 0;
    CHECK(many_table[i](x) == expected);
}

FN void wake_up(int unused)
{
    (void)unused;
    call(0);
    atomic_fetch_add(&awake, 1);
}

FN void *call_all(void *unused)
{
    (void)unused;
    for (;;) {
        for (unsigned i = 0; i < many_count; i++) {
            call(i);
            atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
        }
        struct timespec span = { 0, 5000000 };
        nanosleep(&span, 0);
    }
}

/* Some frames deep, as threads of real programs are. */
FN void sleep_deeply(unsigned depth)
{
    if (depth)
        sleep_deeply(depth - 1);
    else
        for (;;) {
            struct timespec span = { 3600, 0 };
            nanosleep(&span, 0);
        }
    __asm__ volatile("");
}

FN void *sleeper(void *unused)
{
    (void)unused;
    sleep_deeply(12);
    return 0;
}

static void start(void *(*body)(void *), int count, pthread_t *threads)
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 17);
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&threads[i], &small, body, 0) == 0);
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 0;
    CHECK(count <= 4096);
    signal(SIGUSR1, wake_up);
    pthread_t others[256];
    start(sleeper, count, sleepers);
    start(spin, argc > 2 ? atoi(argv[2]) : 1, others);
    start(call_all, 1, others);
    char line[64];
    printf("ready %u\n", many_count);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "reset", 5)) {
            atomic_store(&reset_wanted, 1);
            while (atomic_load(&reset_wanted))
                ;
            printf("0\n");
        } else if (!strncmp(line, "gap", 3)) {
            printf("%ld\n", atomic_load(&largest_gap));
        } else if (!strncmp(line, "calls", 5)) {
            printf("%ld\n", atomic_load(&calls));
        } else if (!strncmp(line, "wake", 4)) {
            atomic_store(&awake, 0);
            for (int i = 0; i < count; i++)
                CHECK(pthread_kill(sleepers[i], SIGUSR1) == 0);
            while (atomic_load(&awake) < count)
                ;
            printf("%d\n", atomic_load(&awake));
        } else {
            break;
        }
        fflush(stdout);
    }
    return 0;
}
