/* Threads that compute, sleep, wait for a lock, a pipe, a poll, and are too many for the machine. Each says at its end how
 * long it was on a processor and how long it took, read before and after its function is called and once more inside of it: the kernel's
 * word, against which the profile is held. With an argument: asks for three lines of input instead. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static __thread volatile unsigned long sink;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t printing = PTHREAD_MUTEX_INITIALIZER;
static int there[2], back[2], never[2];

static long long now(clockid_t clock) {
    struct timespec time;
    syscall(SYS_clock_gettime, clock, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* Of the running thread: on a processor, and by the wall. */
static __thread long long inner_cpu, inner_wall;

/* The wait between two readings is in neither of them: the inner ones leave it out, the outer ones have it. */
static inline void begins(void) {
    inner_cpu = now(CLOCK_THREAD_CPUTIME_ID);
    inner_wall = now(CLOCK_MONOTONIC);
}
static inline void ends(void) {
    inner_wall = now(CLOCK_MONOTONIC) - inner_wall;
    inner_cpu = now(CLOCK_THREAD_CPUTIME_ID) - inner_cpu;
}

NOINLINE void burn(long rounds) {
    for (long i = 0; i < rounds; i++)
        sink += i * i;
}
NOINLINE void tiny(long i) { sink += i; }

NOINLINE void busy(void) {
    begins();
    for (long i = 0; i < 3000000; i++) {
        tiny(i);
        if (i % 1024 == 0)
            burn(20000);
    }
    ends();
}
NOINLINE void naps(void) {
    begins();
    for (int i = 0; i < 40; i++) {
        usleep(5000);
        burn(1000000);
    }
    ends();
}
NOINLINE void locks(void) {
    begins();
    for (int i = 0; i < 100; i++) {
        pthread_mutex_lock(&mutex);
        burn(500000);
        pthread_mutex_unlock(&mutex);
        usleep(100);
    }
    ends();
}
NOINLINE void asks(void) {
    begins();
    char c = 0;
    for (int i = 0; i < 2000; i++) {
        if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1)
            return;
    }
    ends();
}
NOINLINE void answers(void) {
    begins();
    char c = 0;
    for (int i = 0; i < 2000; i++) {
        if (read(there[0], &c, 1) != 1 || write(back[1], &c, 1) != 1)
            return;
    }
    ends();
}
NOINLINE void polls(void) {
    begins();
    struct pollfd fd = {never[0], POLLIN, 0};
    for (int i = 0; i < 20; i++) {
        poll(&fd, 1, 10);
        burn(1000000);
    }
    ends();
}

struct kind {
    const char *name;
    void (*body)(void);
};

static void *thread(void *argument) {
    struct kind *kind = argument;
    long long wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
    kind->body();
    cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
    wall = now(CLOCK_MONOTONIC) - wall;
    pthread_mutex_lock(&printing);
    printf("%s %ld %lld %lld %lld %lld\n", kind->name, (long)syscall(SYS_gettid), cpu, wall, inner_cpu, inner_wall);
    pthread_mutex_unlock(&printing);
    return 0;
}

/* Calls nobody: when it returns is the first that is heard of its waiting. */
NOINLINE long waits_itself(void) {
    struct timespec time = {0, 10000000};
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"((long)SYS_nanosleep), "D"(&time), "S"(0L) : "rcx", "r11", "memory");
    return result;
}

NOINLINE long ask_person(void) {
    char line[64];
    puts("line?");
    return read(0, line, sizeof line);
}

int main(int count, char **arguments) {
    if (count > 1 && arguments[1][0] == 'i') {
        for (int i = 0; i < 10; i++)
            waits_itself();
        return 0;
    }
    if (count > 1) {
        setvbuf(stdout, 0, _IOLBF, 0);
        for (int i = 0; i < 3; i++) {
            ask_person();
            burn(1000000);
        }
        return 0;
    }
    static struct kind kinds[] = {{"busy", busy},   {"busy", busy},       {"busy", busy}, {"busy", busy}, {"naps", naps},
                                  {"locks", locks}, {"locks", locks}, {"asks", asks}, {"answers", answers}, {"polls", polls}};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    pthread_t threads[KINDS];
    if (pipe(there) || pipe(back) || pipe(never))
        return 1;
    for (int i = 0; i < KINDS; i++)
        pthread_create(&threads[i], 0, thread, &kinds[i]);
    for (int i = 0; i < KINDS; i++)
        pthread_join(threads[i], 0);
    return 0;
}
