// Every third call throws, through a function with a destructor to run, and is caught further out. Usage: throwing ROUNDS
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#define NOINLINE __attribute__((noinline, noclone))

static volatile long sink;

struct Guard {
    NOINLINE ~Guard() { sink = sink + 1; }
};

NOINLINE int risky(int n)
{
    sink = sink + n;
    if (n % 3 == 0)
        throw std::runtime_error("number " + std::to_string(n));
    return n;
}

NOINLINE int through(int n)
{
    Guard guard;
    return risky(n) + 1;
}

NOINLINE int caught(int n)
{
    try {
        return through(n) + 1;
    } catch (const std::exception &) {
        return -1;
    }
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 9;
    for (int i = 1; i <= rounds; i++)
        sink = sink + caught(i);
    printf("%d\n", rounds);
    return 0;
}
