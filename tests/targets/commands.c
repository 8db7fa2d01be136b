/* Does what it is told on its standard input, a line at a time, and answers each line:
 *   work N       N calls of work
 *   flush N      N calls of flush
 *   run PATH     a child becomes the program, and is waited for: its status
 *   frun PATH    the same by fexecve
 *   start PATH   the same, not waited for: its process id
 *   wait         for that one: its status */
#define _GNU_SOURCE
#include "target.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

FN unsigned work(unsigned n)
{
    KEEP;
    return n + 1;
}

FN unsigned flush(unsigned n)
{
    KEEP;
    return n + 1;
}

FN pid_t start(char *path, int by_descriptor)
{
    pid_t child = fork();
    if (child == 0) {
        char *argv[] = { path, "6", 0 };
        if (by_descriptor)
            fexecve(open(path, O_RDONLY | O_CLOEXEC), argv, environ);
        else
            execve(path, argv, environ);
        _exit(127);
    }
    return child;
}

FN int status_of(pid_t child)
{
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void)
{
    char line[4096];
    pid_t child = 0;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        char *what = strtok(line, " "), *rest = strtok(0, "");
        unsigned n = rest ? (unsigned)atoi(rest) : 0, done = 0;
        if (!strcmp(what, "work"))
            while (done < n)
                done = work(done);
        else if (!strcmp(what, "flush"))
            while (done < n)
                done = flush(done);
        else if (!strcmp(what, "run"))
            done = status_of(start(rest, 0));
        else if (!strcmp(what, "frun"))
            done = status_of(start(rest, 1));
        else if (!strcmp(what, "start"))
            done = child = start(rest, 0);
        else if (!strcmp(what, "wait"))
            done = status_of(child);
        printf("%s %u\n", what, done);
        fflush(stdout);
    }
    return 0;
}
