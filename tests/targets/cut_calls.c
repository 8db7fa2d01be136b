/* A function that enters the kernel every other time, called in more contexts than there is room for. Says how often it
 * did, and was called. With an argument: begins at a line of input, and stays until its end. */
#include "target.h"

static unsigned long entered, called;

FN long sometimes(long x)
{
    long result = x;
    called++;
    if (x & 1) {
        entered++;
        __asm__ volatile("mov $110, %%eax\n\tsyscall" : "=a"(result) : : "rcx", "r11", "memory");
    }
    return result;
}

FN long right(int depth, long path);
FN long left(int depth, long path)
{
    long sum = sometimes(path) + sometimes(path + 1);
    if (depth > 0)
        sum += left(depth - 1, 2 * path) + right(depth - 1, 2 * path + 1);
    KEEP;
    return sum;
}
FN long right(int depth, long path)
{
    long sum = sometimes(path);
    if (depth > 0)
        sum += left(depth - 1, 2 * path) + right(depth - 1, 2 * path + 1);
    KEEP;
    return sum;
}

int main(int argc, char **argv)
{
    char line[8];
    (void)argv;
    if (argc > 1) {
        printf("ready\n");
        fflush(stdout);
        CHECK(fgets(line, sizeof line, stdin));
    }
    long sum = left(14, 1);
    printf("%lu %lu %d\n", entered, called, sum == 0);
    fflush(stdout);
    while (argc > 1 && fgets(line, sizeof line, stdin))
        ;
    return 0;
}
