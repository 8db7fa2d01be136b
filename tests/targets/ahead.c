/* Counts its own calls, in threads, fork children and signal handlers, and prints how often each function was called in all processes:
   work, step, handler. With an argument it then ends by that signal; "wait": waits for input first. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct { long work, step, handler, thread; } *count;

#define ADD(what) __atomic_fetch_add(&count->what, 1, __ATOMIC_RELAXED)

__attribute__((noinline)) long step(long n)
{
    ADD(step);
    return n * 3 + 1;
}

__attribute__((noinline)) long work(long n)
{
    ADD(work);
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += step(i ^ n);
    return sum;
}

__attribute__((noinline)) void handler(int number)
{
    ADD(handler);
    step(number);
}

__attribute__((noinline)) void *thread(void *argument)
{
    ADD(thread);
    long sum = 0;
    for (int i = 0; i < 2000; i++)
        sum += work(i % 7);
    (void)argument;
    return (void *)sum;
}

int main(int argc, char **argv)
{
    count = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    signal(SIGUSR1, handler);
    for (int i = 0; i < 100; i++)
        raise(SIGUSR1);
    pthread_t threads[4];
    long sum = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++)
            pthread_create(&threads[i], 0, thread, 0);
        for (int i = 0; i < 4; i++) {
            void *result;
            pthread_join(threads[i], &result);
            sum += (long)result;
        }
    }
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (child == 0) {
            sum += (long)thread(0);
            _exit(0);
        }
        waitpid(child, 0, 0);
    }
    printf("work %ld\nstep %ld\nhandler %ld\nthread %ld\nsum %ld\n", count->work, count->step,
           count->handler, count->thread, sum);
    fflush(stdout);
    if (argc > 1 && !strcmp(argv[1], "wait"))
        getchar();
    else if (argc > 1)
        raise(atoi(argv[1]));
    return 0;
}
