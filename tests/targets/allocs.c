// Compile with -fno-builtin, or the compiler leaves out what is freed unread.
// Allocates and frees in every way that C has, in several threads, and prints what each of its functions did:
// name, blocks allocated, their bytes, blocks freed, their bytes, bytes that are left, blocks that are left.
// With the argument `fork` a child does the same beside it, and its figures are in the sums; with `copies` the C library allocates, too.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLAIN, ZEROED, ALIGNED, RESIZE, SHRINK, KEEP, RELEASE, FAIL, TAIL, HAND_OVER, TAKE_OVER, GROW, STRDUP, COPY, SMALL, KINDS };
static const char *names[KINDS] = {"plain", "zeroed", "aligned",   "resize",    "shrink", "keep",
                                   "release", "fail", "tail_alloc", "hand_over", "take_over", "grow",   "strdup", "copy", "small"};
typedef atomic_long Counts[KINDS];
static struct Sums {
    Counts allocs, bytes, frees, freed, live, blocks;
} *sums;
static volatile long none;
static int copies;

static void got(int kind, long size) {
    sums->allocs[kind]++;
    sums->bytes[kind] += size;
    sums->live[kind] += size;
    sums->blocks[kind]++;
}
static void gave(int kind, int from, long size) {
    sums->frees[kind]++;
    sums->freed[kind] += size;
    sums->live[from] -= size;
    sums->blocks[from]--;
}
#define APART __attribute__((noinline))

APART void plain(int n) {
    for (int i = 0; i < n; i++) {
        char *p = malloc(i + 1);
        got(PLAIN, i + 1);
        p[i] = 1;
        none += p[i];
        free(p);
        gave(PLAIN, PLAIN, i + 1);
    }
    free(NULL);
}

APART void zeroed(int n) {
    for (int i = 1; i <= n; i++) {
        char *p = calloc(i, 40);
        got(ZEROED, i * 40);
        none += p[i * 40 - 1];
        free(p);
        gave(ZEROED, ZEROED, i * 40);
        // Big enough for memory of its own, fresh from the kernel.
        if (i % 64 == 0) {
            p = calloc(1, 300000);
            got(ZEROED, 300000);
            none += p[7];
            free(p);
            gave(ZEROED, ZEROED, 300000);
        }
    }
}

APART void aligned(int n) {
    for (int i = 1; i <= n; i++) {
        void *p[5] = {0};
        p[0] = memalign(64, i);
        got(ALIGNED, i);
        p[1] = aligned_alloc(32, 32 * i);
        got(ALIGNED, 32 * i);
        if (posix_memalign(&p[2], 128, i + 3) == 0) got(ALIGNED, i + 3);
        p[3] = valloc(10);
        got(ALIGNED, 10);
        p[4] = reallocarray(NULL, 3, i);
        got(ALIGNED, 3 * i);
        for (int k = 0; k < 5; k++) {
            free(p[k]);
        }
        gave(ALIGNED, ALIGNED, i);
        gave(ALIGNED, ALIGNED, 32 * i);
        gave(ALIGNED, ALIGNED, i + 3);
        gave(ALIGNED, ALIGNED, 10);
        gave(ALIGNED, ALIGNED, 3 * i);
    }
}

// What `resize` leaves is freed, and counted as freed, by `shrink`.
APART void *resize(int n) {
    char *p = NULL;
    long size = 0;
    for (int i = 1; i <= n; i++) {
        p = realloc(p, i * 24);
        if (size) gave(RESIZE, RESIZE, size);
        size = i * 24;
        got(RESIZE, size);
    }
    return p;
}

APART void shrink(void *p, int n) {
    p = realloc(p, 5);
    gave(SHRINK, RESIZE, n * 24);
    got(SHRINK, 5);
    void *left = realloc(p, 0);
    gave(SHRINK, SHRINK, 5);
    // Some allocators have blocks of nothing.
    if (left) got(SHRINK, 0);
}

// Too big for the heap: resized by the kernel, if the allocator asks it, and moved.
APART void grow(int n) {
    char *p = malloc(200000);
    got(GROW, 200000);
    for (int i = 1; i <= n; i++) {
        long size = 200000 << i;
        p = realloc(p, size);
        gave(GROW, GROW, size / 2);
        got(GROW, size);
        p[size - 1] = 1;
        none += p[size - 1];
    }
    free(p);
    gave(GROW, GROW, 200000 << n);
}

// Allocated inside of the C library, by its own function.
APART void copy(int n) {
    for (int i = 0; i < n; i++) {
        char *p = strdup("a text");
        got(STRDUP, 7);
        none += p[0];
        free(p);
        gave(COPY, STRDUP, 7);
    }
}

static void *little[4][5000];

// Some allocators have these 8 bytes apart.
APART void small(int number) {
    for (int i = 0; i < 5000; i++) {
        if (little[number][i]) {
            free(little[number][i]);
            gave(SMALL, SMALL, 1 + i % 8);
        }
        little[number][i] = malloc(1 + i % 8);
        got(SMALL, 1 + i % 8);
    }
}

APART void *keep(int n) {
    void **first = NULL;
    for (int i = 0; i < n; i++) {
        void **p = malloc(24 + i % 7);
        got(KEEP, 24 + i % 7);
        *p = first;
        first = p;
    }
    return first;
}

// Of what `keep` kept, every second block.
APART void release(void **first, int n) {
    for (int i = n - 1; i >= 0; i--) {
        void **next = *first;
        if (i % 2) {
            free(first);
            gave(RELEASE, KEEP, 24 + i % 7);
        }
        first = next;
    }
}

APART void fail(int n) {
    for (int i = 0; i < n; i++) {
        size_t huge = (size_t)1 << 62;
        void *p = malloc(16);
        got(FAIL, 16);
        none += malloc(huge) != NULL;
        none += realloc(p, huge) != NULL;
        none += reallocarray(p, huge, 16) != NULL;
        free(p);
        gave(FAIL, FAIL, 16);
    }
}

// Ends in a jump to malloc.
APART void *tail_alloc(long size) {
    got(TAIL, size);
    return malloc(size);
}

// The same after it has called another allocator: its frame is the one that both are charged to.
APART void tails(int n) {
    for (int i = 0; i < n; i++) {
        void *p = tail_alloc(100);
        memset(p, 1, 100);
        none += ((char *)p)[50];
    }
}

static void *handed[4][1000];

APART void hand_over(int to) {
    for (int i = 0; i < 1000; i++) {
        handed[to][i] = malloc(48 + to);
        got(HAND_OVER, 48 + to);
    }
}

APART void take_over(int from) {
    for (int i = 0; i < 1000; i++) {
        free(handed[from][i]);
        gave(TAKE_OVER, HAND_OVER, 48 + from);
    }
}

static pthread_barrier_t all_have;

static void *work(void *argument) {
    int number = (int)(long)argument;
    for (int round = 0; round < 20; round++) {
        plain(200);
        zeroed(100);
        aligned(20);
        shrink(resize(30), 30);
        fail(2);
        tails(3);
        hand_over(number);
        pthread_barrier_wait(&all_have);
        take_over((number + 1) % 4);
        pthread_barrier_wait(&all_have);
    }
    release(keep(500), 500);
    grow(4);
    if (copies) copy(100);
    small(number);
    small(number);
    return NULL;
}

APART void map_and_unmap(void) {
    char *p = mmap(NULL, 10 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p[0] = 1;
    munmap(p, 4 * 4096);
    munmap(p + 4 * 4096, 6 * 4096);
    none += mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
}

// A mapping that is resized is one unmapped and one mapped.
APART void remap(void) {
    int access = PROT_READ | PROT_WRITE;
    char *p = mmap(NULL, 4 * 4096, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p = mremap(p, 4 * 4096, 1000 * 4096, MREMAP_MAYMOVE);
    p[999 * 4096] = 1;
    none += mremap(p, 1000 * 4096, (size_t)1 << 62, MREMAP_MAYMOVE) != MAP_FAILED;
    p = mremap(p, 1000 * 4096, 6 * 4096, 0);
    munmap(p, 6 * 4096);
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    int forks = argc > 1 && strcmp(argv[1], "fork") == 0;
    copies = argc > 1 && strcmp(argv[1], "copies") == 0;
    sums = mmap(NULL, sizeof *sums, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = forks ? fork() : -1;
    pthread_barrier_init(&all_have, NULL, 4);
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    if (child == 0) _exit(0);
    if (child > 0) waitpid(child, NULL, 0);
    map_and_unmap();
    remap();
    for (int kind = 0; kind < KINDS; kind++) {
        if (!copies && (kind == STRDUP || kind == COPY)) continue;
        printf("%s %ld %ld %ld %ld %ld %ld\n", names[kind], sums->allocs[kind], sums->bytes[kind], sums->frees[kind],
               sums->freed[kind], sums->live[kind], sums->blocks[kind]);
    }
    return 0;
}
