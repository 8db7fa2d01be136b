// Does a known number of things that the kernel counts: touches fresh pages, and sleeps. Says what the kernel has counted for each of its
// threads meanwhile: faults, voluntary and other switches.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096 };

static char *fresh(long pages) {
    char *memory = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, pages * PAGE, MADV_NOHUGEPAGE) != 0) {
        perror("memory");
        exit(1);
    }
    return memory;
}

// One page fault for each page, in the function itself.
__attribute__((noinline)) void touch(char *memory, long pages) {
    for (long page = 0; page < pages; page++)
        *(volatile char *)(memory + page * PAGE) = 1;
}

// The same from two callers.
__attribute__((noinline)) void few(char *memory, long pages) {
    touch(memory, pages);
    __asm__ volatile("");
}

__attribute__((noinline)) void many(char *memory, long pages) {
    touch(memory, pages);
    touch(memory + pages * PAGE, 2 * pages);
    __asm__ volatile("");
}

// The kernel touches the pages, in a system call.
__attribute__((noinline)) void filled(FILE *zero, char *memory, long pages) {
    if (read(fileno(zero), memory, pages * PAGE) != pages * PAGE)
        exit(1);
}

// Deep in the stack.
__attribute__((noinline)) long deep(char *memory, long pages, long levels) {
    volatile char room[1024];
    room[levels & 1023] = 1;
    if (levels == 0) {
        touch(memory, pages);
        return room[0];
    }
    return deep(memory, pages, levels - 1) + room[0];
}

__attribute__((noinline)) void doze(long times) {
    struct timespec moment = {0, 1000};
    for (long i = 0; i < times; i++)
        nanosleep(&moment, 0);
}

// The stack that `deep` needs is there before.
__attribute__((noinline)) void make_room(void) {
    char stack[128 << 10];
    memset(stack, 1, sizeof stack);
    __asm__ volatile("" : : "r"(stack) : "memory");
}

static void *work(void *arg) {
    long scale = (long)arg;
    FILE *zero = fopen("/dev/zero", "r");
    make_room();
    struct rusage before, after;
    getrusage(RUSAGE_THREAD, &before);
    few(fresh(10 * scale), 10 * scale);
    many(fresh(300 * scale), 100 * scale);
    filled(zero, fresh(7 * scale), 7 * scale);
    deep(fresh(5 * scale), 5 * scale, 60);
    getrusage(RUSAGE_THREAD, &after);
    long faults = after.ru_minflt - before.ru_minflt + after.ru_majflt - before.ru_majflt;
    doze(20 * scale);
    getrusage(RUSAGE_THREAD, &after);
    printf("%ld %ld %ld\n", faults, after.ru_nvcsw - before.ru_nvcsw, after.ru_nivcsw - before.ru_nivcsw);
    fclose(zero);
    return 0;
}

int main(int argc, char **argv) {
    long scale = argc > 1 ? atol(argv[1]) : 1;
    const char *how = argc > 2 ? argv[2] : "threads";
    if (strcmp(how, "ask") == 0) {
        char line[64];
        printf("ready\n");
        fflush(stdout);
        while (fgets(line, sizeof line, stdin) && line[0] != 'e') {
            work((void *)scale);
            fflush(stdout);
        }
    } else if (strcmp(how, "fork") == 0) {
        pid_t child = fork();
        if (child == 0) {
            few(fresh(30 * scale), 30 * scale);
            exit(0);
        }
        waitpid(child, 0, 0);
        few(fresh(10 * scale), 10 * scale);
    } else {
        pthread_t other;
        pthread_create(&other, 0, work, (void *)(2 * scale));
        pthread_join(other, 0);
        work((void *)scale);
    }
    return 0;
}
