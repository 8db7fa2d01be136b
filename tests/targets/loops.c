/* Loops that jump back to a function's first instruction: one call each, however often they turn. */
#include "target.h"

long asm_loop(long n);
long asm_loop_far(long n);
long asm_red_zone_loop(long n);
long asm_loop_with_call(long n);
long asm_loop_prefix(long n, long step);

FN unsigned gcd(unsigned a, unsigned b)
{
    if (b == 0)
        return a;
    return gcd(b, a % b);
}

FN long count_down(long n)
{
    do {
        KEEP;
        n--;
    } while (n > 0);
    return n;
}

FN long sum_list(const int *p, long acc)
{
    if (*p == 0)
        return acc;
    return sum_list(p + 1, acc + *p);
}

FN long loop_helper(long n) { KEEP; return n - 1; }

int main(void)
{
    static const int list[] = { 5, 6, 7, 8, 0 };
    long sum = 0;
    for (int i = 1; i <= 100; i++) {
        CHECK(gcd(1071, 462) == 21);
        sum += count_down(i);
        CHECK(sum_list(list, 0) == 26);
        CHECK(asm_loop(i) == 0);
        CHECK(asm_loop_far(i) == 0);
        CHECK(asm_red_zone_loop(i) == (long)i * (i + 1) / 2);
        CHECK(asm_loop_with_call(i) == 0);
        CHECK(asm_loop_prefix(i * 3, 3) == 0);
    }
    printf("loops: ok %ld\n", sum);
    return 0;
}
