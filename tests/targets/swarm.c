// Many threads: one after the other, all at once, in a pool, and made without the C library.
//   swarm chain N WIDTH K   N threads, WIDTH at a time, each calls leaf() K times
//   swarm crowd N K         N threads that all live at the same time
//   swarm pool N K          4 workers do N tasks of K calls
//   swarm bare N K          N threads of a bare clone() that have their creator's thread pointer
//   swarm alarmed N K       N threads, 8 at a time, under a storm of signals whose handler calls leaf() too
//   swarm family N K        N child processes, one after the other
//   swarm hold N, free N K  N threads that wait; and do their work
// Without arguments it reads such lines and answers each with the number of calls.
#define _GNU_SOURCE
#include "target.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static long calls_each;
static pthread_barrier_t barrier;
static atomic_long tasks_left, done;

FN long leaf(long x) { KEEP; return x * 3 + 1; }

FN long work(long seed) {
    for (long i = 0; i < calls_each; i++)
        seed = leaf(seed);
    return seed;
}

FN void *even_body(void *seed) {
    pthread_setname_np(pthread_self(), "even");
    return (void *)work((long)seed);
}

FN void *odd_body(void *seed) {
    pthread_setname_np(pthread_self(), "odd");
    return (void *)work((long)seed);
}

static inline __attribute__((always_inline)) void begin(pthread_t *thread, void *(*body)(void *), long seed) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 64 << 10);
    if (pthread_create(thread, &attr, body, (void *)seed)) {
        perror("pthread_create");
        exit(1);
    }
    pthread_attr_destroy(&attr);
}

FN void begin_even(pthread_t *thread, long seed) { begin(thread, even_body, seed); }
FN void begin_odd(pthread_t *thread, long seed) { begin(thread, odd_body, seed); }

FN void chain(long count, long width) {
    pthread_t *threads = calloc(width, sizeof *threads);
    for (long made = 0; made < count;) {
        long now = count - made < width ? count - made : width;
        for (long i = 0; i < now; i++) (i % 2 ? begin_odd : begin_even)(&threads[i], made + i);
        for (long i = 0; i < now; i++) pthread_join(threads[i], NULL);
        made += now;
    }
    free(threads);
}

FN void *crowd_body(void *seed) {
    long result = work((long)seed);
    pthread_barrier_wait(&barrier);
    return (void *)work(result);
}

FN void crowd(long count) {
    pthread_t *threads = calloc(count, sizeof *threads);
    pthread_barrier_init(&barrier, NULL, count);
    for (long i = 0; i < count; i++) begin(&threads[i], crowd_body, i);
    for (long i = 0; i < count; i++) pthread_join(threads[i], NULL);
    free(threads);
}

static pthread_t held[4000];
static long holding;

FN void *held_body(void *seed)
{
    pthread_barrier_wait(&barrier);
    return (void *)work((long)seed);
}

FN void hold(long count)
{
    pthread_barrier_init(&barrier, NULL, count + 1);
    for (holding = 0; holding < count; holding++)
        begin(&held[holding], held_body, holding);
}

FN void let_go(void)
{
    pthread_barrier_wait(&barrier);
    while (holding > 0)
        pthread_join(held[--holding], NULL);
}

FN void task(long number) { work(number); }

FN void *worker(void *name) {
    pthread_setname_np(pthread_self(), name);
    for (;;) {
        long left = atomic_fetch_sub(&tasks_left, 1);
        if (left <= 0) return NULL;
        task(left);
    }
}

FN void pool(long count) {
    static char *names[] = {"worker-0", "worker-1", "worker-2", "worker-3"};
    pthread_t threads[4];
    tasks_left = count;
    for (long i = 0; i < 4; i++) begin(&threads[i], worker, (long)names[i]);
    for (long i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

FN void on_alarm(int signal)
{
    (void)signal;
    for (int i = 0; i < 3; i++) {
        leaf(i);
        atomic_fetch_add(&done, 1);
    }
}

// Handlers run in the first moments of a thread too: some are sent to it right after it is made.
FN void alarmed(long count)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    pthread_t threads[8];
    for (long made = 0; made < count; made += 8) {
        for (long i = 0; i < 8; i++) {
            begin(&threads[i], even_body, i);
            if (i % 2)
                pthread_kill(threads[i], SIGALRM);
        }
        for (long i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
    }
    setitimer(ITIMER_REAL, &never, NULL);
}

FN void family(long count)
{
    for (long i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            work(i);
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    }
}

// No errno, no stack protector: the thread pointer is its creator's.
FN int bare_body(void *seed) {
    work((long)seed);
    atomic_fetch_add(&done, 1);
    return 0;
}

FN void bare(long count) {
    const size_t size = 256 << 10;
    for (long i = 0; i < count; i += 2) {
        atomic_store(&done, 0);
        long now = count - i < 2 ? 1 : 2;
        char *stacks[2];
        for (long j = 0; j < now; j++) {
            stacks[j] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
            if (clone(bare_body, stacks[j] + size, flags, (void *)(i + j)) < 0) {
                perror("clone");
                exit(1);
            }
        }
        work(i);
        while (atomic_load(&done) < now) sched_yield();
        // Stacks are left mapped: the threads may still be on their way out.
    }
}

static long run(const char *mode, long a, long b, long c)
{
    if (!strcmp(mode, "chain")) {
        calls_each = c;
        chain(a, b);
        return a * c;
    }
    calls_each = b;
    if (!strcmp(mode, "crowd")) {
        crowd(a);
        return 2 * a * b;
    }
    if (!strcmp(mode, "pool")) {
        pool(a);
        return a * b;
    }
    if (!strcmp(mode, "bare")) {
        bare(a);
        return (a + (a + 1) / 2) * b;
    }
    if (!strcmp(mode, "alarmed")) {
        alarmed(a);
        return (a + 7) / 8 * 8 * b + done;
    }
    if (!strcmp(mode, "family")) {
        family(a);
        return a * b;
    }
    if (!strcmp(mode, "hold")) {
        CHECK(a <= 4000);
        hold(a);
        return 0;
    }
    if (!strcmp(mode, "free")) {
        let_go();
        return a * b;
    }
    fprintf(stderr, "usage: swarm [chain N WIDTH K | crowd N K | pool N K | bare N K | ...]\n");
    exit(2);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        long number[3] = {0};
        for (int i = 2; i < argc && i < 5; i++)
            number[i - 2] = atol(argv[i]);
        printf("%ld calls\n", run(argv[1], number[0], number[1], number[2]));
        return 0;
    }
    char line[100], mode[20];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long a = 0, b = 0, c = 0;
        CHECK(sscanf(line, "%19s %ld %ld %ld", mode, &a, &b, &c) >= 1);
        printf("%ld\n", run(mode, a, b, c));
        fflush(stdout);
    }
    return 0;
}
