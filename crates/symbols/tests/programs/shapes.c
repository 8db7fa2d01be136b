/* Functions of many shapes; what the stripped program still tells about them is compared with its symbol table. */
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

static jmp_buf home;
static void *thread(void *argument) { return argument; }

__attribute__((noinline)) int table(int n)
{
    switch (n) {
    case 0: return 17;
    case 1: return n * 3 + 1;
    case 2: return -n;
    case 3: return n * n;
    case 4: return puts("four");
    case 5: return 99;
    case 6: return getpid();
    default: return 0;
    }
}

__attribute__((noinline)) int cold(int n)
{
    if (__builtin_expect(n > 1000, 0)) {
        fprintf(stderr, "unlikely %d\n", n);
        abort();
    }
    return n + 1;
}

__attribute__((noinline)) static int tail(int n) { return table(n + 1); }
__attribute__((noinline)) static int recursive(int n) { return n < 2 ? n : recursive(n - 1) + recursive(n - 2); }
__attribute__((noinline)) void empty(void) { asm volatile(""); }
__attribute__((noinline)) long variable(int n) { char *p = __builtin_alloca(n); memset(p, n, n); return p[n / 2]; }

static int one(int n) { return n + 1; }
static int two(int n) { return n * 2; }
int (*pointers[])(int) = {one, two, tail, recursive};

static int chosen(void) { return 5; }
static void *resolve(void) { return chosen; }
int indirect(void) __attribute__((ifunc("resolve")));

int main(int argc, char **argv)
{
    pthread_t other;
    pthread_create(&other, NULL, thread, NULL);
    pthread_join(other, NULL);
    ucontext_t context;
    getcontext(&context);
    if (argc > 90)
        swapcontext(&context, &context);
    if (!setjmp(home))
        longjmp(home, 1);
    if (argc > 91 && vfork() == 0)
        _exit(0);
    if (argc > 92)
        return fork();
    empty();
    int sum = indirect() + cold(argc) + (int)variable(argc + 10);
    for (int i = 0; i < 4; i++)
        sum += pointers[i](argc + (argv[0][0] & 1));
    printf("%d\n", sum);
    return 0;
}
