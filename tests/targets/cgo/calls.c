// The C half of main.go.
#include <pthread.h>
#include <stdint.h>

extern int goBack(int);

static uint64_t c_calls[3];

__attribute__((noinline)) int c_leaf(int n) {
	__atomic_add_fetch(&c_calls[0], 1, __ATOMIC_RELAXED);
	return n + 1;
}

__attribute__((noinline)) int c_around(int n) {
	__atomic_add_fetch(&c_calls[1], 1, __ATOMIC_RELAXED);
	int sum = c_leaf(n);
	if (n > 0)
		sum += goBack(n - 1);
	return sum + c_leaf(sum);
}

static void *c_thread(void *arg) {
	__atomic_add_fetch(&c_calls[2], 1, __ATOMIC_RELAXED);
	return (void *)(intptr_t)goBack((int)(intptr_t)arg);
}

int c_in_thread(int n) {
	pthread_t thread;
	void *result;
	pthread_create(&thread, 0, c_thread, (void *)(intptr_t)n);
	pthread_join(thread, &result);
	return (int)(intptr_t)result;
}

uint64_t c_count(int i) { return c_calls[i]; }
