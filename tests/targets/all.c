/* One program out of many: each part is compiled with -Dmain=PART_main. */
#include "target.h"

#define PARTS(X) X(recursion) X(tail) X(interp) X(tiny) X(abi) X(avx) X(regs) X(jumps) X(callbacks) X(threads)

#define DECLARE(name) int name##_main(int argc, char **argv);
PARTS(DECLARE)

int main(int argc, char **argv)
{
    (void)argc;
    int status = 0;
    char *arguments[] = { argv[0], 0 };
#define RUN(name) status |= name##_main(1, arguments);
    PARTS(RUN)
    printf("all: ok\n");
    return status;
}
