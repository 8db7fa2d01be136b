/* Work that is done in every way in which a call can be made and left, and a line on standard output for each piece of it, so that a test knows what
   has to be recorded. Usage: logged threads|fork|signals|coroutines|tail|jumps */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static volatile long sink;

/* One write, so that lines of threads, children and handlers stay whole. */
NOINLINE void note(const char *who, long n, long result)
{
	char line[128];
	int len = snprintf(line, sizeof line, "%s %ld %ld %d %ld\n", who, n, result, getpid(), syscall(SYS_gettid));
	if (write(1, line, len) != len)
		abort();
}

NOINLINE long job(const char *who, long n)
{
	long result = n * 3 + 1;
	sink += result;
	note(who, n, result);
	return result;
}

NOINLINE void several(const char *who, long from, long count)
{
	for (long n = from; n < from + count; n++)
		sink += job(who, n);
}

static void *worker(void *number)
{
	char who[32];
	snprintf(who, sizeof who, "worker-%ld", (long)number);
	several(who, (long)number * 1000, 60);
	return NULL;
}

static void threads(void)
{
	/* More than run at once, so that later ones take over the places of those that have ended. */
	for (long round = 0; round < 4; round++) {
		pthread_t all[4];
		for (long i = 0; i < 4; i++)
			pthread_create(&all[i], NULL, worker, (void *)(round * 4 + i));
		for (int i = 0; i < 4; i++)
			pthread_join(all[i], NULL);
	}
}

NOINLINE void child(long number)
{
	several("child", number * 100, 20);
	if (number == 0 && fork() == 0) {
		several("grandchild", 5000, 20);
		_exit(0);
	}
	while (wait(NULL) > 0)
		;
}

static void forks(void)
{
	several("parent", 0, 20);
	for (long i = 0; i < 3; i++)
		if (fork() == 0) {
			child(i);
			exit(0);
		}
	several("parent", 20, 20);
	while (wait(NULL) > 0)
		;
}

static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
	job("handler", ++handled);
}

static void signals(void)
{
	stack_t other = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
	sigaltstack(&other, NULL);
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	sigaction(SIGALRM, &action, NULL);
	action.sa_flags |= SA_ONSTACK;
	sigaction(SIGUSR1, &action, NULL);
	struct itimerval often = { { 0, 100 }, { 0, 100 } }, never = { { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &often, NULL);
	for (long n = 0; n < 3000; n++) {
		sink += job("main", n);
		if (n % 100 == 0)
			raise(SIGUSR1);
	}
	setitimer(ITIMER_REAL, &never, NULL);
}

static ucontext_t scheduler, coroutine[3];
static long steps[3];

/* Begun on one turn, finished on the next. */
NOINLINE long step(const char *who, long number, long n)
{
	long first = job(who, n);
	swapcontext(&coroutine[number], &scheduler);
	return first + job(who, n + 1);
}

static void run(int number)
{
	static const char *names[] = { "red", "green", "blue" };
	for (long n = 0; n < 20; n += 2)
		steps[number] += step(names[number], number, n);
}

static void coroutines(void)
{
	for (int i = 0; i < 3; i++) {
		getcontext(&coroutine[i]);
		coroutine[i].uc_stack.ss_sp = malloc(1 << 16);
		coroutine[i].uc_stack.ss_size = 1 << 16;
		coroutine[i].uc_link = &scheduler;
		makecontext(&coroutine[i], (void (*)(void))run, 1, i);
	}
	for (int turn = 0; turn < 11; turn++)
		for (int i = 0; i < 3; i++)
			swapcontext(&scheduler, &coroutine[i]);
}

/* All of these are jumps. */
NOINLINE long third(long n)
{
	return job("tail", n);
}

NOINLINE long second(long n)
{
	sink++;
	return third(n);
}

NOINLINE long first(long n)
{
	sink++;
	return n % 2 ? second(n) : third(n);
}

static void tail(void)
{
	for (long n = 0; n < 40; n++)
		sink += first(n);
}

static jmp_buf out;

NOINLINE void deeper(long n)
{
	job("jumps", n);
	if (n % 4 == 0)
		longjmp(out, 1);
}

NOINLINE void guarded(long n)
{
	if (setjmp(out) == 0)
		deeper(n);
}

static void jumps(void)
{
	for (long n = 0; n < 40; n++)
		guarded(n);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = { { "threads", threads }, { "fork", forks }, { "signals", signals }, { "coroutines", coroutines }, { "tail", tail }, { "jumps", jumps } };
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (argc > 1 && strcmp(argv[1], all[i].name) == 0)
			all[i].run();
	return 0;
}
