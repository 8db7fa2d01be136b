/* A million frames of one function, and half a million of two that take turns, on a large stack. */
#include "target.h"
#include <pthread.h>
#include <sys/mman.h>

FN long dive(long left)
{
    if (left == 0)
        return 0;
    long r = dive(left - 1);
    KEEP;
    return r + 1;
}

FN long down_b(long left);
FN long down_a(long left)
{
    if (left == 0)
        return 0;
    long r = down_b(left - 1);
    KEEP;
    return r + 1;
}
FN long down_b(long left)
{
    if (left == 0)
        return 0;
    long r = down_a(left - 1);
    KEEP;
    return r + 2;
}

FN long surface(long x) { KEEP; return x; }

FN void *diver(void *argument)
{
    long depth = *(long *)argument;
    CHECK(dive(depth) == depth);
    CHECK(down_a(depth / 2) == depth / 4 * 3);
    CHECK(surface(7) == 7);
    return 0;
}

int main(int argc, char **argv)
{
    long depth = argc > 1 ? atol(argv[1]) : 1000000;
    size_t size = (size_t)1 << 30;
    void *stack = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(stack != MAP_FAILED);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstack(&attributes, stack, size) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, &attributes, diver, &depth) == 0);
    pthread_join(thread, 0);
    printf("deep: ok %ld\n", depth);
    return 0;
}
