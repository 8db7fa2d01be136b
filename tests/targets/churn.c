// Endless new contexts: chains of forty functions in any order, and one hot path that never changes. Counts its own calls,
// of all threads, handlers and fork children, and prints them.
//
//   churn ROUNDS [THREADS [HANDLER_HZ [CHILDREN]]]       0 rounds: begins at a line of input, stops at SIGTERM, stays till the end of input
#include "target.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FUNCTIONS = 40, DEPTH = 12, HANDLER_DEPTH = 5 };
struct counts {
    long chain[FUNCTIONS], hot_outer, hot_middle, hot_inner, on_alarm, work;
};
static struct counts *counts;
static long rounds;
static volatile sig_atomic_t stop;
static volatile long sink;

#define COUNT(what) __atomic_fetch_add(&counts->what, 1, __ATOMIC_RELAXED)

static unsigned draw(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*seed >> 33);
}

typedef void chain_function(int depth, uint64_t *seed);
static chain_function *const all[FUNCTIONS];

static inline __attribute__((always_inline)) void go_on(int number, int depth, uint64_t *seed) {
    COUNT(chain[number]);
    if (depth > 1) all[draw(seed) % FUNCTIONS](depth - 1, seed);
    sink += number;
}

#define CHAIN(n) FN static void chain_##n(int depth, uint64_t *seed) { go_on(n, depth, seed); }
#define EACH(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15) M(16) M(17) M(18) M(19) \
    M(20) M(21) M(22) M(23) M(24) M(25) M(26) M(27) M(28) M(29) M(30) M(31) M(32) M(33) M(34) M(35) M(36) M(37) M(38) M(39)
EACH(CHAIN)
#define NAME(n) chain_##n,
static chain_function *const all[FUNCTIONS] = {EACH(NAME)};

FN static void hot_inner(void) {
    COUNT(hot_inner);
    for (int i = 0; i < 200; i++) sink += i;
}
FN static void hot_middle(void) {
    COUNT(hot_middle);
    for (int i = 0; i < 3; i++) hot_inner();
    sink++;
}
FN static void hot_outer(void) {
    COUNT(hot_outer);
    hot_middle();
    sink++;
}

static void on_alarm(int signal) {
    static uint64_t seed = 99;
    (void)signal;
    COUNT(on_alarm);
    all[draw(&seed) % FUNCTIONS](HANDLER_DEPTH, &seed);
}

static void on_term(int signal) {
    (void)signal;
    stop = 1;
}

FN static void *work(void *argument) {
    uint64_t seed = (uintptr_t)argument * 7919 + 1;
    COUNT(work);
    for (long i = 0; (rounds == 0 || i < rounds) && !stop; i++) {
        hot_outer();
        all[draw(&seed) % FUNCTIONS](DEPTH, &seed);
    }
    return NULL;
}

static void alarms(int hz) {
    struct itimerval every = {{0, hz ? 1000000 / hz : 0}, {0, hz ? 1000000 / hz : 0}};
    setitimer(ITIMER_REAL, &every, NULL);
}

int main(int argc, char **argv) {
    int number[3] = {1, 0, 0};
    for (int i = 2; i < argc && i < 5; i++) number[i - 2] = atoi(argv[i]);
    int threads = number[0], hz = number[1], children = number[2];
    rounds = argc > 1 ? atol(argv[1]) : 1000;
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    signal(SIGALRM, on_alarm);
    signal(SIGTERM, on_term);
    puts("ready");
    fflush(stdout);
    if (rounds == 0) getchar();
    if (hz) alarms(hz);
    pthread_t other[64];
    for (int i = 1; i < threads && i < 64; i++) pthread_create(&other[i], NULL, work, (void *)(uintptr_t)i);
    work(NULL);
    for (int i = 1; i < threads && i < 64; i++) pthread_join(other[i], NULL);
    alarms(0);
    for (int i = 0; i < children; i++) {
        if (fork() == 0) {
            work((void *)(uintptr_t)(1000 + i));
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {}
    for (int i = 0; i < FUNCTIONS; i++) printf("chain_%d %ld\n", i, counts->chain[i]);
    printf("hot_outer %ld\nhot_middle %ld\nhot_inner %ld\non_alarm %ld\nwork %ld\n", counts->hot_outer, counts->hot_middle,
           counts->hot_inner, counts->on_alarm, counts->work);
    puts("end");
    fflush(stdout);
    while (rounds == 0 && getchar() != EOF) {}
    return 0;
}
