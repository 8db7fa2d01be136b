/* Makes code of its own, says so as compilers do that make code at run time, and spends its time there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* push rbp; mov rbp, rsp; 1: dec rdi; jnz 1b; pop rbp; ret */
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3};

__attribute__((noinline)) static void run(void (*made)(long))
{
    for (int round = 0; round < 400; round++)
        made(10000000);
}

static const char name[] = "Script:~spin /srv/app.js:3:1";

static void map(char *path, char *at)
{
    snprintf(path, 64, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(path, "wx");
    if (!map)
        exit(1);
    fprintf(map, "%lx %zx %s\n", (unsigned long)at, sizeof code, name);
    fclose(map);
}

/* The other form, which its writer maps: first as if it were elsewhere. */
static void dump(char *path, char *at)
{
    struct {
        unsigned magic, version, size, machine, pad, pid;
        unsigned long time, flags;
    } header = {0x4a695444, 1, 40, 62, 0, getpid(), 0, 0};
    struct {
        unsigned kind, size;
        unsigned long time;
        unsigned pid, tid;
        unsigned long address, from, to, length, number;
    } loaded = {0, 56 + sizeof name + sizeof code, 0, getpid(), getpid(), 0x1000, 0x1000, sizeof code, 1, 0},
      moved = {1, 64, 0, getpid(), getpid(), 0, 0x1000, (unsigned long)at, sizeof code, 1};
    snprintf(path, 64, "/tmp/jit-%d.dump", getpid());
    int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || write(file, &header, 40) < 0 || write(file, &loaded, 56) < 0 || write(file, name, sizeof name) < 0
        || write(file, code, sizeof code) < 0 || write(file, &moved, 64) < 0
        || mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
        exit(1);
}

int main(int count, char **arguments)
{
    (void)arguments;
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return 1;
    memcpy(page + 64, code, sizeof code);
    if (mprotect(page, 4096, PROT_READ | PROT_EXEC))
        return 1;
    char path[64];
    if (count > 1)
        dump(path, page + 64);
    else
        map(path, page + 64);
    run((void (*)(long))(page + 64));
    unlink(path);
    puts("done");
    return 0;
}
