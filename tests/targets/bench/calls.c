/* calls CALLS THREADS: what one call costs. Five small functions call each other; prints ns per call of the slowest thread.
 *
 * Built three ways: plain; with -DFLOOR, the least that counting and timing every call by hand can cost (two rdtsc and a
 * minimal calling-context tree per thread, inlined by the compiler, which may keep things in registers that a probe
 * put in from outside has to save); and with -pg for profilers that need it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* noipa: as if each function were in a file of its own. Knowing its callees, gcc would let `inner` begin with a call, a rare
 * shape whose probe costs a mispredicted return (docs/benchmarks.md). */
#define FN __attribute__((noipa))
#define KEEP __asm__ volatile("" ::: "memory")
#define OFF __attribute__((no_instrument_function))

#ifdef FLOOR
struct node {
    struct node *child[8], *parent;
    unsigned long calls, time;
};
struct frame {
    struct node *node;
    unsigned long start;
};
struct state {
    struct node *at;
    struct frame *top;
    unsigned used;
    struct node root, nodes[64];
    struct frame frames[256];
};
static __thread struct state *state;

OFF static inline unsigned long ticks(void)
{
    unsigned low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (unsigned long)high << 32 | low;
}

OFF FN static struct node *first_time(struct state *s, unsigned id)
{
    return s->at->child[id] = &s->nodes[s->used++];
}

__attribute__((always_inline)) OFF static inline void enter(unsigned id)
{
    struct state *s = state;
    struct node *node = s->at->child[id];
    if (__builtin_expect(!node, 0))
        node = first_time(s, id);
    struct frame *top = ++s->top;
    top->node = s->at;
    s->at = node;
    top->start = ticks();
}

__attribute__((always_inline)) OFF static inline void leave(void)
{
    struct state *s = state;
    struct frame *top = s->top--;
    s->at->time += ticks() - top->start;
    s->at->calls++;
    s->at = top->node;
}

OFF static void begin(void)
{
    state = calloc(1, sizeof *state);
    state->at = &state->root;
    state->top = state->frames;
}
#else
#define enter(id)
#define leave()
#define begin()
#endif

FN long leaf(long x)
{
    enter(1);
    KEEP;
    long r = x * 3 + 1;
    leave();
    return r;
}

FN long other(long x)
{
    enter(2);
    KEEP;
    long r = x ^ 5;
    leave();
    return r;
}

FN long inner(long x)
{
    enter(3);
    long r = leaf(x) + other(x + 1);
    KEEP;
    leave();
    return r;
}

FN long outer(long x)
{
    enter(4);
    long r = inner(x) - leaf(x);
    KEEP;
    leave();
    return r;
}

enum { CALLS_PER_TURN = 5 };
static long turns;
static pthread_barrier_t start;

OFF static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

OFF FN static void *run(void *result)
{
    begin();
    long sum = 0;
    for (long i = 0; i < 1000; i++)
        sum += outer(i);
    pthread_barrier_wait(&start);
    double from = now();
    for (long i = 0; i < turns; i++)
        sum += outer(i);
    *(double *)result = now() - from;
    return (void *)sum;
}

OFF int main(int argc, char **argv)
{
    turns = (argc > 1 ? atol(argv[1]) : 1000000) / CALLS_PER_TURN;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    pthread_t thread[64];
    double spans[64], slowest = 0;
    if (turns < 1 || threads < 1 || threads > 64)
        return 2;
    pthread_barrier_init(&start, 0, (unsigned)threads);
    for (int i = 1; i < threads; i++)
        pthread_create(&thread[i], 0, run, &spans[i]);
    run(&spans[0]);
    for (int i = 0; i < threads; i++) {
        if (i)
            pthread_join(thread[i], 0);
        slowest = spans[i] > slowest ? spans[i] : slowest;
    }
    printf("%.4f\n", slowest / (double)(turns * CALLS_PER_TURN));
    return 0;
}
