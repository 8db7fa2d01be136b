/* A program, and with -DLIBRARY a library for LD_PRELOAD, whose constructor makes a thread that calls a function of the program over
   and over, before the program has begun and while it runs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#ifdef LIBRARY

static int (*step)(int);
static atomic_int called;

static void *call(void *unused) {
    (void)unused;
    for (;;) {
        step(1);
        called = 1;
    }
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    atomic_int *others = dlsym(RTLD_DEFAULT, "others");
    pthread_t thread;
    step = (int (*)(int))dlsym(RTLD_DEFAULT, "step");
    if (!others || !step)
        return;
    *others = 1;
    pthread_create(&thread, NULL, call, NULL);
    while (!called)
        usleep(100);
}

#else

atomic_int others, steps;

__attribute__((noinline)) int step(int by) {
    return atomic_fetch_add(&steps, by) + by;
}

int main(void) {
    int sum = 0, before = steps;
    for (int i = 0; i < 1000; i++)
        sum += step(1) > i;
    while (others && steps < before + 100000)
        usleep(100);
    printf("%d\n", sum);
    fflush(stdout);
    _exit(0);
}

#endif
