/* hot [SECONDS]: one thread calls functions of 35 ns to 1 us, seven others work without calling any and sleep now and then. Prints the
 * processor time of a round of the first, in seconds, measured after its first second; the others would hide what probes cost it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FN __attribute__((noipa))
#define OTHERS 7

static volatile int done;
static volatile unsigned long sink;

/* As many instructions as the processor takes at once: probes do not run beside them for nothing. */
#define STEP __asm__ volatile(".rept 20\n nop\n .endr")
#define SIZE(n)                                                                                                            \
    FN unsigned long work_##n(unsigned long x)                                                                             \
    {                                                                                                                      \
        for (int i = 0; i < n; i++)                                                                                        \
            STEP;                                                                                                          \
        return x;                                                                                                          \
    }                                                                                                                      \
    FN unsigned long all_##n(unsigned long x)                                                                              \
    {                                                                                                                      \
        for (int i = 0; i < 16384 / n; i++)                                                                                \
            x = work_##n(x);                                                                                               \
        return x;                                                                                                          \
    }
SIZE(32) SIZE(40) SIZE(48) SIZE(64) SIZE(80) SIZE(96) SIZE(128) SIZE(256) SIZE(512) SIZE(1024)

FN unsigned long one_round(unsigned long x)
{
    x = all_32(all_40(all_48(all_64(all_80(x)))));
    return all_96(all_128(all_256(all_512(all_1024(x)))));
}

static double used(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void *other(void *unused)
{
    unsigned long x = 1;
    while (!done) {
        for (int i = 0; i < 1000000; i++)
            x = x * 6364136223846793005 + 1442695040888963407;
        sink += x;
        nanosleep(&(struct timespec){0, 2000000}, 0);
    }
    return unused;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1.5;
    pthread_t threads[OTHERS];
    for (int i = 0; i < OTHERS; i++)
        if (pthread_create(&threads[i], 0, other, 0))
            return 1;
    double start = used(), since = 0, now;
    unsigned long rounds = 0, x = 1;
    for (;;) {
        for (int i = 0; i < 20; i++)
            x = one_round(x);
        rounds += 20;
        now = used();
        if (since == 0 && now - start > 1.0) {
            since = now;
            rounds = 0;
        } else if (since > 0 && now - since > seconds)
            break;
    }
    done = 1;
    sink += x;
    for (int i = 0; i < OTHERS; i++)
        pthread_join(threads[i], 0);
    printf("%.9f\n", (now - since) / rounds);
    return 0;
}
