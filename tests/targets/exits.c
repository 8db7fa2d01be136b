/* exits HOW: copies stdin to stdout, says one word on stderr, and ends as it is told:
 * a number, "signal N", "abort", "quick" (_exit), or "thread" (exit from another thread). */
#include "target.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

FN long copy(void)
{
    char buffer[4096];
    ssize_t got;
    long total = 0;
    while ((got = read(0, buffer, sizeof buffer)) > 0) {
        CHECK(write(1, buffer, (size_t)got) == got);
        total += got;
    }
    return total;
}

FN void *leave(void *unused)
{
    (void)unused;
    exit(21);
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    long copied = copy();
    fprintf(stderr, "copied %ld\n", copied);
    if (!strcmp(argv[1], "signal")) {
        raise(atoi(argv[2]));
    } else if (!strcmp(argv[1], "abort")) {
        abort();
    } else if (!strcmp(argv[1], "quick")) {
        _exit(17);
    } else if (!strcmp(argv[1], "thread")) {
        pthread_t thread;
        pthread_create(&thread, 0, leave, 0);
        pause();
    }
    return atoi(argv[1]);
}
