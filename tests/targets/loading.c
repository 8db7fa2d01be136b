/* Opens and closes a library in a loop while other threads work.
 *
 *   loading LIBRARY ROUNDS [lazy|now|space|fork] runs and prints what it did (fork: each round in a child)
 *   loading LIBRARY -                            says ready, then obeys: open [LIBRARY], close, call N, quit
 */
#define _GNU_SOURCE
#include "target.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int stop;
static atomic_ulong worked;

FN int busy(int x) { KEEP; return x + 1; }

static void *work(void *unused)
{
    unsigned long done = 0;
    while (!stop) {
        busy((int)done);
        done++;
    }
    worked += done;
    return unused;
}

static void *open_library(const char *path, const char *how)
{
    int flags = strcmp(how, "lazy") == 0 ? RTLD_LAZY : RTLD_NOW;
    void *library = strcmp(how, "space") == 0 ? dlmopen(LM_ID_NEWLM, path, flags) : dlopen(path, flags);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

static int call(void *library, int times)
{
    int (*work_in)(int) = (int (*)(int))dlsym(library, "plug_work");
    int sum = 0;
    for (int i = 0; i < times; i++)
        sum += work_in(i);
    return sum;
}

static int open_and_call(const char *path, const char *how)
{
    void *library = open_library(path, how);
    int sum = call(library, 100);
    dlclose(library);
    return sum;
}

static int in_child(const char *path)
{
    pid_t child = fork();
    if (child == 0)
        _exit(open_and_call(path, "now") & 127);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void obey(const char *path)
{
    void *library = NULL;
    char line[4096];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) && strncmp(line, "quit", 4) != 0) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "open", 4) == 0)
            library = open_library(line[4] ? line + 5 : path, "now");
        else if (strncmp(line, "close", 5) == 0)
            dlclose(library);
        else if (strncmp(line, "call ", 5) == 0)
            call(library, atoi(line + 5));
        puts("done");
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    if (strcmp(argv[2], "-") == 0) {
        obey(argv[1]);
        return 0;
    }
    int rounds = atoi(argv[2]);
    const char *how = argc > 3 ? argv[3] : "now";
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    int sum = 0;
    for (int round = 0; round < rounds; round++)
        sum += strcmp(how, "fork") == 0 ? in_child(argv[1]) : open_and_call(argv[1], how);
    stop = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("busy %lu sum %d\n", (unsigned long)worked, sum);
    return 0;
}
