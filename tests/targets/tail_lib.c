/* The other side of tail.c: built into a shared library, or straight into static programs. */
#include "target.h"

FN int lib_leaf(int x) { KEEP; return x * 2 + 1; }

FN int lib_step(int x, int left)
{
    if (left == 0)
        return lib_leaf(x);
    int r = lib_step(x + 1, left - 1);
    KEEP;
    return r;
}

FN int lib_apply(int (*callback)(int), int x) { KEEP; return callback(x + 5); }

FN int lib_plain(int x)
{
    int r = lib_leaf(x);
    KEEP;
    return r - 1;
}
