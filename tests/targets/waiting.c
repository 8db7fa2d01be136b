/* Blocking calls of known length. `waiting MS` does each once and ends; `waiting forever` leaves one thread
 * blocked in each of them until it is killed. */
#include "target.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static long span_ms = 200;
static int pipe_ends[2], epoll;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static volatile double sink;

FN struct timespec deadline(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += span_ms / 1000;
    t.tv_nsec += span_ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

FN void wait_sleep(void)
{
    struct timespec span = { span_ms / 1000, span_ms % 1000 * 1000000 };
    CHECK(nanosleep(&span, 0) == 0);
}

FN void wait_read(void)
{
    char byte;
    CHECK(read(pipe_ends[0], &byte, 1) == 1);
}

FN void wait_condition(void)
{
    struct timespec until = deadline();
    pthread_mutex_lock(&lock);
    CHECK(pthread_cond_timedwait(&never, &lock, &until) == ETIMEDOUT);
    pthread_mutex_unlock(&lock);
}

FN void wait_epoll(void)
{
    struct epoll_event event;
    CHECK(epoll_wait(epoll, &event, 1, (int)span_ms) == 0);
}

FN void busy(void)
{
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        for (int i = 0; i < 1000; i++)
            sink = sink * 1.0001 + i;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < span_ms);
}

FN void *writer(void *unused)
{
    (void)unused;
    wait_sleep();
    CHECK(write(pipe_ends[1], "x", 1) == 1);
    return 0;
}

FN void *blocked_sleep(void *unused) { for (;;) { wait_sleep(); (void)unused; } }
FN void *blocked_read(void *unused) { wait_read(); return unused; }
FN void *blocked_epoll(void *unused) { wait_epoll(); return unused; }
FN void *blocked_condition(void *unused) { wait_condition(); return unused; }

int main(int argc, char **argv)
{
    CHECK(pipe(pipe_ends) == 0);
    epoll = epoll_create1(0);
    pthread_t thread;
    if (argc > 1 && !strcmp(argv[1], "forever")) {
        span_ms = 1000000;
        pthread_create(&thread, 0, blocked_sleep, 0);
        pthread_create(&thread, 0, blocked_read, 0);
        pthread_create(&thread, 0, blocked_epoll, 0);
        pthread_create(&thread, 0, blocked_condition, 0);
        printf("ready\n");
        fflush(stdout);
        pause();
    }
    if (argc > 1)
        span_ms = atol(argv[1]);
    wait_sleep();
    pthread_create(&thread, 0, writer, 0);
    wait_read();
    pthread_join(thread, 0);
    wait_condition();
    wait_epoll();
    busy();
    printf("waiting: ok\n");
    return 0;
}
