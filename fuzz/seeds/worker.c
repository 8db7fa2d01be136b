// A small program to be attached to: contexts, a recursion, calls with values for rules. Runs until it is killed.
#include <unistd.h>

struct job {
    const char *name;
    int size;
    struct job *next;
};

volatile long sum;

__attribute__((noinline)) long leaf(long n) { return n * 31; }
__attribute__((noinline)) long branch(long n) { return n == 0 ? leaf(n) : branch(n - 1) + leaf(n); }
__attribute__((noinline)) int handle(const struct job *job, const char *text, double share) {
    sum += branch(job->size % 5) + text[0] + (long)share;
    return (int)sum;
}

int main(void) {
    struct job last = {"last", 3, 0}, first = {"first", 7, &last};
    for (;;) {
        handle(&first, "some text", 0.5);
        handle(first.next, "more", 1.5);
        usleep(1000);
    }
}
