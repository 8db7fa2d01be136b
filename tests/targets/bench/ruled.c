/* ruled BATCHES CALLS: what one call of `handle` costs, the best of many batches. Between two of them it sleeps, so that whoever reads what was
 * recorded keeps up, and what is measured is the writing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct pair {
    int first, second;
};

/* An argument of each kind: registers, a vector register, texts, a structure, and the last one on the stack. */
__attribute__((noipa)) int handle(int n, double x, const char *heap, const char *stack, struct pair pair, long e, long f, long last)
{
    __asm__ volatile("" ::: "memory");
    return n;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

__attribute__((noipa)) static double batch(int calls, const char *heap)
{
    /* In the frame that calls: nearer to what the probe knows to be there than an array elsewhere. */
    char stack[16];
    strcpy(stack, "select 7");
    struct pair pair = {1, 2};
    double from = now();
    for (int i = 0; i < calls; i++)
        handle(i & 7, 0.5, heap, stack, pair, 5, 6, 7);
    return (now() - from) / calls;
}

int main(int argc, char **argv)
{
    int batches = argc > 1 ? atoi(argv[1]) : 60, calls = argc > 2 ? atoi(argv[2]) : 1000;
    char *heap = malloc(4096);
    double best = 1e18;
    if (!heap || batches < 1 || calls < 1)
        return 2;
    strcpy(heap, "select 7");
    for (int i = 0; i < batches; i++) {
        double cost = batch(calls, heap);
        best = cost < best ? cost : best;
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, 0);
    }
    printf("%.4f\n", best);
    return 0;
}
