// Exceptions through frames with and without clean-ups, rethrown, caught by type, thrown while unwinding.
#include "target.h"
#include <stdexcept>
#include <string>

static int destroyed;

struct Guard {
    int value;
    FN explicit Guard(int v) : value(v) { KEEP; }
    FN ~Guard() { destroyed += value; }
};

FN void thrower(int kind)
{
    KEEP;
    switch (kind % 4) {
    case 0: throw std::runtime_error("runtime");
    case 1: throw std::string("text");
    case 2: throw kind;
    default: break;
    }
}

FN int descend(int depth, int kind)
{
    if (depth == 0) {
        thrower(kind);
        return 1;
    }
    Guard guard(depth);
    int r = descend(depth - 1, kind);
    KEEP;
    return r + 1;
}

// No clean-up and no handler: the unwinder passes straight through.
FN int transparent(int kind)
{
    int r = descend(3, kind);
    KEEP;
    return r;
}

FN int after_catch(int x) { KEEP; return x + 1; }

FN int rethrower(int kind)
{
    try {
        return transparent(kind);
    } catch (int) {
        after_catch(0);
        throw;
    }
}

FN int catcher(int kind)
{
    try {
        return rethrower(kind);
    } catch (const std::runtime_error &e) {
        return after_catch(100);
    } catch (const std::string &s) {
        return after_catch(200);
    } catch (int i) {
        return after_catch(300 + i);
    }
}

struct Base {
    virtual int run(int x) = 0;
};
struct Left : Base {
    FN int run(int x) override { KEEP; return x * 2; }
};
struct Right : Base {
    FN int run(int x) override { KEEP; return x * 3; }
};

FN int dispatch(Base &b, int x)
{
    int r = b.run(x);
    KEEP;
    return r;
}

int main()
{
    long sum = 0;
    Left left;
    Right right;
    for (int i = 0; i < 60; i++) {
        int got = catcher(i);
        int expected[] = { 101, 201, 301 + i, 4 };
        CHECK(got == expected[i % 4]);
        sum += got + dispatch(left, i) + dispatch(right, i);
    }
    CHECK(destroyed == 60 * 6);
    printf("exceptions: ok %ld\n", sum);
    return 0;
}
