/* Calls what computed_jumps_asm.S has. */
#include <stdio.h>

typedef long number(long);

long forwards(long), backwards(long), moved(long);
long through(number *, number *, long);

int main(void) {
    for (long n = -1; n <= 8; n++)
        printf("%ld %ld %ld %ld\n", forwards(n), backwards(n), moved(n), through(forwards, backwards, n));
    return 0;
}
