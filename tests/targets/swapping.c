// Hostile: a sibling that shares this program's descriptors, and is none of its threads, puts another file in the place
// of every memfd that appears among them.
//
//   swapping VICTIM       the other file is VICTIM, by an O_PATH descriptor: no right to it is needed
//   swapping -            the other file is a memfd of the sibling's own, by the same name and as empty
//
// "swaps?" on standard input is answered with their number so far.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FIRST = 3, LAST = 12, OTHER = 100 };

static volatile unsigned long *swaps;

__attribute__((noinline)) unsigned long work(unsigned long x) { return x * 2862933555777941757ul + 3037000493ul; }

static void swap_for_ever(const char *victim) {
    int own = strcmp(victim, "-") == 0;
    if (!own) dup2(open(victim, O_PATH), OTHER);
    for (;;) {
        for (int fd = FIRST; fd < LAST; fd++) {
            // Only a memfd has seals.
            if (fcntl(fd, F_GET_SEALS) < 0) continue;
            if (own) {
                int other = memfd_create("thalweg", MFD_ALLOW_SEALING);
                dup3(other, OTHER, O_CLOEXEC);
                close(other);
            }
            dup3(OTHER, fd, O_CLOEXEC);
            ++*swaps;
            // What was put there is left alone until it is closed.
            for (int i = 0; i < 1000 && fcntl(fd, F_GETFD) >= 0; i++) usleep(100);
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 2) return 1;
    swaps = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0) == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        swap_for_ever(argv[1]);
    }
    puts("ready");
    fflush(stdout);
    char line[64];
    unsigned long sum = 0;
    while (fgets(line, sizeof line, stdin)) {
        for (int i = 0; i < 1000; i++) sum = work(sum);
        if (!strncmp(line, "swaps?", 6)) printf("%lu\n", *swaps);
        fflush(stdout);
    }
    printf("OK %lu\n", sum & 1);
    return 0;
}
