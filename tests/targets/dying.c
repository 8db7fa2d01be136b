/* dying: works as much as it is told on standard input ("work N"), and dies as it is told: "crash", "exit N".
 * "fork" makes a child that lives on, and says its number. */
#include "target.h"
#include <string.h>
#include <unistd.h>

FN unsigned long step(unsigned long x) { KEEP; return x * 2862933555777941757ul + 3037000493ul; }

FN unsigned long work(unsigned long times)
{
    unsigned long sum = 0;
    for (unsigned long i = 0; i < times; i++)
        sum = step(sum);
    KEEP;
    return sum;
}

int main(void)
{
    char line[64];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "work ", 5))
            printf("done %lu\n", work(strtoul(line + 5, 0, 10)) & 1);
        if (!strncmp(line, "fork", 4)) {
            pid_t child = fork();
            if (child == 0) {
                for (int fd = 0; fd < 3; fd++)
                    close(fd);
                for (;;)
                    usleep(1000 * (1 + (step(1) & 1)));
            }
            printf("%d\n", child);
        }
        if (!strncmp(line, "crash", 5))
            abort();
        if (!strncmp(line, "exit ", 5))
            _Exit(atoi(line + 5));
        fflush(stdout);
    }
    return 0;
}
