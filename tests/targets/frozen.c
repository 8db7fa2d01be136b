/* A thread that goes into uninterruptible sleep (state D) and stays there until it is thawed, beside one that works.
 * Arguments: who sleeps ("main" or "thread"), and where: "vfork" (its child does not start a program), "write FILE"
 * (on a file system that is frozen) or "read FILE" (from a file server that does not answer).
 * Commands on stdin: "freeze", "thaw" (answers when the sleep is over), "work" (prints calls made), "end". */
#include "target.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;
static atomic_int wanted, over;
static const char *kind, *file;
static int thaw[2];

FN int small(int x)
{
    KEEP;
    return x + 1;
}

FN void *work(void *unused)
{
    (void)unused;
    for (int x = 0;;) {
        for (int i = 0; i < 1000; i++)
            CHECK(small(i) == i + 1);
        atomic_fetch_add(&calls, 1000);
        if (++x % 64 == 0)
            usleep(1000);
    }
}

FN void sleep_deeply(void)
{
    char byte = 'x';
    if (!strcmp(kind, "vfork")) {
        pid_t child = vfork();
        if (child == 0) {
            read(thaw[0], &byte, 1);
            _exit(7);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
        return;
    }
    int is_read = !strcmp(kind, "read");
    int fd = open(file, is_read ? O_RDONLY : O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0);
    CHECK((is_read ? read(fd, &byte, 1) : write(fd, &byte, 1)) == 1);
    close(fd);
}

FN void *sleeper(void *unused)
{
    (void)unused;
    for (;;) {
        while (!atomic_exchange(&wanted, 0))
            usleep(1000);
        sleep_deeply();
        atomic_store(&over, 1);
    }
}

FN void *commands(void *unused)
{
    (void)unused;
    char line[64];
    while (fgets(line, sizeof line, stdin) && strncmp(line, "end", 3)) {
        if (!strncmp(line, "freeze", 6)) {
            atomic_store(&wanted, 1);
        } else if (!strncmp(line, "thaw", 4)) {
            if (!strcmp(kind, "vfork"))
                CHECK(write(thaw[1], "x", 1) == 1);
            while (!atomic_exchange(&over, 0))
                usleep(1000);
        }
        printf("%ld\n", atomic_load(&calls));
        fflush(stdout);
    }
    exit(0);
}

int main(int argc, char **argv)
{
    CHECK(argc > 2 && pipe(thaw) == 0);
    kind = argv[2];
    file = argc > 3 ? argv[3] : 0;
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pthread_create(&thread, 0, commands, 0);
    int is_main = !strcmp(argv[1], "main");
    if (!is_main)
        pthread_create(&thread, 0, sleeper, 0);
    printf("ready\n");
    fflush(stdout);
    if (is_main)
        sleeper(0);
    pthread_join(thread, 0);
    return 0;
}
