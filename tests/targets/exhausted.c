/* exhausted nofile|memory MEGABYTES: a program that has all the descriptors that it may, or fills so much memory. At each line
 * of input it works and says what came of it. */
#include "target.h"
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>

FN long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += i * i;
    KEEP;
    return sum;
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    long megabytes = atol(argv[2]);
    char *filled = malloc((megabytes << 20) + 1);
    CHECK(filled);
    memset(filled, 1, megabytes << 20);
    filled[megabytes << 20] = 0;
    if (!strcmp(argv[1], "nofile")) {
        struct rlimit few = { 16, 16 };
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        while (open("/dev/null", O_RDONLY) >= 0)
            ;
    }
    printf("ready\n");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long sum = 0;
        for (int i = 0; i < 1000; i++)
            sum += work(i % 50);
        printf("%ld %zu\n", sum, strlen(filled) >> 20);
        fflush(stdout);
    }
    return 0;
}
