/* counted SECONDS FILE: what a call costs that is counted and not timed. Writes its number to FILE, runs for SECONDS, and prints the ns per call, best of the
 * second half: of leaves, and of functions that call. In the first half somebody may switch what its probes do. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define FN __attribute__((noipa))
#define KEEP __asm__ volatile("" ::: "memory")

FN long leaf(long x) { KEEP; return x * 3 + 1; }
FN long other(long x) { KEEP; return x ^ 5; }
FN long frames(long left)
{
    if (left <= 0)
        return 0;
    long r = frames(left - 1) + 1;
    KEEP;
    return r;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double least(double best, double from, long calls)
{
    double each = (now() - from) / (double)calls;
    return each < best ? each : best;
}

enum { TURNS = 20000, DEPTH = 20 };

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    FILE *file = fopen(argv[2], "w");
    if (!file || fprintf(file, "%d\n", getpid()) < 0 || fclose(file))
        return 2;
    double length = atof(argv[1]) * 1e9, begin = now(), best[2] = { 1e18, 1e18 };
    long sum = 0;
    for (int half = 0; half < 2; half++) {
        best[0] = best[1] = 1e18;
        while (now() < begin + length * (half + 1) / 2) {
            double from = now();
            for (long i = 0; i < TURNS; i++)
                sum += leaf(i) + other(sum);
            best[0] = least(best[0], from, 2 * TURNS);
            from = now();
            for (long i = 0; i < TURNS / DEPTH; i++)
                sum += frames(DEPTH - 1);
            best[1] = least(best[1], from, TURNS);
        }
    }
    printf("%.4f %.4f\n", best[0], best[1]);
    return sum == 42;
}
