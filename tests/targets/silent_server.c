/* A file server (FUSE) that has one file and does not answer those who read it: a reader that is interrupted then waits in
 * state D. Argument: where to mount. Each line on stdin: what was asked so far is answered, and confirmed by a line.
 * Unmounts at the end of stdin. */
#include "target.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int device;

static void answer(const struct fuse_in_header *in, int error, const void *body, size_t len)
{
    struct fuse_out_header head = { (unsigned)(sizeof head + len), error, in->unique };
    struct iovec parts[2] = { { &head, sizeof head }, { (void *)body, len } };
    if (writev(device, parts, len ? 2 : 1) < 0)
        CHECK(errno == ENOENT); /* whoever asked was killed */
}

static struct fuse_attr attributes(unsigned long node)
{
    struct fuse_attr attr = { .ino = node, .nlink = 1, .size = node == 1 ? 0 : 4096 };
    attr.mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
    return attr;
}

/* 0: not answered yet. */
static int serve(const struct fuse_in_header *in)
{
    struct fuse_init_out init = { .major = 7, .minor = 31, .max_write = 4096 };
    struct fuse_entry_out entry = { .nodeid = 2, .attr = attributes(2) };
    struct fuse_attr_out attr = { .attr = attributes(in->nodeid) };
    struct fuse_open_out opened = { .open_flags = FOPEN_DIRECT_IO };
    switch (in->opcode) {
    case FUSE_INIT: answer(in, 0, &init, sizeof init); break;
    case FUSE_LOOKUP: answer(in, 0, &entry, sizeof entry); break;
    case FUSE_GETATTR: answer(in, 0, &attr, sizeof attr); break;
    case FUSE_OPEN: answer(in, 0, &opened, sizeof opened); break;
    case FUSE_READ: return 0;
    case FUSE_INTERRUPT:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET: break;
    case FUSE_FLUSH:
    case FUSE_RELEASE: answer(in, 0, 0, 0); break;
    default: answer(in, -ENOSYS, 0, 0);
    }
    return 1;
}

int main(int argc, char **argv)
{
    static char request[1 << 17], options[128];
    struct fuse_in_header asked[16];
    int count = 0;
    CHECK(argc > 1 && (device = open("/dev/fuse", O_RDWR)) >= 0);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    CHECK(mount("silent", argv[1], "fuse", 0, options) == 0);
    printf("ready\n");
    fflush(stdout);
    struct pollfd waits[2] = { { device, POLLIN, 0 }, { 0, POLLIN, 0 } };
    for (;;) {
        poll(waits, 2, -1);
        if (waits[0].revents) {
            if (read(device, request, sizeof request) < 0) {
                CHECK(errno != ENODEV); /* somebody has unmounted it */
                continue;
            }
            const struct fuse_in_header *in = (void *)request;
            if (!serve(in) && count < 16)
                asked[count++] = *in;
        } else if (waits[1].revents) {
            char line[64];
            int is_over = read(0, line, sizeof line) <= 0;
            while (count)
                answer(&asked[--count], 0, "x", 1);
            if (is_over)
                break;
            printf("answered\n");
            fflush(stdout);
        }
    }
    umount2(argv[1], MNT_DETACH);
    return 0;
}
