/* Every call site is reached a known number of times: by name twice in one function, by pointer, through the linkage
 * table with and without a stub, by recursion from two places, by tail jumps. Lines with a count say so: SITE n. */
#include "target.h"

extern long plug(long x); /* in sites_lib.c */
extern long plug_far(long x) __attribute__((noplt));

FN long leaf(long x) { KEEP; return x + 1; }
FN long other(long x) { KEEP; return x + 2; }

FN long twice(long x)
{
    x = leaf(x); /* SITE twice leaf 10 direct */
    KEEP;
    for (int i = 0; i < 3; i++) {
        x = leaf(x); /* SITE twice leaf 30 direct */
        KEEP;
    }
    return x;
}

static long (*volatile chosen)(long) = leaf;

FN long by_pointer(long x)
{
    x = chosen(x); /* SITE by_pointer leaf 20 indirect */
    KEEP;
    x = leaf(x); /* SITE by_pointer leaf 20 direct */
    KEEP;
    return x;
}

struct shape { long (*area)(long); };
static const struct shape shapes[2] = { { leaf }, { other } };

/* One place that calls two functions. */
FN long by_table(long x, int which)
{
    x = shapes[which & 1].area(x); /* SITE by_table leaf 5 indirect */ /* SITE by_table other 5 indirect */
    KEEP;
    return x;
}

FN long through_table(long x)
{
    x = plug(x); /* SITE through_table plug 7 direct */
    KEEP;
    x = plug_far(x); /* SITE through_table plug_far 7 direct */
    KEEP;
    return x;
}

FN long tree(int depth)
{
    if (depth == 0)
        return 1;
    long left = tree(depth - 1); /* SITE tree tree 63 direct */
    KEEP;
    long right = tree(depth - 1); /* SITE tree tree 63 direct */
    KEEP;
    return left + right;
}

FN long hop(long x) { KEEP; return x * 2; }

FN long jumps(long x, int way)
{
    if (way) {
        __asm__ volatile("# this way");
        return hop(x); /* SITE jumps hop 4 direct tail */
    }
    __asm__ volatile("# that way");
    return hop(x + 1); /* SITE jumps hop 6 direct tail */
}

FN long jumps_by_pointer(long x)
{
    KEEP;
    return chosen(x); /* SITE jumps_by_pointer leaf 9 indirect tail */
}

int main(void)
{
    long sum = 0;
    for (int i = 0; i < 10; i++)
        sum += twice(i);
    for (int i = 0; i < 20; i++)
        sum += by_pointer(i);
    for (int i = 0; i < 10; i++)
        sum += by_table(i, i);
    for (int i = 0; i < 7; i++)
        sum += through_table(i);
    sum += tree(6);
    for (int i = 0; i < 10; i++) {
        sum += jumps(i, i < 4);
        KEEP;
    }
    for (int i = 0; i < 9; i++) {
        sum += jumps_by_pointer(i);
        KEEP;
    }
    printf("sites: ok %ld\n", sum);
    return 0;
}
