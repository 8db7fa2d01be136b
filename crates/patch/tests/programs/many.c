/* Many kinds of functions, and a checksum of what they do. */
#include <complex.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))

static volatile uint64_t sum;
static void note(uint64_t x) { sum = sum * 1099511628211ull + x; }

NOINLINE void nothing(void) {}
NOINLINE int zero(void) { return 0; }
NOINLINE int same(int x) { return x; }
NOINLINE long clamp(long x) { return x < 0 ? 0 : x; }

NOINLINE int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
NOINLINE int odd(unsigned n);
NOINLINE int even(unsigned n) { return n == 0 ? 1 : odd(n - 1); }
NOINLINE int odd(unsigned n) { return n == 0 ? 0 : even(n - 1); }

NOINLINE uint64_t gcd(uint64_t a, uint64_t b) {
    while (b) { uint64_t t = a % b; a = b; b = t; }
    return a;
}
NOINLINE size_t count(const char *s) { size_t n = 0; while (*s++) n++; return n; }

NOINLINE int dispatch(int op, int a, int b) {
    switch (op) {
    case 0: return a + b;
    case 1: return a - b;
    case 2: return a * b;
    case 3: return b ? a / b : 0;
    case 4: return a & b;
    case 5: return a | b;
    case 6: return fib(a & 7);
    case 7: return (int)gcd(a, b);
    case 8: nothing(); return 8;
    case 9: return a << (b & 7);
    case 10: exit(3);
    default: return -1;
    }
}

NOINLINE const char *name(int day) {
    switch (day) {
    case 0: return "sun"; case 1: return "mon"; case 2: return "tue"; case 3: return "wed";
    case 4: return "thu"; case 5: return "fri"; case 6: return "sat"; default: return "?";
    }
}

NOINLINE int computed(const unsigned char *program) {
    static void *const labels[] = {&&stop, &&inc, &&dbl, &&neg};
    int x = 1;
#define NEXT goto *labels[*program++]
    NEXT;
inc: x++; NEXT;
dbl: x *= 2; NEXT;
neg: x = -x; NEXT;
stop: return x;
}

NOINLINE int average(int n, ...) {
    va_list list;
    va_start(list, n);
    double total = 0;
    for (int i = 0; i < n; i++) total += i % 2 ? va_arg(list, double) : va_arg(list, int);
    va_end(list);
    return (int)total;
}

struct big { long a[6]; };
struct pair { double x; long y; };
NOINLINE struct big fill(long x) { struct big b; for (int i = 0; i < 6; i++) b.a[i] = x * i; return b; }
NOINLINE struct pair two(double x) { struct pair p = {x * 2, (long)x}; return p; }
NOINLINE long double precise(long double x) { return x * 1.5L + 1; }
NOINLINE double complex turn(double complex z) { return z * I; }
typedef float vec __attribute__((vector_size(16)));
NOINLINE vec scale(vec v, float by) { return v * by; }

typedef int (*binary)(int, int);
NOINLINE int plus(int a, int b) { return a + b; }
NOINLINE int minus(int a, int b) { return a - b; }
NOINLINE int apply(binary f, int a, int b) { return f(a + 1, b - 1); }
struct ops { long pad; binary f; };
NOINLINE int through(const struct ops *o, int a, int b) { return o->f(b, a); }
NOINLINE int maybe(int x) { if (x & 1) return plus(x, 1); if (x & 2) return minus(x, 1); return x; }

static jmp_buf place;
NOINLINE void thrower(int depth) { if (depth == 0) longjmp(place, 7); thrower(depth - 1); note(depth); }

static volatile sig_atomic_t hits;
static void handler(int s) { hits += s == SIGUSR1; }

NOINLINE int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
static void *worker(void *p) { return (void *)(intptr_t)fib((int)(intptr_t)p); }

int main(void) {
    nothing();
    note(zero()); note(same(5)); note(clamp(-3) + clamp(4));
    note(fib(15)); note(even(1001)); note(gcd(1071, 462)); note(count("hello, world"));
    for (int i = 0; i < 13; i++) if (i != 10) note(dispatch(i, 37, 5));
    for (int i = -1; i < 9; i++) note(count(name(i)));
    note(computed((const unsigned char[]){1, 2, 3, 2, 1, 0}));
    note(average(4, 1, 2.5, 3, 4.5));
    note(fill(3).a[5]); note((uint64_t)two(2.5).x + two(7.5).y); note((uint64_t)precise(3));
    note((uint64_t)creal(turn(1 - 2 * I)));
    vec v = scale((vec){1, 2, 3, 4}, 2.5f); note((uint64_t)(v[0] + v[3]));
    struct ops o = {0, minus};
    note(apply(plus, 1, 2)); note(apply(minus, 1, 2)); note(through(&o, 3, 4));
    for (int i = 0; i < 8; i++) note(maybe(i));
    if (setjmp(place) == 0) thrower(20); else note(99);
    signal(SIGUSR1, handler); for (int i = 0; i < 5; i++) raise(SIGUSR1); note(hits);
    int values[200]; for (int i = 0; i < 200; i++) values[i] = (i * 7919) % 211;
    qsort(values, 200, sizeof values[0], compare); note(values[17]); note(values[190]);
    pthread_t threads[4];
    for (intptr_t i = 0; i < 4; i++) pthread_create(&threads[i], 0, worker, (void *)(i + 12));
    for (int i = 0; i < 4; i++) { void *r; pthread_join(threads[i], &r); note((intptr_t)r); }
    char text[200]; snprintf(text, sizeof text, "%5d|%-8s|%.3f|%x|%Lf", 42, "abc", 3.14159, 255, 2.5L);
    note(count(text)); note(strtol("12345", 0, 10)); note((uint64_t)(strtod("2.75", 0) * 4));
    char *copy = strdup(text); note(memcmp(copy, text, count(text) + 1) == 0); free(copy);
    printf("%s %llx\n", text, (unsigned long long)sum);
    return 0;
}
