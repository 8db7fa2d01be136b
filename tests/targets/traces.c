/* traces HOW: a program that traces its child, and prints every system call that it sees, by number. The child asks for it (me), by the library's
 * `syscall` (syscall) or by an instruction of its own (bare); or it is taken (seize, attach). Then it works, calls the kernel once, and becomes
 * another program. */
#define _GNU_SOURCE
#include "target.h"
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile long sink;

FN long piece(long n)
{
    for (long i = 0; i < n; i++)
        sink += i;
    return n;
}

/* Pieces so long that a thread may have been off its processor meanwhile. */
FN long works(void)
{
    long sum = 0;
    for (int i = 0; i < 200; i++)
        sum += piece(100000);
    return sum;
}

FN long bare(long number, long a)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(0L), "d"(0L) : "rcx", "r11", "memory");
    return result;
}

FN void child(const char *how, const char *program, int ready)
{
    works();
    if (!strcmp(how, "me"))
        CHECK(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    else if (!strcmp(how, "syscall"))
        CHECK(syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0) == 0);
    else if (!strcmp(how, "bare"))
        CHECK(bare(SYS_ptrace, PTRACE_TRACEME) == 0);
    else {
        char go;
        CHECK(read(ready, &go, 1) == 1);
    }
    raise(SIGSTOP);
    works();
    getppid();
    works();
    execl(program, program, "leaf", NULL);
    _exit(9);
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    const char *how = argv[1];
    if (!strcmp(how, "leaf"))
        return 7;
    int ready[2], status;
    CHECK(pipe(ready) == 0);
    pid_t pid = fork();
    if (pid == 0)
        child(how, argv[0], ready[0]);
    int seize = !strcmp(how, "seize"), attach = !strcmp(how, "attach");
    if (seize)
        CHECK(ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD) == 0);
    if (attach) {
        /* Its stop is the first one that is seen. */
        CHECK(ptrace(PTRACE_ATTACH, pid, 0, 0) == 0);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
        CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
    }
    CHECK(write(ready[1], "", 1) == 1);
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    if (!seize)
        CHECK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD) == 0);
    int entering = 1, signal = 0;
    for (;;) {
        CHECK(ptrace(PTRACE_SYSCALL, pid, 0, (long)signal) == 0);
        CHECK(waitpid(pid, &status, 0) == pid);
        if (!WIFSTOPPED(status))
            break;
        signal = 0;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            struct user_regs_struct regs;
            CHECK(ptrace(PTRACE_GETREGS, pid, 0, &regs) == 0);
            if (entering)
                printf("%lld\n", (long long)regs.orig_rax);
            entering = !entering;
        }
    }
    printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return 0;
}
