// Functions whose calls take as long as they say, in units of a loop's round: how far off is what is estimated from some of the calls?
// Reads a line, works, prints each function's units, reads another line.
#include "target.h"

static volatile unsigned long sink;

#define WORK(units)                                                                                                                        \
    do {                                                                                                                                   \
        unsigned long x = 88172645463325252ul;                                                                                             \
        for (long i = 0; i < (units); i++)                                                                                                 \
            x = x * 6364136223846793005ul + 1442695040888963407ul;                                                                         \
        sink = x;                                                                                                                          \
    } while (0)

// All calls alike.
FN long even(long n)
{
    (void)n;
    WORK(5000);
    return 5000;
}

// Every 64th call takes longer: one in 64, counted off, would see either all of those or none.
FN long periodic(long n)
{
    long units = n % 64 == 7 ? 40000 : 2000;
    WORK(units);
    return units;
}

// Later calls take longer.
FN long growing(long n)
{
    long units = 1000 + n / 12;
    WORK(units);
    return units;
}

// One call in 256, by chance, takes a hundred times as long.
FN long tailed(long n)
{
    unsigned long draw = (unsigned long)n * 0x9e3779b97f4a7c15ul;
    long units = draw >> 56 == 3 ? 200000 : 2000;
    WORK(units);
    return units;
}

FN void all(long calls)
{
    long units[4] = {0};
    for (long n = 0; n < calls; n++) {
        units[0] += even(n);
        units[1] += periodic(n);
        units[2] += growing(n);
        units[3] += tailed(n);
    }
    printf("even %ld\nperiodic %ld\ngrowing %ld\ntailed %ld\nend\n", units[0], units[1], units[2], units[3]);
    fflush(stdout);
}

int main(void)
{
    char line[64];
    puts("ready");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin));
    all(atol(line));
    CHECK(fgets(line, sizeof line, stdin));
    return 0;
}
