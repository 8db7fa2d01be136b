/* The machine stack must look untouched: every return address is looked at from below. */
#define _GNU_SOURCE
#include "target.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <string.h>

enum { DEPTH = 12 };

/* Names of the frames as backtrace() sees them, innermost first. */
FN int look(int expected)
{
    void *frames[64];
    int count = backtrace(frames, 64), found = 0;
    for (int i = 0; i < count; i++) {
        Dl_info info;
        CHECK(dladdr(frames[i], &info) && info.dli_fname);
        if (info.dli_sname && !strcmp(info.dli_sname, "nested"))
            found++;
    }
    CHECK(found == expected);
    return found;
}

FN int nested(int left, int expected)
{
    int r = left ? nested(left - 1, expected) : look(expected);
    KEEP;
    return r;
}

/* The caller's address, as the compiler reads it, must lie in the caller. */
FN void *who_called(void) { KEEP; return __builtin_return_address(0); }
FN int caller_is_me(void)
{
    char *address = who_called();
    KEEP;
    return address > (char *)caller_is_me && address < (char *)caller_is_me + 200;
}

int main(void)
{
    int sum = 0;
    for (int i = 0; i < 30; i++) {
        sum += nested(DEPTH - 1, DEPTH);
        CHECK(caller_is_me());
    }
    printf("unwinding: ok %d\n", sum);
    return 0;
}
