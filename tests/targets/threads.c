/* threads N: N workers share a queue of jobs behind a mutex and a condition; every job is done once. */
#include "target.h"
#include <pthread.h>

enum { JOBS = 400 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
static int offered, taken, finished;
static long results[JOBS];

FN long square(long x) { KEEP; return x * x; }
FN long cube(long x)
{
    long s = square(x);
    KEEP;
    return s * x;
}
FN long job(long number)
{
    long sum = 0;
    for (int i = 0; i < 20; i++)
        sum += (number + i) & 1 ? square(i) : cube(i);
    KEEP;
    return sum + number;
}

FN int take(void)
{
    pthread_mutex_lock(&lock);
    while (taken == offered && !finished)
        pthread_cond_wait(&ready, &lock);
    int number = taken < offered ? taken++ : -1;
    pthread_mutex_unlock(&lock);
    return number;
}

FN void *worker(void *unused)
{
    (void)unused;
    int number;
    while ((number = take()) >= 0)
        results[number] = job(number);
    return 0;
}

FN void offer(void)
{
    pthread_mutex_lock(&lock);
    offered++;
    pthread_cond_signal(&ready);
    pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 2;
    pthread_t workers[64];
    CHECK(count > 0 && count <= 64);
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&workers[i], 0, worker, 0) == 0);
    for (int i = 0; i < JOBS; i++)
        offer();
    pthread_mutex_lock(&lock);
    finished = 1;
    pthread_cond_broadcast(&ready);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++)
        pthread_join(workers[i], 0);
    long sum = 0;
    for (int i = 0; i < JOBS; i++) {
        CHECK(results[i] == job(i));
        sum += results[i];
    }
    printf("threads: ok %ld\n", sum);
    return 0;
}
