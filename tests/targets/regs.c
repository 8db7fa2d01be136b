/* Callers that know their callees: see regs_asm.S. Each returns 0 when everything it kept is still there. */
#include "target.h"

long keep_integers(long seed);
long keep_vectors(long seed);
long flags_out(long seed);
long flags_in(long seed);
long return_in_r10(long seed);
long red_zone_over_tail(long seed);
long stack_arguments(long seed);
long count_in_rcx(long seed);
long pop_arguments(long seed);

FN long c_target(long x) { KEEP; return x + 1; }

int main(void)
{
    for (long i = 1; i <= 200; i++) {
        CHECK(keep_integers(i) == 0);
        CHECK(keep_vectors(i) == 0);
        CHECK(flags_out(i) == 0);
        CHECK(flags_in(i) == 0);
        CHECK(return_in_r10(i) == 0);
        CHECK(red_zone_over_tail(i) == ((i & 1) ? i + 1 : i * 3));
        CHECK(stack_arguments(i) == 0);
        CHECK(count_in_rcx(i) == 0);
        CHECK(pop_arguments(i) == 0);
    }
    printf("regs: ok\n");
    return 0;
}
