/* easy() and hard(): the second does three times what the first does. `pairs N CALLS` calls each that often, by turns, with N steps in easy.
 * It says how long a call of each takes by its own clock, from loops that call nothing else. Under probes that is not what they take by themselves. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STEP(x) x = (x ^ (x >> 7)) * 0x9e3779b97f4a7c15u + 1

__attribute__((noinline)) uint64_t easy(uint64_t x, long steps) {
	for (long i = 0; i < steps; i++)
		STEP(x);
	return x;
}

__attribute__((noinline)) uint64_t hard(uint64_t x, long steps) {
	for (long i = 0; i < 3 * steps; i++)
		STEP(x);
	return x;
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* The least of many short loops: everything else that a machine does only adds. Asking for the time takes a third of a microsecond: no part of a loop. */
static double each(uint64_t (*f)(uint64_t, long), long steps) {
	volatile uint64_t sink = 1;
	double least = 1e18;
	long calls = 60000 / steps < 200 ? 200 : 60000 / steps;
	for (int round = 0; round < 200; round++) {
		double start = now();
		uint64_t x = sink;
		for (long i = 0; i < calls; i++)
			x = f(x, steps);
		sink = x;
		double took = (now() - start) / calls;
		if (took < least)
			least = took;
	}
	return least;
}

int main(int argc, char **argv) {
	long steps = atol(argv[1]), calls = argc > 2 ? atol(argv[2]) : 0;
	uint64_t x = 1;
	for (long i = 0; i < calls; i++)
		x = hard(easy(x, steps), steps);
	if (calls == 0)
		printf("%.3f %.3f\n", each(easy, steps), each(hard, steps));
	return x == 42;
}
