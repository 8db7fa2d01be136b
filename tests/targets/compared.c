/* compared CALLS: sixteen functions alike, each called CALLS times with arguments of all kinds that follow from the number of the call, and results
 * that follow from the arguments; for rules that compare them. Each calls `inner`. */
#include <errno.h>
#include <stdlib.h>

struct pair {
    int first, second;
};
struct bits {
    unsigned low : 3;
    signed high : 5;
    unsigned char c;
};
enum state { IDLE, RUNNING, DONE };

__attribute__((noipa)) long inner(long n)
{
    __asm__ volatile("" ::: "memory");
    return n;
}

/* rdi rsi rdx rcx r8 r9, then two on the stack; xmm0 xmm1 */
#define WORK(NAME)                                                                                                              \
    __attribute__((noipa)) long NAME(int n, struct pair pair, struct bits bits, unsigned char byte, enum state state,           \
                                     const char *text, long last, short small, double x, float y)                               \
    {                                                                                                                           \
        long result = inner(n) + last;                                                                                          \
        errno = n == 3 ? 17 : 0;                                                                                                \
        __asm__ volatile("" ::: "memory");                                                                                      \
        return result;                                                                                                          \
    }
WORK(a) WORK(b) WORK(c) WORK(d) WORK(e) WORK(f) WORK(g) WORK(h) WORK(i) WORK(j) WORK(k) WORK(l) WORK(m) WORK(n) WORK(o) WORK(p)

__attribute__((noipa)) double half(double x)
{
    __asm__ volatile("" ::: "memory");
    return x / 2;
}

int main(int argc, char **argv)
{
    int calls = argc > 1 ? atoi(argv[1]) : 1000;
    long sum = 0;
    for (int turn = 0; turn < calls; turn++) {
        int v = turn % 17 - 8;
        struct pair pair = {turn % 5, v};
        struct bits bits = {.low = (unsigned)turn % 8, .high = v, .c = (unsigned char)turn};
#define CALL(NAME)                                                                                                              \
    sum += NAME(v, pair, bits, (unsigned char)turn, (enum state)(turn % 3), turn % 4 ? "text" : 0, -(long)(turn % 11), (short)(turn * 31),      \
                v / 4.0, v / 4.0f);
        CALL(a) CALL(b) CALL(c) CALL(d) CALL(e) CALL(f) CALL(g) CALL(h)
        CALL(i) CALL(j) CALL(k) CALL(l) CALL(m) CALL(n) CALL(o) CALL(p)
        sum += (long)half(v);
    }
    return sum == 4711;
}
