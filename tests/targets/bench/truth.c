/* truth CASE ROUNDS: programs whose time `thalweg bench --only truth` knows, because it runs them without probes too. What they have in
 * common with real code is that their functions load, compare, branch and store; what differs is who calls whom how often. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As if each function were in a file of its own. */
#define FN __attribute__((noipa))

static unsigned char text[4096];
static __thread unsigned long table[64];

/* About 2 ns. */
FN static unsigned long leaf(unsigned long n)
{
    unsigned long *at = &table[n & 63];
    return *at += n;
}

/* Some nanoseconds to a microsecond: a hash over `length` bytes. */
FN static unsigned long hash(unsigned long n, unsigned length)
{
    const unsigned char *at = text + (n & 1023);
    for (unsigned i = 0; i < length; i++)
        n = (n ^ at[i]) * 1099511628211ul;
    return n;
}

/* Branches that are hard to foresee. */
FN static unsigned long search(unsigned long n)
{
    unsigned low = 0, high = 4096;
    unsigned char wanted = n * 2654435761ul >> 24;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (text[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

FN static unsigned long slow_parent(unsigned long n)
{
    unsigned long sum = hash(n, 200);
    for (unsigned i = 0; i < 20; i++)
        sum += leaf(n + i);
    return sum;
}

FN static unsigned long fibonacci(unsigned long n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

#define ONE(n) FN static unsigned long one_##n(unsigned long x) { return table[(x * n) & 63] + (x >> (n & 7)) + n; }
#define EIGHT(do, n) do(n##0) do(n##1) do(n##2) do(n##3) do(n##4) do(n##5) do(n##6) do(n##7)
#define ALL(do) EIGHT(do, 1) EIGHT(do, 2) EIGHT(do, 3) EIGHT(do, 4) EIGHT(do, 5) EIGHT(do, 6) EIGHT(do, 7) EIGHT(do, 8)
ALL(ONE)

FN static unsigned long fan_out(unsigned long n)
{
    unsigned long sum = 0;
#define CALL(k) sum ^= one_##k(n + k);
    ALL(CALL)
    return sum;
}

FN static unsigned long mixed(unsigned long n)
{
    unsigned long sum = leaf(n) + hash(n, 3) + hash(n + 1, 10) + search(n);
    if (n % 4 == 0)
        sum += hash(n, 60) + leaf(n + 1) + search(n + 1);
    if (n % 64 == 0)
        sum += hash(n, 700);
    return sum;
}

static unsigned long rounds;
static const char *name;

static void *work(void *unused)
{
    unsigned long sum = 0;
    for (unsigned long n = 0; n < rounds; n++) {
        if (name[0] == 'l')
            sum += slow_parent(n);
        else if (name[0] == 'r')
            sum += fibonacci(12);
        else if (name[0] == 'f')
            sum += fan_out(n);
        else
            sum += mixed(n);
    }
    table[0] += sum;
    return unused;
}

int main(int count, char **arguments)
{
    name = count > 1 ? arguments[1] : "mixed";
    rounds = count > 2 ? strtoul(arguments[2], NULL, 10) : 100000;
    for (unsigned i = 0; i < sizeof text; i++)
        text[i] = i / 16;
    pthread_t thread;
    int two = strcmp(name, "threads") == 0;
    if (two && pthread_create(&thread, NULL, work, NULL) != 0)
        return 1;
    work(NULL);
    if (two)
        pthread_join(thread, NULL);
    printf("%lu\n", table[0]);
    return 0;
}
