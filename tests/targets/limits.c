/* limits HOW BY [crowd|stays]: says ready, waits for a line, limits itself so that a probe which does not know would kill it, and works on:
 * prints "done" and ends with 0.
 *   HOW  tsc (no time-stamp counter), strict and filter (seccomp), dispatch (syscall user dispatch),
 *        gs (a GS base of its own), notls (a child without a thread pointer), before-tsc, before-dispatch (before ready)
 *   BY   wrapper (the library's function), syscall (its `syscall`), bare (an instruction), number (one whose
 *        number is known only when it runs), wrgsbase (the instruction)
 * With a crowd four more threads are in the midst of it; one that stays reads another line before it ends. */
#define _GNU_SOURCE
#include "target.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS 100000
#define ARCH_SET_GS 0x1001
#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

int arch_prctl(int, unsigned long);

static volatile int sum;
static unsigned long mine[64];
static char blocks;
static volatile int over;
static const char *by;

FN int work(int x) { KEEP; return x * 3 + 1; }

FN int many(int times)
{
    int x = 1;
    for (int i = 0; i < times; i++)
        x = work(x);
    KEEP;
    return x;
}

FN long by_number(long number, long a, long b, long c, long d, long e)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

#define BARE(number, a, b, c, e)                                                                         \
    ({                                                                                                   \
        long result_;                                                                                    \
        register long r10_ __asm__("r10") = 0;                                                           \
        register long r8_ __asm__("r8") = (long)(e);                                                         \
        __asm__ volatile("syscall" : "=a"(result_)                                                       \
                         : "0"((long)number), "D"((long)(a)), "S"((long)(b)), "d"((long)(c)), "r"(r10_), "r"(r8_) \
                         : "rcx", "r11", "memory");                                                      \
        result_;                                                                                         \
    })

FN long set_bare(long a, long b, long c, long e) { return BARE(SYS_prctl, a, b, c, e); }
FN long filter_bare(long a, long b, long c) { return BARE(SYS_seccomp, a, b, c, 0); }
FN long arch_bare(long a, long b) { return BARE(SYS_arch_prctl, a, b, 0, 0); }
#if defined(__x86_64__)
FN void gs_by_instruction(unsigned long base) { KEEP; __asm__ volatile("wrgsbase %0" ::"r"(base)); }
#endif

FN long set(long a, long b, long c, long d, long e)
{
    if (!strcmp(by, "wrapper"))
        return prctl(a, b, c, d, e);
    if (!strcmp(by, "syscall"))
        return syscall(SYS_prctl, a, b, c, d, e);
    if (!strcmp(by, "number"))
        return by_number(SYS_prctl, a, b, c, d, e);
    return set_bare(a, b, c, e);
}

static void *another(void *unused)
{
    sum += many(CALLS);
    return unused;
}

static void *busy(void *unused)
{
    while (!over)
        many(1000);
    return unused;
}

FN void forbid(void)
{
    static const int calls[] = { SYS_getpid, SYS_gettid, SYS_getppid, SYS_tgkill, SYS_prctl, SYS_clock_gettime,
                                 SYS_process_vm_readv, SYS_sched_yield };
    struct sock_filter code[64];
    int at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = { at, code };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (!strcmp(by, "wrapper"))
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    else if (!strcmp(by, "syscall"))
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    else if (!strcmp(by, "number"))
        CHECK(by_number(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (long)&program, 0, 0) == 0);
    else
        CHECK(filter_bare(SECCOMP_SET_MODE_FILTER, 0, (long)&program) == 0);
}

FN void move_gs(void)
{
    mine[0] = 4711;
    unsigned long base = (unsigned long)mine;
    if (!strcmp(by, "wrapper"))
        CHECK(arch_prctl(ARCH_SET_GS, base) == 0);
    else if (!strcmp(by, "syscall"))
        CHECK(syscall(SYS_arch_prctl, ARCH_SET_GS, base) == 0);
    else if (!strcmp(by, "number"))
        CHECK(by_number(SYS_arch_prctl, ARCH_SET_GS, base, 0, 0, 0) == 0);
    else if (!strcmp(by, "wrgsbase"))
        gs_by_instruction(base);
    else
        CHECK(arch_bare(ARCH_SET_GS, base) == 0);
}

FN unsigned long read_gs(void)
{
    unsigned long found;
    KEEP;
    __asm__ volatile("mov %%gs:0, %0" : "=r"(found));
    return found;
}

/* Built without a stack protector: nothing here needs a thread pointer. */
static int child(void *unused)
{
    (void)unused;
    int x = many(1000);
    BARE(SYS_exit, x == 0 ? 9 : 7, 0, 0, 0);
    return 0;
}

FN void without_tls(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    int flags = CLONE_VM | CLONE_SETTLS | SIGCHLD, status = 0;
    pid_t made = clone(child, stack + sizeof stack, flags, 0, 0, 0, 0);
    CHECK(made > 0 && waitpid(made, &status, 0) == made);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void say(const char *what) { CHECK(write(1, what, strlen(what)) == (long)strlen(what)); }

static void await_line(void)
{
    char got = 0;
    while (got != '\n')
        CHECK(read(0, &got, 1) == 1);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    by = argc > 2 ? argv[2] : "wrapper";
    sum = many(10);
    pthread_t crowd[4];
    int others = argc > 3 && !strcmp(argv[3], "crowd") ? 4 : 0;
    for (int i = 0; i < others; i++)
        CHECK(pthread_create(&crowd[i], 0, busy, 0) == 0);
    if (!strcmp(how, "before-tsc"))
        CHECK(set(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0);
    if (!strcmp(how, "before-dispatch"))
        CHECK(set(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, (long)&blocks) == 0);
    say("ready\n");
    await_line();
    if (!strcmp(how, "tsc"))
        CHECK(set(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0);
    if (!strcmp(how, "strict"))
        CHECK(set(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) == 0);
    if (!strcmp(how, "filter")) {
        forbid();
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, another, 0) == 0);
        CHECK(pthread_join(thread, 0) == 0);
    }
    if (!strcmp(how, "dispatch")) {
        CHECK(set(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, (long)&blocks) == 0);
        blocks = 1;
    }
    if (!strcmp(how, "gs"))
        move_gs();
    if (!strcmp(how, "notls"))
        without_tls();
    for (int i = 0; i < 30; i++)
        sum += many(CALLS);
    blocks = 0;
    over = 1;
    if (!strcmp(how, "gs"))
        CHECK(read_gs() == 4711);
    say("done\n");
    if (argc > 3 && !strcmp(argv[3], "stays")) {
        await_line();
        sum += many(CALLS);
        if (!strcmp(how, "gs"))
            CHECK(read_gs() == 4711);
    }
    if (!strcmp(how, "strict"))
        BARE(SYS_exit, 0, 0, 0, 0);
    for (int i = 0; i < others; i++)
        CHECK(pthread_join(crowd[i], 0) == 0);
    return 0;
}
