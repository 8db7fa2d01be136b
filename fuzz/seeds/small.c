// A library without anything around it: symbols, lines, types, unwind tables, a switch table.
struct pair {
    int first;
    union {
        float real;
        const char *text;
    } second;
    struct pair *next;
};
enum colour { RED, GREEN = 7 };

__attribute__((noinline)) static int inner(struct pair *pair, int n) { return pair->first * n; }

int switched(int n, struct pair *pair) {
    switch (n) {
    case 0: return inner(pair, 3);
    case 1: return pair->first;
    case 2: return 17;
    case 3: return inner(pair->next, n);
    case 4: return n << pair->first;
    case 5: return pair->second.real > 0;
    default: return -1;
    }
}

long deep(long n, enum colour colour, int (*callback)(long)) {
    volatile char room[128];
    room[n & 127] = (char)colour;
    return n <= 0 ? room[0] : deep(n - 1, colour, callback) + callback(n);
}
