/* Counts for itself what blocks are counted of: how often each way of `step` was gone, on all threads together.
 *
 * blocks run THREADS STEPS       ends with "counted STEPS odd EVEN"
 * blocks watch STEPS             the same on one thread; says "ready", and at the end how many steps were made before the code of
 *                                `step` changed, if it did */
#include "target.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>

static long steps;

FN long step(long n)
{
    if (n % 3 == 0)
        return n + 1;
    KEEP;
    return n * 2;
}

static void *work(void *argument)
{
    long sum = 0;
    for (long n = 0; n < steps; n++)
        sum += step(n);
    *(long *)argument = sum;
    return NULL;
}

static const volatile unsigned char *code;

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "run") == 0) {
        int threads = atoi(arguments[2]);
        steps = atol(arguments[3]);
        pthread_t all[64];
        long sums[64];
        CHECK(threads <= 64);
        for (int i = 0; i < threads; i++)
            CHECK(pthread_create(&all[i], NULL, work, &sums[i]) == 0);
        for (int i = 0; i < threads; i++) {
            CHECK(pthread_join(all[i], NULL) == 0);
            CHECK(sums[i] == sums[0]);
        }
        printf("counted %ld odd %ld\n", steps * threads, (steps + 2) / 3 * threads);
        return 0;
    }
    CHECK(count == 3 && strcmp(arguments[1], "watch") == 0);
    steps = atol(arguments[2]);
    code = (const volatile unsigned char *)(uintptr_t)step;
    unsigned char first[8];
    for (int i = 0; i < 8; i++)
        first[i] = code[i];
    printf("ready\n");
    fflush(stdout);
    long sum = 0, before = -1;
    for (long n = 0; n < steps; n++) {
        for (int i = 0; before < 0 && i < 8; i++)
            if (code[i] != first[i])
                before = n;
        sum += step(n);
    }
    printf("counted %ld before %ld\n", steps, before);
    CHECK(sum != 1);
    return 0;
}
