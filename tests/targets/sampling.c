/* Programs whose stacks are worth looking at, and which know themselves where their time went, and how sure that is: a timer
 * that is late (the machine under a virtual one was away) comes once for all the times that it was due. */
#define _GNU_SOURCE
#include "target.h"
#include <alloca.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sink;

static double used(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* What a thread did under one name: so many milliseconds on a processor, of which so many in steps that may have hidden a timer
 * (no sampling here has a period as short as LATE); how often the thread was switched out meanwhile, and how often it began anew. */
enum { NAMES = 4 };
static const double LATE = 0.3;
struct spell {
    const char *name;
    double ms, late;
    long switches, times;
};
static __thread struct spell spells[NAMES];

static long switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw + usage.ru_nivcsw;
}

static struct spell *spell(const char *name)
{
    int i = 0;
    while (i < NAMES - 1 && spells[i].name != NULL && strcmp(spells[i].name, name))
        i++;
    spells[i].name = name;
    return &spells[i];
}

static void add(const char *name, double began, double ended, double late, long switched)
{
    struct spell *one = spell(name);
    one->ms += ended - began;
    one->late += late;
    one->switches += switched;
    one->times++;
}

static void say(void)
{
    for (int i = 0; i < NAMES && spells[i].name != NULL; i++)
        printf("%s %d %f %f %ld %ld\n", spells[i].name, gettid(), spells[i].ms, spells[i].late, spells[i].switches,
               spells[i].times);
    fflush(stdout);
}

/* Calls `step` until the thread has used so much more of a processor. */
static void repeat(const char *name, double ms, void (*step)(void))
{
    long switched = switches();
    double began = used(), last = began, late = 0;
    while (last < began + ms) {
        step();
        double now = used();
        late += now - last > LATE ? now - last : 0;
        last = now;
    }
    add(name, began, last, late, switches() - switched);
}

static inline void few(void)
{
    for (int i = 0; i < 20000; i++)
        sink += i;
}
static void spin(const char *name, double ms) { repeat(name, ms, few); }
#define SPIN(n)                                                                                                            \
    for (unsigned long i = 0; i < (n); i++)                                                                                \
    sink += i

FN void six(unsigned long n) { SPIN(6 * n); }
FN void three(unsigned long n) { SPIN(3 * n); }
FN void one(unsigned long n) { SPIN(n); }

/* Turns of chance length, so that no timer can be in step with them. */
static void shares(unsigned long rounds)
{
    void (*functions[3])(unsigned long) = {six, three, one};
    const char *names[3] = {"six", "three", "one"};
    unsigned long draw = 1;
    long switched = switches();
    double last = used();
    for (unsigned long r = 0; r < rounds; r++)
        for (int i = 0; i < 3; i++) {
            draw = draw * 6364136223846793005 + 1442695040888963407;
            functions[i](4000 + (draw >> 33) % 12000);
            double now = used();
            add(names[i], last, now, now - last > LATE ? now - last : 0, 0);
            last = now;
        }
    switched = switches() - switched;
    for (int i = 0; i < 3; i++)
        spell(names[i])->switches = switched;
}

/* Functions so short that nearly all of them is displaced. */
FN long tiny_leaf(long x) { return x * 3 + 1; }
FN long tiny_caller(long x) { return tiny_leaf(x) + 1; }
FN long tiny_pushes(long x, long (*f)(long))
{
    long y = f(x);
    KEEP;
    return y ^ x;
}
FN long tiny_jumps(long x) { return tiny_caller(x + 1); }

static void tiny(unsigned long rounds)
{
    long (*volatile leaf)(long) = tiny_leaf;
    for (unsigned long r = 0; r < rounds; r++)
        sink += tiny_pushes(r, leaf) + tiny_jumps(r) + tiny_caller(r);
    printf("%lu\n", sink);
}

FN void bottom(double ms)
{
    spin("bottom", ms);
    KEEP;
}

FN long sink_down(long bytes, double ms)
{
    volatile char *room = alloca(4096);
    room[0] = room[4095] = 1;
    if (bytes <= 0)
        bottom(ms);
    else
        sink_down(bytes - 4096, ms);
    KEEP;
    return room[0];
}

FN void *brief(void *ms)
{
    spin("brief", *(double *)ms);
    say();
    return NULL;
}

FN void *lasting(void *ms)
{
    spin("lasting", *(double *)ms);
    say();
    return NULL;
}

/* One thread that lasts, and beside it others that come and go. */
static void threads(int count)
{
    double ms = 20, all = 20.0 * count;
    pthread_t one, other;
    pthread_create(&one, NULL, lasting, &all);
    for (int i = 0; i < count; i++) {
        pthread_create(&other, NULL, brief, &ms);
        pthread_join(other, NULL);
    }
    pthread_join(one, NULL);
}

FN void in_the_child(double ms)
{
    spin("in_the_child", ms);
    KEEP;
}

static void forks(void)
{
    pid_t child = fork();
    if (child == 0) {
        in_the_child(300);
        say();
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

/* Does next to nothing itself: the kernel fills the pages. */
static int zeros;
static void read_zeros(void)
{
    static char page[1 << 16];
    for (int i = 0; i < 10; i++)
        CHECK(read(zeros, page, sizeof page) == sizeof page);
}
FN void in_the_kernel(double ms)
{
    zeros = open("/dev/zero", O_RDONLY);
    repeat("in_the_kernel", ms, read_zeros);
    close(zeros);
}

static volatile int handled;
static int enough;

FN void handler(int signal)
{
    (void)signal;
    spin("handler", 3);
    /* What comes after may be a probe, and whom a handler interrupts there is not known. */
    if (++handled >= enough)
        setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL);
}

FN void interrupted(int times)
{
    while (handled < times)
        for (int i = 0; i < 1000; i++)
            sink += i;
}

static void signals(int times)
{
    struct itimerval every = {{0, 5000}, {0, 5000}};
    enough = times;
    signal(SIGPROF, handler);
    setitimer(ITIMER_PROF, &every, NULL);
    interrupted(times);
}

/* Its second half stands apart, in what compilers call the cold part. */
FN __attribute__((cold)) void rarely(void) { KEEP; }
FN void in_two_parts(unsigned long n, int really)
{
    if (really) {
        rarely();
        SPIN(n);
    }
    KEEP;
}

static void (*plug)(volatile unsigned long *);
static void work(void) { plug(&sink); }
static void loads(const char *library, double ms)
{
    void *opened = dlopen(library, RTLD_NOW);
    CHECK(opened != NULL);
    plug = (void (*)(volatile unsigned long *))dlsym(opened, "sampling_plug");
    repeat("sampling_plug", ms, work);
}

FN void *nothing(void *unused) { return unused; }

static pid_t number;

FN void *earlier(void *ms)
{
    number = gettid();
    spin("earlier", *(double *)ms);
    return NULL;
}

FN void *later(void *ms)
{
    if (gettid() != number)
        return NULL;
    spin("later", *(double *)ms);
    return ms;
}

/* Two threads, one after the other, that have the same number. */
static void same_number(void)
{
    double ms = 100;
    pthread_t one;
    void *done = NULL;
    pthread_create(&one, NULL, earlier, &ms);
    pthread_join(one, NULL);
    /* Whoever looks has heard by then that it ended. */
    usleep(500000);
    for (int tries = 0; tries < 1000 && done == NULL; tries++) {
        FILE *last = fopen("/proc/sys/kernel/ns_last_pid", "w");
        CHECK(last != NULL && fprintf(last, "%d", number - 1) > 0 && fclose(last) == 0);
        pthread_create(&one, NULL, later, &ms);
        pthread_join(one, &done);
    }
    CHECK(done != NULL);
}

/* Little else than making threads. */
static void makes(int count)
{
    pthread_t one;
    for (int i = 0; i < count; i++) {
        pthread_create(&one, NULL, nothing, NULL);
        pthread_join(one, NULL);
    }
}

/* Threads that are at work when somebody comes. */
static void several(int count)
{
    static double hour = 3600e3;
    pthread_t one;
    for (int i = 0; i < count; i++)
        pthread_create(&one, NULL, lasting, &hour);
    printf("ready\n");
    fflush(stdout);
    bottom(hour);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    long n = argc > 2 ? atol(argv[2]) : 1;
    if (!strcmp(what, "shares"))
        shares(n);
    else if (!strcmp(what, "tiny"))
        tiny(n);
    else if (!strcmp(what, "deep"))
        sink_down(n, 300);
    else if (!strcmp(what, "threads"))
        threads(n);
    else if (!strcmp(what, "same"))
        same_number();
    else if (!strcmp(what, "forks"))
        forks();
    else if (!strcmp(what, "kernel"))
        in_the_kernel(n);
    else if (!strcmp(what, "signals"))
        signals(n);
    else if (!strcmp(what, "cold"))
        in_two_parts(n, argc > 1);
    else if (!strcmp(what, "loads"))
        loads(argv[3], n);
    else if (!strcmp(what, "makes"))
        makes(n);
    else if (!strcmp(what, "several"))
        several(n);
    else if (!strcmp(what, "killed")) {
        printf("ready\n");
        fflush(stdout);
        bottom(300);
        say();
        raise(9);
    } else
        return 2;
    say();
    return 0;
}
