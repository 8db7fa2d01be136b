/* contexts CALLS: a random descent over 26 functions makes new contexts without end. Prints how often each
 * function was really called, which is what a profile must say whatever it had to fold. */
#include "target.h"

static unsigned long state = 88172645463325252ul;
static long left;

static inline unsigned next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 11);
}

typedef void (*step)(int depth);
#define ALL(X) X(a) X(b) X(c) X(d) X(e) X(f) X(g) X(h) X(i) X(j) X(k) X(l) X(m) \
    X(n) X(o) X(p) X(q) X(r) X(s) X(t) X(u) X(v) X(w) X(x) X(y) X(z)

#define DECLARE(l) FN void step_##l(int depth); static long calls_##l;
ALL(DECLARE)
#define ADDRESS(l) step_##l,
static step volatile steps[] = { ALL(ADDRESS) };

#define DEFINE(l)                                                \
    FN void step_##l(int depth)                                  \
    {                                                            \
        calls_##l++;                                             \
        left--;                                                  \
        while (depth < 40 && left > 0 && next() % 8 < 5)         \
            steps[next() % 26](depth + 1);                       \
        KEEP;                                                    \
    }
ALL(DEFINE)

int main(int argc, char **argv)
{
    left = argc > 1 ? atol(argv[1]) : 1000000;
    while (left > 0)
        steps[next() % 26](0);
#define PRINT(l) printf("step_" #l " %ld\n", calls_##l);
    ALL(PRINT)
    return 0;
}
