/* fork, vfork with exec, and posix_spawn; parent and children check their own work. */
#define _GNU_SOURCE
#include "target.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

FN unsigned fib(unsigned n)
{
    if (n < 2)
        return n;
    unsigned a = fib(n - 1);
    KEEP;
    unsigned b = fib(n - 2);
    KEEP;
    return a + b;
}

FN void *child_thread(void *unused)
{
    (void)unused;
    CHECK(fib(10) == 55);
    return 0;
}

FN int child(int number)
{
    CHECK(fib(15) == 610);
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, child_thread, 0) == 0);
    pthread_join(thread, 0);
    return number;
}

FN int status_of(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(void)
{
    CHECK(fib(12) == 144);
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            _exit(child(40 + i));
        CHECK(fib(11) == 89);
        CHECK(status_of(pid) == 40 + i);
    }
    pid_t pid = vfork();
    CHECK(pid >= 0);
    if (pid == 0) {
        execl("/bin/true", "true", (char *)0);
        _exit(9);
    }
    CHECK(status_of(pid) == 0);
    char *arguments[] = { "false", 0 };
    CHECK(posix_spawn(&pid, "/bin/false", 0, 0, arguments, environ) == 0);
    CHECK(status_of(pid) == 1);
    CHECK(system("exit 3") == 3 << 8);
    CHECK(fib(13) == 233);
    printf("forking: ok\n");
    return 0;
}
