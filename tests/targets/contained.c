/* contained DEPTH: PID namespaces in PID namespaces, DEPTH of them. In each are two children, who call themselves 1 and 2: the first makes
 * the next namespace, the second becomes another program. `contained DEPTH live` waits for a line first. */
#define _GNU_SOURCE
#include "target.h"
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *program;

FN int inside(int i)
{
    KEEP;
    return i + 1;
}

FN int as_another_program(int i)
{
    KEEP;
    return i + 1;
}

static void finish(pid_t child, int expected)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == expected);
}

FN int contain(int depth)
{
    for (int i = 0; i < 100;)
        i = inside(i);
    printf("%d at %d\n", depth, getpid() < 3 ? getpid() : 0);
    fflush(stdout);
    if (depth == 0) {
        /* Long enough for whoever looks around among our numbers. */
        usleep(500000);
        return 3;
    }
    /* Without rights of our own, those of a user namespace. */
    CHECK(unshare(CLONE_NEWPID) == 0 || (errno == EPERM && unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0));
    int both[2];
    CHECK(pipe(both) == 0);
    pid_t first = fork();
    if (first == 0) {
        char end;
        close(both[1]);
        int result = contain(depth - 1);
        /* Nobody is made in a namespace whose first process has ended. */
        CHECK(read(both[0], &end, 1) == 0);
        _exit(result);
    }
    close(both[0]);
    pid_t second = fork();
    if (second == 0) {
        inside(0);
        execl(program, program, "leaf", NULL);
        _exit(9);
    }
    CHECK(first > 0 && second > 0);
    finish(second, 5);
    close(both[1]);
    finish(first, 3);
    return 3;
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc > 1 && !strcmp(argv[1], "leaf")) {
        for (int i = 0; i < 7;)
            i = as_another_program(i);
        puts("leaf");
        return 5;
    }
    if (argc > 2) {
        char line[16];
        puts("ready");
        fflush(stdout);
        CHECK(fgets(line, sizeof line, stdin));
    }
    CHECK(contain(argc > 1 ? atoi(argv[1]) : 1) == 3);
    return 0;
}
