/* Values in ymm (and, with the argument "512", zmm) registers, which live across calls and in returns.
 * First calls into new contexts take the slow path, which must keep the upper halves too. */
#include "target.h"
#include <immintrin.h>
#include <string.h>

#define AVX __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f")))

AVX FN __m256 add256(__m256 a, __m256 b) { KEEP; return _mm256_add_ps(a, b); }
AVX FN __m256i mix256(__m256i a, __m256i b) { KEEP; return _mm256_xor_si256(_mm256_slli_epi32(a, 2), b); }
AVX FN __m256d eight256(__m256d a, __m256d b, __m256d c, __m256d d, __m256d e, __m256d f, __m256d g, __m256d h)
{
    KEEP;
    return _mm256_add_pd(_mm256_sub_pd(_mm256_add_pd(a, b), _mm256_add_pd(c, d)), _mm256_sub_pd(_mm256_add_pd(e, f), _mm256_add_pd(g, h)));
}
AVX FN __m256 chained(__m256 a, int depth)
{
    if (depth == 0)
        return a;
    __m256 r = chained(add256(a, a), depth - 1);
    KEEP;
    return r;
}

AVX FN void run256(void)
{
    for (int i = 1; i <= 40; i++) {
        float lanes[8];
        _mm256_storeu_ps(lanes, add256(_mm256_set_ps(1, 2, 3, 4, 5, 6, 7, 8), _mm256_set1_ps((float)i)));
        for (int k = 0; k < 8; k++)
            CHECK(lanes[k] == 8 - k + i);
        unsigned words[8];
        _mm256_storeu_si256((__m256i *)words, mix256(_mm256_set1_epi32(i), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0)));
        for (int k = 0; k < 8; k++)
            CHECK(words[k] == (((unsigned)i << 2) ^ (unsigned)k));
        double four[4];
        __m256d v = _mm256_set_pd(4, 3, 2, 1), w = _mm256_set1_pd(i);
        _mm256_storeu_pd(four, eight256(v, w, w, v, v, v, w, w));
        for (int k = 0; k < 4; k++)
            CHECK(four[k] == 2 * (k + 1) - 2 * i);
        _mm256_storeu_ps(lanes, chained(_mm256_set_ps(1, 2, 3, 4, 5, 6, 7, 8), 6));
        for (int k = 0; k < 8; k++)
            CHECK(lanes[k] == (8 - k) * 64);
    }
}

AVX512 FN __m512i add512(__m512i a, __m512i b) { KEEP; return _mm512_add_epi64(a, b); }
AVX512 FN __m512i masked512(__mmask8 mask, __m512i a, __m512i b) { KEEP; return _mm512_mask_add_epi64(a, mask, a, b); }

AVX512 FN void run512(void)
{
    for (int i = 1; i <= 40; i++) {
        long long lanes[8];
        _mm512_storeu_si512(lanes, add512(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(i)));
        for (int k = 0; k < 8; k++)
            CHECK(lanes[k] == k + i);
        _mm512_storeu_si512(lanes, masked512(0xa5, _mm512_set1_epi64(i), _mm512_set1_epi64(100)));
        for (int k = 0; k < 8; k++)
            CHECK(lanes[k] == i + ((0xa5 >> k & 1) ? 100 : 0));
    }
}

int main(int argc, char **argv)
{
    if (__builtin_cpu_supports("avx2"))
        run256();
    if (argc > 1 && !strcmp(argv[1], "512") && __builtin_cpu_supports("avx512f"))
        run512();
    printf("avx: ok\n");
    return 0;
}
