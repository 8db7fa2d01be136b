/* confined HOW: makes itself hard to attach to, says ready, and works on. HOW is strict, filter or unnamed (seccomp), lenient (a
 * filter such as containers have), late (a filter that comes when a line is read),
 * mdwe (memory that is written is never executed), or undumpable. */
#define _GNU_SOURCE
#include "target.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

FN int work(int x) { KEEP; return x * 3 + 1; }

FN void forbid(int one, int other)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, one, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, other, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = { sizeof code / sizeof code[0], code };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    char *unused = malloc(10);
    free(unused);
    if (!strcmp(how, "mdwe") && prctl(PR_SET_MDWE, 1, 0, 0, 0) != 0) {
        printf("no such policy in this kernel\n");
        return 3;
    }
    if (!strcmp(how, "undumpable"))
        CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    if (!strcmp(how, "filter"))
        forbid(SYS_memfd_create, SYS_mmap);
    if (!strcmp(how, "unnamed"))
        forbid(SYS_prctl, SYS_prctl);
    if (!strcmp(how, "lenient"))
        forbid(SYS_reboot, SYS_ptrace);
    CHECK(write(1, "ready\n", 6) == 6);
    if (!strcmp(how, "late")) {
        char line[16];
        CHECK(read(0, line, sizeof line) > 0);
        forbid(SYS_munmap, SYS_mmap);
        CHECK(write(1, "shut\n", 5) == 5);
    }
    if (!strcmp(how, "strict"))
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    int x = 1;
    for (;;)
        x = work(x);
}
