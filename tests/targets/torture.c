/* Eight threads that check their own results for as long as they live. Any wrong result, and any EINTR that
 * no signal of ours explains, prints ERROR and ends the program with status 1. SIGTERM: "OK rounds". */
#define _GNU_SOURCE
#include "target.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static atomic_long rounds;

#define SURE(condition)                                                                    \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            int error = errno;                                                             \
            printf("ERROR %s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, error); \
            fflush(stdout);                                                                \
            _exit(1);                                                                      \
        }                                                                                  \
    } while (0)

FN unsigned fib(unsigned n)
{
    if (n < 2)
        return n;
    unsigned a = fib(n - 1);
    KEEP;
    return a + fib(n - 2);
}

FN long pong(long left, long sum);
FN long ping(long left, long sum) { KEEP; return left ? pong(left - 1, sum + left) : sum; }
FN long pong(long left, long sum) { KEEP; return left ? ping(left - 1, sum + left) : sum; }

FN double series(int terms)
{
    double sum = 0;
    for (int i = 1; i <= terms; i++)
        sum += sqrt(i) / i + sin(i);
    return sum;
}

FN long double x87(long double v) { KEEP; return v * 3 + 1; }

FN int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

FN unsigned hash(const unsigned char *p, size_t n)
{
    unsigned h = 2166136261u;
    while (n--)
        h = (h ^ *p++) * 16777619u;
    return h;
}

FN void *computing(void *unused)
{
    double expected = series(200);
    for (;;) {
        SURE(fib(12) == 144);
        SURE(ping(100, 0) == 5050);
        SURE(series(200) == expected);
        SURE(x87(2.5L) == 8.5L);
        atomic_fetch_add(&rounds, 1);
    }
    return unused;
}

FN void *sorting(void *unused)
{
    unsigned seed = 1;
    for (;;) {
        int values[64];
        for (int i = 0; i < 64; i++)
            values[i] = (int)((seed = seed * 1103515245 + 12345) >> 16);
        qsort(values, 64, sizeof values[0], compare);
        for (int i = 1; i < 64; i++)
            SURE(values[i - 1] <= values[i]);
        char text[64];
        int length = snprintf(text, sizeof text, "%d:%.3f:%s", values[0], values[1] * .5, "tail");
        SURE(length > 0 && !strcmp(text + length - 4, "tail"));
        unsigned char *copy = malloc((size_t)length + 1);
        memcpy(copy, text, (size_t)length + 1);
        SURE(hash(copy, (size_t)length) == hash((unsigned char *)text, (size_t)length));
        free(copy);
        atomic_fetch_add(&rounds, 1);
    }
    return unused;
}

/* Two threads pass a counter round through two pipes. */
static int there[2], back[2];
FN void *passing(void *unused)
{
    for (long i = 0;; i++) {
        long got;
        SURE(write(there[1], &i, sizeof i) == sizeof i);
        SURE(read(back[0], &got, sizeof got) == sizeof got);
        SURE(got == i + 1);
        atomic_fetch_add(&rounds, 1);
    }
    return unused;
}
FN void *returning(void *unused)
{
    for (;;) {
        long got;
        SURE(read(there[0], &got, sizeof got) == sizeof got);
        got++;
        SURE(write(back[1], &got, sizeof got) == sizeof got);
    }
    return unused;
}

/* With an argument: an EINTR that nobody explains is counted, not an error. */
static int forgiving;
static atomic_long strays;

FN void *sleeping(void *unused)
{
    int epoll = epoll_create1(0);
    for (;;) {
        struct timespec span = { 0, 300000 };
        SURE(nanosleep(&span, 0) == 0);
        struct epoll_event event;
        int ready = epoll_wait(epoll, &event, 1, 1);
        if (ready == -1 && errno == EINTR && forgiving)
            strays++;
        else
            SURE(ready == 0);
        atomic_fetch_add(&rounds, 1);
    }
    return unused;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed = PTHREAD_COND_INITIALIZER;
static long turn;
FN void *alternating(void *argument)
{
    long mine = (long)argument;
    for (;;) {
        pthread_mutex_lock(&lock);
        while ((turn & 1) != mine)
            SURE(pthread_cond_wait(&turn_changed, &lock) == 0);
        turn++;
        pthread_cond_signal(&turn_changed);
        pthread_mutex_unlock(&lock);
        SURE(fib(8) == 21);
        atomic_fetch_add(&rounds, 1);
    }
    return 0;
}

/* Signals to itself, each handled exactly once, and jumps over live frames. */
static __thread volatile long handled;
FN void on_signal(int number) { (void)number; handled++; }
static __thread jmp_buf escape;
FN void jump(int left)
{
    if (left == 0)
        longjmp(escape, 7);
    jump(left - 1);
    KEEP;
}
FN void *signalled(void *unused)
{
    for (long sent = 1;; sent++) {
        pthread_kill(pthread_self(), SIGUSR1);
        SURE(handled == sent);
        int got = setjmp(escape);
        if (got == 0)
            jump(5);
        SURE(got == 7);
        atomic_fetch_add(&rounds, 1);
        if (sent % 64 == 0)
            sched_yield();
    }
    return unused;
}

int main(int argc, char **argv)
{
    (void)argv;
    forgiving = argc > 1;
    sigset_t end;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigaddset(&end, SIGINT);
    pthread_sigmask(SIG_BLOCK, &end, 0);
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &action, 0);
    SURE(pipe(there) == 0 && pipe(back) == 0);
    pthread_t thread;
    pthread_create(&thread, 0, computing, 0);
    pthread_create(&thread, 0, sorting, 0);
    pthread_create(&thread, 0, passing, 0);
    pthread_create(&thread, 0, returning, 0);
    pthread_create(&thread, 0, sleeping, 0);
    pthread_create(&thread, 0, alternating, (void *)0);
    pthread_create(&thread, 0, alternating, (void *)1);
    pthread_create(&thread, 0, signalled, 0);
    printf("ready\n");
    fflush(stdout);
    int number;
    SURE(sigwait(&end, &number) == 0);
    printf("OK %ld %ld\n", atomic_load(&rounds), atomic_load(&strays));
    fflush(stdout);
    _exit(0);
}
