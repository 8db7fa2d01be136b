// Starts itself again by system calls of its own, which no function of the C library sees: `bare`, and `bare working` the child,
// which works until its code has been changed, however long that takes, and then for a hundred steps more. It says how many it
// has made in all.
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long call(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

__attribute__((noinline)) int step(int n) {
    usleep(1000);
    return n + 1;
}

int main(int argc, char **argv) {
    if (argc > 1) {
        const char *code = (const char *)step;
        char before[32];
        memcpy(before, code, sizeof before);
        int n = 0, last = 120 * 1000;
        while (n < last) {
            n = step(n);
            if (last == 120 * 1000 && memcmp(before, code, sizeof before))
                last = n + 100;
        }
        printf("worked %d\n", n);
        return last == 120 * 1000;
    }
    char *arguments[] = {argv[0], "working", NULL}, *environment[] = {NULL};
    long child = call(SYS_fork, 0, 0, 0, 0);
    if (child == 0) {
        call(SYS_execve, (long)argv[0], (long)arguments, (long)environment, 0);
        call(SYS_exit_group, 1, 0, 0, 0);
    }
    int status = 0;
    call(SYS_wait4, child, (long)&status, 0, 0);
    printf("ended with %d\n", status);
    return 0;
}
