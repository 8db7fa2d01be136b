/* Calls worth recording: requests of which some are slow, some fail, and all carry values. Usage: recorded ROUNDS
   It says on standard output what it did, so that a test knows what has to be recorded. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile long sink;
static jmp_buf out;

NOINLINE void nap(long us)
{
	struct timespec pause = { us / 1000000, us % 1000000 * 1000 };
	nanosleep(&pause, NULL);
}

NOINLINE long small(long n)
{
	sink += n;
	return n + 1;
}

NOINLINE long leaf(long n)
{
	long sum = 0;
	for (int i = 0; i < 20; i++)
		sum += small(n + i);
	return sum;
}

/* Every fifth is slow. */
NOINLINE int query(const char *sql, int n)
{
	leaf(n);
	if (n % 5 == 0)
		nap(3000);
	errno = n % 7 == 0 ? ENOENT : 0;
	return n % 7 == 0 ? -n : n;
}

NOINLINE double scale(double by, int n)
{
	return by * n + sink * 0.0;
}

/* Where nobody can read. */
NOINLINE void point(const char *nowhere, int n)
{
	sink += n + (nowhere != NULL);
}

NOINLINE void give_up(int n)
{
	if (n % 11 == 0)
		longjmp(out, 1);
	sink += n;
}

NOINLINE int work(int n)
{
	char sql[64];
	snprintf(sql, sizeof sql, "select %d", n);
	int result = query(sql, n);
	scale(1.5, n);
	point((const char *)16, n);
	give_up(n);
	return result;
}

NOINLINE int serve(int n)
{
	if (setjmp(out))
		return -1;
	return work(n);
}

NOINLINE int serve_by_jump(int n)
{
	sink++;
	return serve(n);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 20;
	for (int i = 1; i <= rounds; i++)
		i % 2 ? serve(i) : serve_by_jump(i);
	printf("%d\n", rounds);
	return 0;
}
