/* Direct, mutual and indirect recursion; nothing here is a tail call. */
#include "target.h"

FN unsigned fib(unsigned n)
{
    if (n < 2)
        return n;
    unsigned a = fib(n - 1);
    KEEP;
    unsigned b = fib(n - 2);
    KEEP;
    return a + b;
}

FN int is_odd(unsigned n);

FN int is_even(unsigned n)
{
    if (n == 0)
        return 1;
    int r = is_odd(n - 1);
    KEEP;
    return r;
}

FN int is_odd(unsigned n)
{
    if (n == 0)
        return 0;
    int r = is_even(n - 1);
    KEEP;
    return r;
}

FN unsigned ackermann(unsigned m, unsigned n)
{
    unsigned r;
    if (m == 0)
        r = n + 1;
    else if (n == 0)
        r = ackermann(m - 1, 1);
    else
        r = ackermann(m - 1, ackermann(m, n - 1));
    KEEP;
    return r;
}

/* A recursive descent over sums, products and brackets: three functions that reach each other. */
static const char *cursor;

FN long parse_sum(void);

FN long parse_factor(void)
{
    long value = 0;
    if (*cursor == '(') {
        cursor++;
        value = parse_sum();
        cursor++;
    } else {
        while (*cursor >= '0' && *cursor <= '9')
            value = value * 10 + (*cursor++ - '0');
    }
    KEEP;
    return value;
}

FN long parse_product(void)
{
    long value = parse_factor();
    while (*cursor == '*') {
        cursor++;
        value *= parse_factor();
    }
    KEEP;
    return value;
}

FN long parse_sum(void)
{
    long value = parse_product();
    while (*cursor == '+') {
        cursor++;
        value += parse_product();
    }
    KEEP;
    return value;
}

typedef int (*walker)(int, int);
FN int walk_left(int depth, int seed);
FN int walk_right(int depth, int seed);
static walker volatile walkers[] = { walk_left, walk_right };

FN int walk_left(int depth, int seed)
{
    if (depth == 0)
        return seed & 7;
    int r = walkers[seed & 1](depth - 1, seed * 5 + 1);
    KEEP;
    return r + walkers[(seed >> 1) & 1](depth - 1, seed * 3 + 2);
}

FN int walk_right(int depth, int seed)
{
    if (depth == 0)
        return seed & 3;
    int r = walkers[(seed >> 2) & 1](depth - 1, seed * 7 + 3);
    KEEP;
    return r - 1;
}

int main(void)
{
    CHECK(fib(17) == 1597);
    CHECK(is_even(40) == 1);
    CHECK(is_odd(41) == 1);
    CHECK(ackermann(2, 7) == 17);
    cursor = "((1+2)*(3+4)*5+6)*7+8*(9+(10*(11+12)))";
    CHECK(parse_sum() == ((1 + 2) * (3 + 4) * 5 + 6) * 7 + 8 * (9 + (10 * (11 + 12))));
    int walked = 0;
    for (int i = 0; i < 50; i++)
        walked += walk_left(8, i);
    printf("recursion: ok %d\n", walked);
    return 0;
}
