/* Tail calls: direct, mutual, by pointer, conditional, into another library and back. */
#include "target.h"

int lib_step(int x, int left);
int lib_apply(int (*callback)(int), int x);
int lib_plain(int x);

FN int leaf_add(int x) { KEEP; return x + 3; }
FN int leaf_xor(int x) { KEEP; return x ^ 0x55; }
FN int leaf_mul(int x) { KEEP; return x * 7; }
FN int leaf_not(int x) { KEEP; return ~x; }

static int (*volatile table[])(int) = { leaf_add, leaf_xor, leaf_mul, leaf_not };

/* Never a loop: two functions that end in each other. */
FN int pong(int left, int sum);
FN int ping(int left, int sum)
{
    KEEP;
    if (left == 0)
        return sum;
    return pong(left - 1, sum + left);
}
FN int pong(int left, int sum)
{
    KEEP;
    if (left == 0)
        return -sum;
    return ping(left - 1, sum ^ left);
}

FN int by_pointer(int which, int x) { KEEP; return table[which & 3](x); }

FN int conditional(int x)
{
    KEEP;
    if (x & 1)
        return leaf_add(x);
    if (x & 2)
        return leaf_xor(x);
    return x;
}

/* The caller of a tail-caller goes on afterwards, and must still be the parent of what follows. */
FN int around(int x)
{
    int a = conditional(x);
    KEEP;
    int b = by_pointer(x, a);
    KEEP;
    int c = leaf_mul(b);
    KEEP;
    return a + b + c;
}

/* Four deep: each frame is gone from the machine stack before the next one begins. */
FN int chain4(int x) { KEEP; return leaf_not(x + 4); }
FN int chain3(int x) { KEEP; return chain4(x + 3); }
FN int chain2(int x) { KEEP; return chain3(x + 2); }
FN int chain1(int x) { KEEP; return chain2(x + 1); }

FN int into_library(int x) { KEEP; return lib_step(x, 3); }
FN int library_callback(int x) { KEEP; return leaf_add(x) + 1; }
FN int through_library(int x) { KEEP; return lib_apply(library_callback, x); }

/* A tail call with arguments on the stack. */
FN int wide(int a, int b, int c, int d, int e, int f, int g, int h) { KEEP; return a + b * c - d + e * f - g + h; }
FN int to_wide(int a, int b, int c, int d, int e, int f, int g, int h) { KEEP; return wide(h, g, f, e, d, c, b, a); }

int main(void)
{
    long sum = 0;
    for (int i = 0; i < 200; i++) {
        sum += ping(i & 31, i);
        sum += around(i);
        sum += chain1(i);
        sum += into_library(i);
        sum += through_library(i);
        sum += lib_plain(i);
        sum += to_wide(i, 1, 2, 3, 4, 5, 6, 7);
    }
    CHECK(chain1(10) == ~20);
    CHECK(to_wide(1, 2, 3, 4, 5, 6, 7, 8) == 8 + 7 * 6 - 5 + 4 * 3 - 2 + 1);
    printf("tail: ok %ld\n", sum);
    return 0;
}
