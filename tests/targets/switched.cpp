/* switched N: N threads call functions of many kinds, each of which counts its own calls, until a line comes on standard
 * input. Then the counts are printed, one line for each function: what it is called, how often it was called, and how often it was
 * left by an exception. */
#include <atomic>
#include <csignal>
#include <cstring>
#include <pthread.h>
#include <sys/time.h>
#include <vector>
extern "C" {
#include "target.h"
}

enum { LEAF, MIDDLE, SHORT, JUMPER, LANDED, POINTER, FIB, THROWER, BETWEEN, CATCHER, ROUND, SOMETIMES, TARGET, KINDS };
static const char *const names[KINDS] = {"leaf", "middle", "short_one", "jumper", "landed", "by_pointer", "fib", "thrower",
                                         "between", "catcher", "one_round", "sometimes", "sometimes_landed"};
static thread_local long counts[KINDS], unwound[KINDS];
static long all[KINDS], all_unwound[KINDS];
static std::atomic<long> ticks{0};
static std::atomic<bool> stop{false};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

extern "C" {
FN long leaf(long x) { counts[LEAF]++; KEEP; return x * 3 + 1; }
FN long short_one(long x) { counts[SHORT]++; KEEP; return x ^ 5; }
FN long sometimes(long x) { counts[SOMETIMES]++; KEEP; return x + 2; }
FN long sometimes_landed(long x) { counts[TARGET]++; KEEP; return x - 2; }
FN long landed(long x) { counts[LANDED]++; KEEP; return x + 7; }
FN long jumper(long x)
{
    counts[JUMPER]++;
    KEEP;
    return x & 1 ? landed(x) : sometimes_landed(x);
}
static long (*volatile chosen[2])(long) = {landed, sometimes_landed};
FN long by_pointer(long x)
{
    counts[POINTER]++;
    long (*to)(long) = chosen[(x >> 1) & 1];
    KEEP;
    return to(x);
}
FN long middle(long x)
{
    counts[MIDDLE]++;
    long sum = leaf(x) + sometimes(x);
    KEEP;
    return sum + short_one(x);
}
FN long fib(long n)
{
    counts[FIB]++;
    if (n < 2)
        return n;
    long a = fib(n - 1);
    KEEP;
    long b = fib(n - 2);
    KEEP;
    return a + b;
}
FN void thrower(long x)
{
    counts[THROWER]++;
    if (x % 512 == 0) {
        unwound[THROWER]++;
        unwound[BETWEEN]++;
        throw x;
    }
    KEEP;
}
FN long between(long x)
{
    counts[BETWEEN]++;
    long sum = sometimes(x);
    thrower(x);
    KEEP;
    return sum;
}
FN long catcher(long x)
{
    counts[CATCHER]++;
    try {
        return between(x);
    } catch (long value) {
        return value;
    }
}
FN long one_round(long x)
{
    counts[ROUND]++;
    long sum = middle(x) + jumper(x) + by_pointer(x) + catcher(x) + fib(x & 7);
    KEEP;
    return sum;
}
FN void on_tick(int)
{
    ticks++;
    KEEP;
}
FN void *worker(void *)
{
    long sum = 0;
    for (long x = 1; !stop; x++)
        sum += one_round(x);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KINDS; i++) {
        all[i] += counts[i];
        all_unwound[i] += unwound[i];
    }
    pthread_mutex_unlock(&lock);
    return (void *)sum;
}
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 2;
    CHECK(count > 0 && count <= 64);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_tick;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, 0);
    char line[64];
    puts("ready");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin));
    struct itimerval every = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &every, 0);
    std::vector<pthread_t> threads(count);
    for (auto &thread : threads)
        CHECK(pthread_create(&thread, 0, worker, 0) == 0);
    CHECK(fgets(line, sizeof line, stdin));
    stop = true;
    for (auto &thread : threads)
        pthread_join(thread, 0);
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, 0);
    for (int i = 0; i < KINDS; i++)
        printf("%s %ld %ld\n", names[i], all[i], all_unwound[i]);
    printf("on_tick %ld 0\nend\n", ticks.load());
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin));
    return 0;
}
