/* preempted CALLS: a function of a few microseconds, called on a processor that another thread of the program wants all the
 * time. Prints how many nanoseconds the function's own loop took at the least. */
#define _GNU_SOURCE
#include "target.h"
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>
#include <x86intrin.h>

static volatile int done;
static volatile unsigned sink;
static uint64_t least = UINT64_MAX;

FN void work(void)
{
    uint64_t begin = __rdtsc();
    unsigned sum = sink;
    for (int i = 0; i < 1000; i++) {
        sum = sum * 1664525u + 1013904223u;
        __asm__ volatile("" : "+r"(sum));
    }
    sink = sum;
    uint64_t took = __rdtsc() - begin;
    if (took < least) least = took;
}

static void *want(void *unused)
{
    while (!done)
        KEEP;
    return unused;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int argc, char **argv)
{
    long calls = argc > 1 ? atol(argv[1]) : 1000000;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    pthread_t other;
    CHECK(pthread_create(&other, 0, want, 0) == 0);
    double began = now();
    uint64_t first = __rdtsc();
    for (long i = 0; i < calls; i++)
        work();
    double rate = (__rdtsc() - first) / (now() - began);
    done = 1;
    pthread_join(other, 0);
    printf("%.0f\n", least / rate);
    return 0;
}
