// Asks thalweg for its own figures, and prints them: calls between two questions, blocks and bytes, of the thread and of all.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../include/thalweg.h"

THALWEG_REGION(numbers)
static volatile long sink;

__attribute__((noinline)) void leaf(int i) { sink += i; }
__attribute__((noinline)) void *work(void *argument) {
    for (int i = 0; i < (int)(long)argument; i++) leaf(i);
    free(malloc(100));
    return NULL;
}

int main(void) {
    thalweg_totals before = thalweg_thread_totals();
    thalweg_region_numbers(work, (void *)1000);
    thalweg_totals after = thalweg_thread_totals();
    pthread_t other;
    pthread_create(&other, NULL, work, (void *)5000);
    pthread_join(other, NULL);
    thalweg_totals thread = thalweg_thread_totals(), process = thalweg_process_totals();
    thalweg_checkpoint();
    // Between the questions: leaf, work, the region, malloc, free and what they call, and the second question.
    printf("%d %d %d %d %d %d\n", (int)before.attached, after.calls - before.calls >= 1005,
           after.calls - before.calls < 1040, after.base_ns > before.base_ns,
           process.calls - thread.calls >= 5003, process.base_ns >= thread.base_ns);
    printf("%ld %ld %ld\n", (long)(after.alloc_calls - before.alloc_calls),
           (long)(after.alloc_bytes - before.alloc_bytes), (long)(after.free_bytes - before.free_bytes));
    return (int)process.partial;
}
