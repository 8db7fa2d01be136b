/* Switch-heavy code: jump tables, computed goto, dense and sparse cases, cases that end in calls. */
#include "target.h"

enum op { PUSH, ADD, SUB, MUL, DUP, SWAP, JNZ, DEC, CALL, OVER, DROP, NOP, HALT };

FN long do_add(long a, long b) { KEEP; return a + b; }
FN long do_sub(long a, long b) { KEEP; return a - b; }
FN long do_mul(long a, long b) { KEEP; return a * b; }
FN long native(long a) { KEEP; return (a * 31 + 7) & 0xffff; }

FN long run_switch(const int *code)
{
    long stack[32], *sp = stack;
    for (int pc = 0;;) {
        switch (code[pc++]) {
        case PUSH: *sp++ = code[pc++]; break;
        case ADD: sp--; sp[-1] = do_add(sp[-1], sp[0]); break;
        case SUB: sp--; sp[-1] = do_sub(sp[-1], sp[0]); break;
        case MUL: sp--; sp[-1] = do_mul(sp[-1], sp[0]); break;
        case DUP: sp[0] = sp[-1]; sp++; break;
        case SWAP: { long t = sp[-1]; sp[-1] = sp[-2]; sp[-2] = t; break; }
        case JNZ: if (sp[-1]) pc = code[pc]; else pc++; break;
        case DEC: sp[-1]--; break;
        case CALL: sp[-1] = native(sp[-1]); break;
        case OVER: sp[0] = sp[-2]; sp++; break;
        case DROP: sp--; break;
        case NOP: KEEP; break;
        case HALT: return sp[-1];
        default: return -1;
        }
    }
}

FN long run_goto(const int *code)
{
    static void *const labels[] = { &&l_push, &&l_add, &&l_sub, &&l_mul, &&l_dup, &&l_swap, &&l_jnz,
                                    &&l_dec, &&l_call, &&l_over, &&l_drop, &&l_nop, &&l_halt };
    long stack[32], *sp = stack;
    int pc = 0;
#define NEXT goto *labels[code[pc++]]
    NEXT;
l_push: *sp++ = code[pc++]; NEXT;
l_add: sp--; sp[-1] = do_add(sp[-1], sp[0]); NEXT;
l_sub: sp--; sp[-1] = do_sub(sp[-1], sp[0]); NEXT;
l_mul: sp--; sp[-1] = do_mul(sp[-1], sp[0]); NEXT;
l_dup: sp[0] = sp[-1]; sp++; NEXT;
l_swap: { long t = sp[-1]; sp[-1] = sp[-2]; sp[-2] = t; NEXT; }
l_jnz: if (sp[-1]) pc = code[pc]; else pc++; NEXT;
l_dec: sp[-1]--; NEXT;
l_call: sp[-1] = native(sp[-1]); NEXT;
l_over: sp[0] = sp[-2]; sp++; NEXT;
l_drop: sp--; NEXT;
l_nop: KEEP; NEXT;
l_halt: return sp[-1];
#undef NEXT
}

/* Every case ends in a tail call or a return of its own: many exits in one function. */
FN long many_exits(int kind, long x)
{
    switch (kind) {
    case 0: KEEP; return do_add(x, 1);
    case 1: KEEP; return do_sub(x, 1);
    case 2: KEEP; return x * 3;
    case 3: KEEP; return native(x);
    case 4: KEEP; return x << 2;
    case 5: KEEP; return do_mul(x, x);
    case 6: KEEP; return x ^ 99;
    case 7: KEEP; return ~x;
    case 8: KEEP; return native(x) + 1;
    case 9: KEEP; return x + 1000;
    case 100: KEEP; return x - 100;
    case 101: KEEP; return do_add(x, 101);
    case 5000: KEEP; return x / 3;
    default: KEEP; return 0;
    }
}

/* The switch is the first thing the function does, and its cases jump back near the entry. */
FN int classify(const char *s)
{
    int score = 0;
again:
    switch (*s++) {
    case 'a': score += 1; KEEP; goto again;
    case 'b': score += 2; KEEP; goto again;
    case 'c': score *= 3; KEEP; goto again;
    case 'd': score ^= 4; KEEP; goto again;
    case 'e': score -= 5; KEEP; goto again;
    case 'f': score <<= 1; KEEP; goto again;
    case 'g': return score;
    case 'h': return -score;
    case 'i': return (int)native(score);
    default: return 0;
    }
}

int main(void)
{
    /* sum of native(i) for i from 50 down to 1 */
    static const int program[] = { PUSH, 0, PUSH, 50, DUP, CALL, NOP, OVER, SWAP, DROP, CALL,
                                   PUSH, 3, MUL, PUSH, 2, SUB, DROP, DEC, JNZ, 4, ADD, HALT };
    long sum = 0;
    for (int i = 0; i < 20; i++) {
        long a = run_switch(program), b = run_goto(program);
        CHECK(a == b);
        sum += a;
        for (int kind = 0; kind < 12; kind++)
            sum += many_exits(kind, i);
        sum += many_exits(100, i) + many_exits(101, i) + many_exits(5000, i) + many_exits(77, i);
        CHECK(classify("abcdefg") == (((((1 + 2) * 3) ^ 4) - 5) << 1));
        sum += classify("aabbh") + classify("fai") + classify("z");
    }
    printf("interp: ok %ld\n", sum);
    return 0;
}
