/* Enters the kernel in every way that C has: by the library's functions, by its `syscall`, by instructions of its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long enter(long number) {
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number) : "rcx", "r11", "memory");
    return answer;
}

__attribute__((noinline)) static long by_hand(void) { return enter(SYS_getuid); }

__attribute__((noinline)) static long twice(void) { return enter(SYS_getgid) + enter(SYS_getgid); }

__attribute__((noinline)) static long in_a_loop(int times) {
    long sum = 0;
    for (int i = 0; i < times; i++) sum += enter(SYS_getegid);
    return sum;
}

__attribute__((noinline)) static long work(int times) {
    char bytes[16];
    long sum = 0;
    int file = open("/dev/zero", O_RDONLY);
    for (int i = 0; i < times; i++) {
        sum += by_hand() + twice() + syscall(SYS_getppid) + read(file, bytes, sizeof bytes);
        sum += in_a_loop(i % 4);
    }
    close(file);
    return sum;
}

static void *thread(void *argument) { return (void *)work(*(int *)argument); }

int main(void) {
    int times = 100;
    pthread_t other;
    long sum = work(1000);
    pthread_create(&other, NULL, thread, &times);
    pthread_join(other, NULL);
    if (fork() == 0) _exit(work(10) == 0);
    wait(NULL);
    printf("%ld\n", sum);
    return 0;
}
