/* Every way of passing and returning a value that a probe could spoil. */
#include "target.h"
#include <complex.h>
#include <emmintrin.h>
#include <stdarg.h>
#include <string.h>

FN long sum_ints(int count, ...)
{
    va_list list;
    va_start(list, count);
    long sum = 0;
    for (int i = 0; i < count; i++)
        sum += va_arg(list, int);
    va_end(list);
    return sum;
}

FN double sum_doubles(int count, ...)
{
    va_list list;
    va_start(list, count);
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += va_arg(list, double);
    va_end(list);
    return sum;
}

/* Longs and doubles by turns, twelve of each, so that registers run out and the stack is used. */
FN double mixed(const char *kinds, ...)
{
    va_list list;
    va_start(list, kinds);
    double sum = 0;
    for (; *kinds; kinds++)
        sum = sum * 1.5 + (*kinds == 'd' ? va_arg(list, double) : (double)va_arg(list, long));
    va_end(list);
    return sum;
}

FN __m128 add_vectors(__m128 a, __m128 b) { KEEP; return _mm_add_ps(a, b); }
FN __m128d eight(__m128d a, __m128d b, __m128d c, __m128d d, __m128d e, __m128d f, __m128d g, __m128d h)
{
    KEEP;
    return _mm_add_pd(_mm_add_pd(_mm_sub_pd(a, b), _mm_mul_pd(c, d)), _mm_add_pd(_mm_sub_pd(e, f), _mm_mul_pd(g, h)));
}
FN __m128i mix(__m128i a, __m128i b) { KEEP; return _mm_xor_si128(_mm_slli_epi32(a, 3), b); }

struct pair { long a, b; };
struct half { double d; int i; };
struct floats { float a, b, c; };
struct big { long v[9]; };
struct tiny { char c; };

FN struct pair make_pair(long a, long b) { KEEP; return (struct pair){ a, b }; }
FN struct half make_half(double d, int i) { KEEP; return (struct half){ d, i }; }
FN struct floats make_floats(float a) { KEEP; return (struct floats){ a, a + 1, a + 2 }; }
FN struct tiny make_tiny(int c) { KEEP; return (struct tiny){ (char)c }; }
FN struct big make_big(long seed)
{
    struct big b;
    for (int i = 0; i < 9; i++)
        b.v[i] = seed * i;
    KEEP;
    return b;
}
FN long sum_big(struct big b, struct pair p)
{
    long sum = p.a - p.b;
    for (int i = 0; i < 9; i++)
        sum += b.v[i];
    KEEP;
    return sum;
}

FN long double x87_half(long double v) { KEEP; return v / 2; }
FN long double x87_pick(int which, long double a, long double b) { KEEP; return which ? a : b; }
FN long double _Complex x87_complex(long double re, long double im) { KEEP; return re + im * I; }
FN float _Complex small_complex(float re, float im) { KEEP; return re + im * I; }
FN double _Complex wide_complex(double re, double im) { KEEP; return re + im * I; }
FN __int128 wide_product(long a, long b) { KEEP; return (__int128)a * b; }
FN _Bool is_negative(double x) { KEEP; return x < 0; }
FN float to_float(double x) { KEEP; return (float)x; }
FN signed char narrow(long x) { KEEP; return (signed char)x; }
FN void nothing(int a, double b) { KEEP; (void)a; (void)b; }
FN int fifteen(int a, double b, int c, float d, int e, int f, int g, int h, int i, int j, double k, int l, int m, int n, double o)
{
    KEEP;
    return a + (int)b * c - (int)d + e * f - g + h * i - j + (int)k - l + m * n + (int)o;
}

int main(void)
{
    double total = 0;
    for (int i = 1; i <= 50; i++) {
        CHECK(sum_ints(3, 1, 2, i) == 3 + i);
        CHECK(sum_ints(9, 1, 2, 3, 4, 5, 6, 7, 8, i) == 36 + i);
        CHECK(sum_doubles(10, 1., 2., 3., 4., 5., 6., 7., 8., 9., (double)i) == 45 + i);
        total += mixed("ldldldldldldldldldldldld", 1L, 2., 3L, 4., 5L, 6., 7L, 8., 9L, 10., 11L, 12., 13L, 14., 15L, 16., 17L,
                       18., 19L, 20., 21L, 22., 23L, (double)i);
        float lanes[4];
        _mm_storeu_ps(lanes, add_vectors(_mm_set_ps(1, 2, 3, 4), _mm_set1_ps((float)i)));
        CHECK(lanes[0] == 4 + i && lanes[1] == 3 + i && lanes[2] == 2 + i && lanes[3] == 1 + i);
        double two[2];
        __m128d v = _mm_set_pd(i, 2);
        _mm_storeu_pd(two, eight(v, _mm_set1_pd(1), v, v, _mm_set1_pd(5), v, _mm_set1_pd(3), v));
        CHECK(two[0] == 2 - 1 + 4 + 5 - 2 + 6 && two[1] == i - 1 + (double)i * i + 5 - i + 3. * i);
        unsigned quads[4];
        _mm_storeu_si128((__m128i *)quads, mix(_mm_set1_epi32(i), _mm_set_epi32(4, 3, 2, 1)));
        CHECK(quads[0] == (((unsigned)i << 3) ^ 1) && quads[3] == (((unsigned)i << 3) ^ 4));
        struct pair p = make_pair(i, -i);
        CHECK(p.a == i && p.b == -i);
        struct half h = make_half(i * .5, i);
        CHECK(h.d == i * .5 && h.i == i);
        struct floats f = make_floats((float)i);
        CHECK(f.a == i && f.b == i + 1 && f.c == i + 2);
        CHECK(make_tiny(i).c == (char)i);
        CHECK(sum_big(make_big(i), p) == 36 * i + 2 * i);
        CHECK(x87_half(i) == (long double)i / 2);
        CHECK(x87_pick(i & 1, 1.25L, 2.5L) == ((i & 1) ? 1.25L : 2.5L));
        long double _Complex lc = x87_complex(i, -i);
        CHECK(creall(lc) == i && cimagl(lc) == -i);
        float _Complex sc = small_complex((float)i, 2);
        CHECK(crealf(sc) == i && cimagf(sc) == 2);
        double _Complex wc = wide_complex(3, i);
        CHECK(creal(wc) == 3 && cimag(wc) == i);
        CHECK(wide_product(1L << 62, i) == ((__int128)1 << 62) * i);
        CHECK(is_negative(-i) && !is_negative(i));
        CHECK(to_float(i * .25) == i * .25f);
        CHECK(narrow(i * 1000) == (signed char)(i * 1000));
        nothing(i, i);
        CHECK(fifteen(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, i) == 1 + 6 - 4 + 30 - 7 + 72 - 10 + 11 - 12 + 182 + i);
        char text[64];
        snprintf(text, sizeof text, "%d %.2f %Lg %s", i, i * .5, (long double)i, "x");
        total += (double)strlen(text);
    }
    printf("abi: ok %.6g\n", total);
    return 0;
}
