// Hostile: maps a file that it may only read under the name that thalweg's own memory has in the memory map.
//
//   posing FILE FOLDER ADDRESS     FOLDER becomes the root of a mount namespace in which FILE is called /memfd:thalweg
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc != 4) return 1;
    char name[4096];
    snprintf(name, sizeof name, "%s/memfd:thalweg", argv[2]);
    struct stat file;
    if (stat(argv[1], &file)) return 2;
    int user = geteuid() ? CLONE_NEWUSER : 0;
    if (unshare(CLONE_NEWNS | user) || mount("none", "/", 0, MS_REC | MS_PRIVATE, 0)
        || mount("none", argv[2], "tmpfs", 0, 0) || close(open(name, O_CREAT | O_WRONLY, 0600))
        || mount(argv[1], name, 0, MS_BIND, 0) || chdir(argv[2]) || syscall(SYS_pivot_root, ".", ".")
        || umount2(".", MNT_DETACH) || chdir("/")) {
        puts("not possible here");
        return 0;
    }
    int fd = open("/memfd:thalweg", O_RDONLY);
    void *at = (void *)strtoul(argv[3], 0, 16);
    if (mmap(at, file.st_size, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) != at) return 3;
    puts("ready");
    fflush(stdout);
    getchar();
    puts("OK");
    return 0;
}
