/* Two callers of one function, as often as each other, of whose time one uses three quarters: `gprof` splits it evenly.
 *
 *   main -> A -> B -> D   40 calls of D with work 3
 *             -> C -> D   40 calls of D with work 1
 *
 * D's work is calls of tick(), so that its parts can be counted as well as timed. */
#include "target.h"

static volatile unsigned long ticks;

FN void tick(void)
{
    for (int i = 0; i < 2000; i++)
        ticks++;
}

FN void D(int work)
{
    for (int i = 0; i < work * 25; i++)
        tick();
    KEEP;
}

FN void B(void)
{
    D(3);
    KEEP;
}

FN void C(void)
{
    D(1);
    KEEP;
}

FN void A(void)
{
    for (int i = 0; i < 40; i++) {
        B();
        C();
    }
    KEEP;
}

int main(void)
{
    A();
    printf("%lu\n", ticks);
    return 0;
}
