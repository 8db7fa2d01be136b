/* A function, `evil`, and a thread that tests give names which a terminal would obey. With an argument it stays. */
#include "target.h"
#include <stdio.h>
#include <sys/prctl.h>

FN int evil(int n)
{
    int sum = n;
    for (int i = 0; i < 100; i++) {
        sum += i * n;
        KEEP;
    }
    return sum;
}

int main(int argc, char **argv)
{
    (void)argv;
    long sum = 0;
    prctl(PR_SET_NAME, "th\033[2J\nread");
    for (int i = 0; i < 10000; i++)
        sum += evil(i);
    printf("ready %ld\n", sum);
    fflush(stdout);
    while (argc > 1 && getchar() != EOF)
        evil(1);
    return 0;
}
