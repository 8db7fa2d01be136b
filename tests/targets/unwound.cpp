// unwound [noexcept | exit | throw | destructor]: every way to leave a function without a return. Without an argument: all that the
// program survives, and at the end a line per function: its name, how often it was entered, how often it returned.
#include "target.h"
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <pthread.h>
#include <stdexcept>
#include <unistd.h>

extern "C" int through_library(int depth, int (*callback)(int), int argument);

#define FUNCTIONS(X) X(raise_one) X(descend) X(from_library) X(rethrow) X(catches) X(cleans) X(jumps) X(jumps_deep) X(signalled) X(sinks) X(waits) X(ends)
#define ONE(name) name##_, 
enum { FUNCTIONS(ONE) COUNT };
#define TEXT(name) #name,
static const char *const names[] = { FUNCTIONS(TEXT) };
static long entered[COUNT], returned[COUNT];

#define ENTER(f) __atomic_fetch_add(&entered[f##_], 1, __ATOMIC_RELAXED)
#define RETURN(f, value)                                     \
    do {                                                     \
        __atomic_fetch_add(&returned[f##_], 1, __ATOMIC_RELAXED); \
        return value;                                        \
    } while (0)

extern "C" {

FN int raise_one(int kind)
{
    ENTER(raise_one);
    if (kind % 3 == 0)
        throw std::runtime_error("zero");
    if (kind % 3 == 1)
        throw kind;
    RETURN(raise_one, kind);
}

struct Guard {
    int *counter;
    ~Guard() { ++*counter; }
};
static int cleaned;

FN int descend(int depth, int kind)
{
    ENTER(descend);
    int r;
    if (depth % 2) {
        Guard guard{&cleaned};
        r = descend(depth - 1, kind);
    } else {
        r = depth ? descend(depth - 1, kind) : raise_one(kind);
    }
    KEEP;
    RETURN(descend, r);
}

FN int from_library(int kind)
{
    ENTER(from_library);
    int r = descend(5, kind);
    KEEP;
    RETURN(from_library, r);
}

FN int rethrow(int kind)
{
    ENTER(rethrow);
    int r = 0;
    try {
        r = through_library(3, from_library, kind);
    } catch (int) {
        throw;
    } catch (const std::exception &) {
        throw kind;
    }
    RETURN(rethrow, r);
}

FN int catches(int kind)
{
    ENTER(catches);
    int r;
    try {
        r = rethrow(kind);
    } catch (int) {
        r = 1;
    }
    RETURN(catches, r);
}

// A destructor that throws, and whose exception is caught before it leaves it.
struct Thrower {
    ~Thrower()
    {
        try {
            raise_one(1);
        } catch (int) {
        }
    }
};

FN int cleans(int kind)
{
    ENTER(cleans);
    int r;
    {
        Thrower thrower;
        r = descend(2, kind);
        KEEP;
    }
    RETURN(cleans, r);
}

static jmp_buf target;
static sigjmp_buf signal_target;

FN int jumps_deep(int depth)
{
    ENTER(jumps_deep);
    if (depth == 0)
        longjmp(target, 1);
    int r = jumps_deep(depth - 1);
    KEEP;
    RETURN(jumps_deep, r);
}

FN int jumps(int depth)
{
    ENTER(jumps);
    if (setjmp(target) == 0)
        jumps_deep(depth);
    RETURN(jumps, depth);
}

FN void signalled(int signal)
{
    ENTER(signalled);
    KEEP;
    siglongjmp(signal_target, signal);
}

FN int sinks(int depth)
{
    ENTER(sinks);
    if (depth == 0) {
        raise(SIGUSR1);
        KEEP;
    } else {
        sinks(depth - 1);
    }
    RETURN(sinks, depth);
}

FN int waits(int depth)
{
    ENTER(waits);
    Guard guard{&cleaned};
    if (depth == 0)
        for (;;)
            pause();
    int r = waits(depth - 1);
    KEEP;
    RETURN(waits, r);
}

FN void *ends(void *how)
{
    ENTER(ends);
    if (how)
        pthread_exit(how);
    waits(4);
    RETURN(ends, nullptr);
}

FN int terminates(int kind) noexcept { return descend(3, kind); }

FN void exits(int depth)
{
    if (depth == 0)
        exit(7);
    exits(depth - 1);
    KEEP;
}

}

struct Dangerous {
    ~Dangerous() noexcept(false) { raise_one(0); }
};

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "noexcept"))
        return terminates(0);
    if (!strcmp(how, "exit"))
        exits(10);
    if (!strcmp(how, "throw"))
        return descend(4, 0);
    if (!strcmp(how, "destructor")) {
        Dangerous dangerous;
        return descend(4, 0);
    }
    signal(SIGUSR1, signalled);
    long sum = 0;
    for (int i = 0; i < 60; i++) {
        sum += catches(i);
        try {
            sum += cleans(i);
        } catch (...) {
        }
        sum += jumps(i % 7);
        if (sigsetjmp(signal_target, 1) == 0)
            sum += sinks(i % 5);
    }
    for (int i = 0; i < 6; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, nullptr, ends, i % 2 ? &sum : nullptr) == 0);
        if (i % 2 == 0) {
            while (__atomic_load_n(&entered[waits_], __ATOMIC_RELAXED) < 5 * (i / 2 + 1))
                usleep(1000);
            CHECK(pthread_cancel(thread) == 0);
        }
        void *result;
        CHECK(pthread_join(thread, &result) == 0);
        CHECK(result == (i % 2 ? static_cast<void *>(&sum) : PTHREAD_CANCELED));
    }
    printf("unwound: ok %ld, %d cleaned\n", sum, cleaned);
    for (int i = 0; i < COUNT; i++)
        printf("%s %ld %ld\n", names[i], entered[i], returned[i]);
    return 0;
}
