/* A function of which the compiler keeps only a copy without the argument that is always the same. */
#include <unistd.h>

volatile int sink;

static __attribute__((noinline)) int reduced(int n, int always)
{
    for (int i = 0; i < n; i++)
        sink += always;
    return sink;
}

int main(int argc, char **argv)
{
    return reduced(argc, 3) + reduced(argc + 1, 3) == 0;
}
