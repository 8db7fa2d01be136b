/* Programs whose stacks are worth looking at, and which know themselves where their time went. */
#define _GNU_SOURCE
#include "target.h"
#include <alloca.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sink;

static double used(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

static void spin(double ms)
{
    for (double end = used() + ms; used() < end;)
        for (int i = 0; i < 20000; i++)
            sink += i;
}
#define SPIN(n)                                                                                                            \
    for (unsigned long i = 0; i < (n); i++)                                                                                \
    sink += i

FN void six(unsigned long n) { SPIN(6 * n); }
FN void three(unsigned long n) { SPIN(3 * n); }
FN void one(unsigned long n) { SPIN(n); }

/* Says how many milliseconds each of the three took. */
static void shares(unsigned long rounds)
{
    void (*functions[3])(unsigned long) = {six, three, one};
    double took[3] = {0};
    for (unsigned long r = 0; r < rounds; r++)
        for (int i = 0; i < 3; i++) {
            double start = used();
            functions[i](100000);
            took[i] += used() - start;
        }
    printf("six %f\nthree %f\none %f\n", took[0], took[1], took[2]);
}

/* Functions so short that nearly all of them is displaced. */
FN long tiny_leaf(long x) { return x * 3 + 1; }
FN long tiny_caller(long x) { return tiny_leaf(x) + 1; }
FN long tiny_pushes(long x, long (*f)(long))
{
    long y = f(x);
    KEEP;
    return y ^ x;
}
FN long tiny_jumps(long x) { return tiny_caller(x + 1); }

static void tiny(unsigned long rounds)
{
    long (*volatile leaf)(long) = tiny_leaf;
    for (unsigned long r = 0; r < rounds; r++)
        sink += tiny_pushes(r, leaf) + tiny_jumps(r) + tiny_caller(r);
    printf("%lu\n", sink);
}

FN void bottom(double ms)
{
    spin(ms);
    KEEP;
}

FN long sink_down(long bytes, double ms)
{
    volatile char *room = alloca(4096);
    room[0] = room[4095] = 1;
    if (bytes <= 0)
        bottom(ms);
    else
        sink_down(bytes - 4096, ms);
    KEEP;
    return room[0];
}

FN void *brief(void *ms)
{
    spin(*(double *)ms);
    return NULL;
}

FN void *lasting(void *ms)
{
    spin(*(double *)ms);
    return NULL;
}

/* One thread that lasts, and beside it others that come and go. */
static void threads(int count)
{
    double ms = 20, all = 20.0 * count;
    pthread_t one, other;
    pthread_create(&one, NULL, lasting, &all);
    for (int i = 0; i < count; i++) {
        pthread_create(&other, NULL, brief, &ms);
        pthread_join(other, NULL);
    }
    pthread_join(one, NULL);
}

FN void in_the_child(double ms)
{
    spin(ms);
    KEEP;
}

static void forks(void)
{
    pid_t child = fork();
    if (child == 0) {
        in_the_child(300);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

/* Does next to nothing itself: the kernel fills the pages. */
FN void in_the_kernel(double ms)
{
    static char page[1 << 16];
    int zeros = open("/dev/zero", O_RDONLY);
    for (double end = used() + ms; used() < end;)
        for (int i = 0; i < 20; i++)
            CHECK(read(zeros, page, sizeof page) == sizeof page);
    close(zeros);
}

static volatile int handled;

FN void handler(int signal)
{
    (void)signal;
    spin(3);
    handled++;
}

FN void interrupted(int times)
{
    while (handled < times)
        for (int i = 0; i < 1000; i++)
            sink += i;
}

static void signals(int times)
{
    struct itimerval every = {{0, 5000}, {0, 5000}};
    signal(SIGPROF, handler);
    setitimer(ITIMER_PROF, &every, NULL);
    interrupted(times);
}

/* Its second half stands apart, in what compilers call the cold part. */
FN __attribute__((cold)) void rarely(void) { KEEP; }
FN void in_two_parts(unsigned long n, int really)
{
    if (really) {
        rarely();
        SPIN(n);
    }
    KEEP;
}

static void loads(const char *library, double ms)
{
    void *opened = dlopen(library, RTLD_NOW);
    CHECK(opened != NULL);
    void (*work)(volatile unsigned long *) = (void (*)(volatile unsigned long *))dlsym(opened, "looked_plug");
    for (double end = used() + ms; used() < end;)
        work(&sink);
}

FN void *nothing(void *unused) { return unused; }

static pid_t number;

FN void *earlier(void *ms)
{
    number = gettid();
    spin(*(double *)ms);
    return NULL;
}

FN void *later(void *ms)
{
    if (gettid() != number)
        return NULL;
    spin(*(double *)ms);
    return ms;
}

/* Two threads, one after the other, that have the same number. */
static void same_number(void)
{
    double ms = 100;
    pthread_t one;
    void *done = NULL;
    pthread_create(&one, NULL, earlier, &ms);
    pthread_join(one, NULL);
    /* Whoever looks has heard by then that it ended. */
    usleep(500000);
    for (int tries = 0; tries < 1000 && done == NULL; tries++) {
        FILE *last = fopen("/proc/sys/kernel/ns_last_pid", "w");
        CHECK(last != NULL && fprintf(last, "%d", number - 1) > 0 && fclose(last) == 0);
        pthread_create(&one, NULL, later, &ms);
        pthread_join(one, &done);
    }
    CHECK(done != NULL);
}

/* Little else than making threads. */
static void makes(int count)
{
    pthread_t one;
    for (int i = 0; i < count; i++) {
        pthread_create(&one, NULL, nothing, NULL);
        pthread_join(one, NULL);
    }
}

/* Threads that are at work when somebody comes. */
static void several(int count)
{
    static double hour = 3600e3;
    pthread_t one;
    for (int i = 0; i < count; i++)
        pthread_create(&one, NULL, lasting, &hour);
    printf("ready\n");
    fflush(stdout);
    bottom(hour);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    long n = argc > 2 ? atol(argv[2]) : 1;
    if (!strcmp(what, "shares"))
        shares(n);
    else if (!strcmp(what, "tiny"))
        tiny(n);
    else if (!strcmp(what, "deep"))
        sink_down(n, 300);
    else if (!strcmp(what, "threads"))
        threads(n);
    else if (!strcmp(what, "same"))
        same_number();
    else if (!strcmp(what, "forks"))
        forks();
    else if (!strcmp(what, "kernel"))
        in_the_kernel(n);
    else if (!strcmp(what, "signals"))
        signals(n);
    else if (!strcmp(what, "cold"))
        in_two_parts(n, argc > 1);
    else if (!strcmp(what, "loads"))
        loads(argv[3], n);
    else if (!strcmp(what, "makes"))
        makes(n);
    else if (!strcmp(what, "several"))
        several(n);
    else if (!strcmp(what, "killed")) {
        printf("ready\n");
        fflush(stdout);
        bottom(300);
        raise(9);
    } else
        return 2;
    return 0;
}
