/* Functions of one to six bytes, with padding behind them and without. */
#include "target.h"

#define TINY(name) int name(int x);
TINY(padded1) TINY(padded2) TINY(padded3) TINY(padded3b) TINY(padded4) TINY(padded5) TINY(padded6)
TINY(jump2) TINY(jump5) TINY(endbr_only)
TINY(packed1) TINY(packed2) TINY(packed3) TINY(packed4) TINY(packed5) TINY(packed6)

FN int c_empty(int x) { return x; }
FN void c_nothing(void) { }

int main(void)
{
    int sum = 0;
    for (int i = 0; i < 300; i++) {
        padded1(i);
        padded2(i);
        CHECK(padded3(i) == 0);
        CHECK(padded3b(i) == i);
        CHECK(padded4(i) == i + 1);
        CHECK(padded5(i) == i + i);
        CHECK(padded6(i) == 0x12345678);
        CHECK(jump2(i) == 0x12345678);
        CHECK(jump5(i) == i + 1);
        endbr_only(i);
        packed1(i);
        packed2(i);
        CHECK(packed3(i) == 0);
        CHECK(packed4(i) == i + 1);
        CHECK(packed5(i) == i + i);
        CHECK(packed6(i) == 0x1234567);
        sum += c_empty(i);
        c_nothing();
    }
    printf("tiny: ok %d\n", sum);
    return 0;
}
