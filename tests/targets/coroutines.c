/* Generators on swapcontext: resumed from different places, nested in one another, ended through uc_link, left for good
 * in the middle. "forever": says "ready" and does so until SIGTERM, with a handler that comes 5,000 times a second. */
#include "target.h"
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

enum { STACK = 64 << 10, STEPS = 200 };

struct generator {
    ucontext_t self, resumer;
    int value, left;
    struct generator *inner;
    char stack[STACK];
};

static struct generator *running;

FN int leaf(int x) { KEEP; return x + 1; }

FN int work(int x)
{
    int r = leaf(x) + leaf(x);
    KEEP;
    return r;
}

FN void give(int value)
{
    struct generator *g = running;
    g->value = value;
    CHECK(swapcontext(&g->self, &g->resumer) == 0);
    KEEP;
}

FN int resume(struct generator *g)
{
    struct generator *before = running;
    running = g;
    CHECK(swapcontext(&g->resumer, &g->self) == 0);
    running = before;
    KEEP;
    return g->value;
}

FN void count_up(void)
{
    struct generator *g = running;
    for (int i = 0; i < g->left; i++) {
        int value = work(i);
        give(value);
    }
    g->value = -1;
    KEEP;
}

/* Passes on what another generator gives. */
FN void pass_on(void)
{
    struct generator *g = running;
    for (int i = 0; i < g->left; i++) {
        int value = resume(g->inner);
        give(value);
    }
    g->value = -1;
    KEEP;
}

FN void start(struct generator *g, void (*body)(void), int left)
{
    CHECK(getcontext(&g->self) == 0);
    g->self.uc_stack.ss_sp = g->stack;
    g->self.uc_stack.ss_size = sizeof g->stack;
    g->self.uc_link = &g->resumer;
    g->left = left;
    makecontext(&g->self, body, 0);
}

FN long first(struct generator *g)
{
    long sum = resume(g);
    KEEP;
    return sum;
}

FN long second(struct generator *g)
{
    long sum = resume(g) + work(1);
    KEEP;
    return sum;
}

FN long nested(struct generator *g)
{
    long sum = 0;
    for (int i = 0; i <= STEPS; i++)
        sum += resume(g);
    KEEP;
    return sum;
}

/* getcontext and setcontext on one stack are a loop. */
FN int again(int times)
{
    volatile int round = 0;
    ucontext_t here;
    CHECK(getcontext(&here) == 0);
    round++;
    leaf(round);
    if (round < times)
        setcontext(&here);
    return round;
}

static struct generator alternating, outer, inner, abandoned;

static volatile sig_atomic_t ended;
static volatile long ticks;

FN void on_tick(int signal)
{
    (void)signal;
    ticks += leaf(0);
}

FN void on_end(int signal)
{
    (void)signal;
    ended = 1;
}

FN long round_of_all(void)
{
    long sum = 0;
    start(&alternating, count_up, STEPS);
    for (int i = 0; i < STEPS; i += 2)
        sum += first(&alternating) + second(&alternating);
    sum += first(&alternating);
    start(&inner, count_up, STEPS);
    start(&outer, pass_on, STEPS);
    outer.inner = &inner;
    sum += nested(&outer);
    start(&abandoned, count_up, STEPS);
    for (int i = 0; i < 3; i++)
        sum += first(&abandoned);
    CHECK(again(10) == 10);
    return sum;
}

int main(int argc, char **argv)
{
    (void)argv;
    long sum = round_of_all(), rounds = 1;
    if (argc > 1) {
        struct itimerval interval = { { 0, 200 }, { 0, 200 } };
        struct sigaction action = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        signal(SIGTERM, on_end);
        CHECK(setitimer(ITIMER_REAL, &interval, NULL) == 0);
        printf("ready\n");
        fflush(stdout);
        for (; !ended; rounds++)
            CHECK(round_of_all() == sum);
        CHECK(rounds > 1 && ticks > 0);
    }
    printf("coroutines: ok %ld\n", sum);
    return 0;
}
