/* libc calls back into the program: qsort, bsearch, atexit, pthread_once, signal handlers. */
#include "target.h"
#include <pthread.h>
#include <search.h>
#include <signal.h>

static long compared;

FN int compare(const void *a, const void *b)
{
    compared++;
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

FN int compare_deep(const void *a, const void *b)
{
    int r = compare(a, b);
    KEEP;
    return -r;
}

static int once_ran, handled;
FN void once(void) { KEEP; once_ran++; }
FN void handler_leaf(void) { KEEP; handled++; }
FN void handler(int number)
{
    (void)number;
    handler_leaf();
    KEEP;
}
FN void at_exit(void) { KEEP; }

static void *root;
FN void visit(const void *node, VISIT which, int depth)
{
    (void)node;
    (void)which;
    (void)depth;
    KEEP;
}

int main(void)
{
    static int values[500];
    unsigned seed = 12345;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 500; i++)
            values[i] = (int)((seed = seed * 1103515245 + 12345) >> 8);
        qsort(values, 500, sizeof values[0], round & 1 ? compare_deep : compare);
        for (int i = 1; i < 500; i++)
            CHECK(round & 1 ? values[i - 1] >= values[i] : values[i - 1] <= values[i]);
        if (!(round & 1))
            for (int i = 0; i < 500; i += 7)
                CHECK(bsearch(&values[i], values, 500, sizeof values[0], compare));
    }
    static pthread_once_t control = PTHREAD_ONCE_INIT;
    pthread_once(&control, once);
    pthread_once(&control, once);
    CHECK(once_ran == 1);
    signal(SIGUSR1, handler);
    for (int i = 0; i < 25; i++)
        raise(SIGUSR1);
    CHECK(handled == 25);
    for (int i = 0; i < 60; i++)
        tsearch(&values[i], &root, compare);
    twalk(root, visit);
    atexit(at_exit);
    printf("callbacks: ok %ld\n", compared);
    return 0;
}
