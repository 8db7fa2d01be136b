/* What loading.c loads: a constructor, a destructor, calls by lazy binding, and a function chosen by IFUNC. */
#include "target.h"

static int state;

FN int plug_leaf(int x) { KEEP; return x ^ 5; }

FN int plug_step(int x)
{
    int r = plug_leaf(x) + state;
    KEEP;
    return r;
}

FN static int chosen_slow(int x) { KEEP; return x + 3; }

static int (*choose(void))(int) { return chosen_slow; }

int plug_chosen(int x) __attribute__((ifunc("choose")));

FN int plug_work(int x)
{
    int r = plug_step(x) + plug_chosen(x);
    KEEP;
    return r;
}

FN static void __attribute__((constructor)) plug_begin(void) { state = plug_leaf(1); KEEP; }

FN static void __attribute__((destructor)) plug_end(void) { state = plug_leaf(2); KEEP; }
