/* Functions that are called with known values. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef __clang__
#define KEEP __attribute__((noinline, used))
#else
#define KEEP __attribute__((noipa, used))
#endif

enum color { RED, GREEN = 5, BLUE = -1 };
typedef struct { size_t len; unsigned char *data; } ngx_str_t;
struct point { int x, y; };
struct pair { double a; long b; };
struct small { float f, g; };
struct big { long numbers[4]; const char *name; };
struct request {
    int method;
    unsigned ready : 1, level : 3;
    int delta : 5;
    const char *password;
    char host[16];
    ngx_str_t uri;
    struct point at;
    struct request *next;
    uint8_t bytes[4];
    union { int whole; short half; };
};

KEEP int integers(signed char a, unsigned short b, int c, unsigned d, long e, unsigned long f, int g, long h)
{ return (int)(a + b + c + d + e + f + g + h); }
KEEP double floats(float a, double b, int c, double d) { return a + b + c + d; }
KEEP const char *text(const char *s, char c, bool yes, enum color color) { return yes && color ? s : c ? s : NULL; }
KEEP struct point by_value(struct point p, struct pair q, struct small s, struct big b, int last)
{ struct point r = { p.x + last, p.y + (int)q.a + (int)q.b + (int)s.f + (int)b.numbers[3] }; return r; }
KEEP struct big large_result(int n) { struct big b = { { n, n + 1, n + 2, n + 3 }, "large" }; return b; }
KEEP struct pair pair_result(int n) { struct pair p = { n + 0.5, n }; return p; }
KEEP int handle(struct request *req, int n)
{ req->method += n; req->at.y = 99; return req->method; }
KEEP int pointers(const char *bad, const char *null, struct request *nowhere, void *anything)
{ return bad == anything && null == (const char *)nowhere; }
KEEP int lengths(const char *buffer, size_t count, const int *numbers, int how_many)
{ int sum = 0; for (int i = 0; i < how_many; i++) sum += numbers[i]; return sum + (int)count + buffer[0]; }

int main(void)
{
    char byte;
    volatile long check = 0;
    if (read(0, &byte, 1) < 0)
        return 2;
    check += integers(-3, 65535, -70000, 4000000000u, -5000000000, 18000000000000000000ul, -7, 1l << 40);
    check += (long)floats(1.5f, -2.25, 3, 1e10);
    check += (long)text("SELECT 1", 'q', true, GREEN);
    check += (long)text("INSERT", 0, false, BLUE);
    struct big big = { { 1, 2, 3, 4 }, "biggest" };
    check += by_value((struct point){ 1, -2 }, (struct pair){ 2.5, 7 }, (struct small){ 0.5f, -0.5f }, big, 11).x;
    check += large_result(40).numbers[3];
    check += pair_result(3).b;
    struct request next = { .method = 2, .host = "next", .password = "n" };
    struct request request = { .method = 1, .ready = 1, .level = 5, .delta = -3, .password = "hunter2", .host = "example.org",
        .uri = { 4, (unsigned char *)"/abcdef" }, .at = { 10, 20 }, .next = &next, .bytes = { 1, 2, 3, 255 }, .whole = 70000 };
    check += handle(&request, 41);
    check += pointers((const char *)8, NULL, NULL, &check);
    int numbers[] = { 5, 6, 7, 8 };
    check += lengths("ab\0cd", 5, numbers, 4);
    return check == 12345;
}
