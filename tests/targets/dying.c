/* dying: works as much as it is told on standard input ("work N"), and dies as it is told: "crash", "exit N". */
#include "target.h"
#include <string.h>

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
        if (!strncmp(line, "crash", 5))
            abort();
        if (!strncmp(line, "exit ", 5))
            _Exit(atoi(line + 5));
        fflush(stdout);
    }
    return 0;
}
