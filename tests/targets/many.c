/* The frame of a program with thousands of functions (written by the tests into many_functions.S): threads spin and keep the
 * largest gap between two readings of the clock, how much of a gap they were held: neither on a processor nor waiting for
 * one, which the kernel counts; and how much of that no other thread of the process can have waited for a processor, which it
 * needs to come to a stop. One thread calls the functions and checks them.
 * Arguments: how many threads sleep beside them, and how many spin (1). Commands on stdin: "reset", "gap", "held" and "stood" (print
 * nanoseconds), "calls" (prints calls made), "wake" (each sleeper calls one of the functions in a handler; prints how many did),
 * "end". */
#include "target.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern unsigned (*const many_table[])(unsigned);
extern const unsigned many_count;

static atomic_long largest_gap, largest_held, largest_stood, calls;
static atomic_int resets, awake;
static pthread_t sleepers[4096];

static inline long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static inline unsigned long ticks_now(void)
{
    unsigned low, high;
    /* Ticks, so that nothing in the loop is a call that a probe could lengthen. */
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (unsigned long)high << 32 | low;
}

/* Of each thread that does not sleep: its `schedstat`; 0: not there yet. */
enum { MAX_WORKERS = 257 };
static atomic_int schedstats[MAX_WORKERS];
static atomic_int workers;

static int join_workers(void)
{
    int own = open("/proc/thread-self/schedstat", O_RDONLY);
    int place = atomic_fetch_add(&workers, 1);
    CHECK(own > 0 && place < MAX_WORKERS);
    atomic_store(&schedstats[place], own);
    return own;
}

/* For how long a thread has waited for a processor so far. */
static long waited(int schedstat)
{
    char line[64] = "";
    CHECK(pread(schedstat, line, sizeof line - 1, 0) > 0);
    char *second = strchr(line, ' ');
    CHECK(second != NULL);
    return atol(second);
}

/* The longest that any of them has waited since `before` was filled, which it is anew. They wait beside each other. */
static long longest_wait(long *before)
{
    long longest = 0;
    for (int i = 0; i < MAX_WORKERS; i++) {
        int schedstat = atomic_load(&schedstats[i]);
        if (!schedstat)
            break;
        long all = waited(schedstat), since = all - before[i];
        before[i] = all;
        longest = since > longest ? since : longest;
    }
    return longest;
}

static void raise_to(atomic_long *largest, long value)
{
    long known = atomic_load(largest);
    while (value > known && !atomic_compare_exchange_weak(largest, &known, value))
        ;
}

FN void *spin(void *unused)
{
    (void)unused;
    int schedstat = join_workers();
    unsigned long start_ticks = ticks_now();
    long start_ns = now();
    struct timespec span = { 0, 20000000 };
    nanosleep(&span, 0);
    double ns_per_tick = (double)(now() - start_ns) / (double)(ticks_now() - start_ticks);
    /* No thread comes and goes more quickly. */
    unsigned long some = (unsigned long)(20000 / ns_per_tick);
    long before = waited(schedstat), of_all[MAX_WORKERS] = { 0 };
    longest_wait(of_all);
    int seen = atomic_load(&resets);
    unsigned long last = ticks_now();
    for (;;) {
        unsigned long ticks = ticks_now();
        int reset = atomic_load_explicit(&resets, memory_order_relaxed);
        if (ticks - last > some) {
            long gap = (long)((double)(ticks - last) * ns_per_tick), after = waited(schedstat), longest = longest_wait(of_all);
            if (reset == seen) {
                raise_to(&largest_gap, gap);
                raise_to(&largest_held, gap - (after - before));
                raise_to(&largest_stood, gap - longest);
            }
            before = after;
            ticks = ticks_now();
        }
        seen = reset;
        last = ticks;
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
    join_workers();
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
            /* What began before does not count. */
            atomic_fetch_add(&resets, 1);
            atomic_store(&largest_gap, 0);
            atomic_store(&largest_held, 0);
            atomic_store(&largest_stood, 0);
            printf("0\n");
        } else if (!strncmp(line, "gap", 3)) {
            printf("%ld\n", atomic_load(&largest_gap));
        } else if (!strncmp(line, "held", 4)) {
            printf("%ld\n", atomic_load(&largest_held));
        } else if (!strncmp(line, "stood", 5)) {
            printf("%ld\n", atomic_load(&largest_stood));
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
