/* The reference by -finstrument-functions: an exact calling-context tree per thread, written at exit.
 *
 * Linked into a second build of a target (-finstrument-functions -fno-omit-frame-pointer); this file itself is
 * compiled without instrumentation. The file named by CYG_OUT gets, for every thread and node, one line:
 *
 *     calls name;name;...;name        (outermost first, absolute addresses; the reader names them)
 *
 * A frame is known by its CFA (the frame pointer's slot + 16): entering at an address not below the top
 * frame's means that frame was left by longjmp, so it is dropped. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define OFF __attribute__((no_instrument_function))

struct node {
    void *function;
    uint32_t parent, first_child, next_sibling;
    uint64_t calls;
};
struct frame {
    uintptr_t cfa;
    uint32_t node;
};
/* Reserved, not used up: pages are taken as they are touched. */
enum { NODES = 1 << 23, FRAMES = 1 << 22 };
struct tree {
    struct tree *next;
    struct node *nodes;
    struct frame *frames;
    uint32_t used, depth;
};

static struct tree *trees;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct tree *mine;
static pid_t owner;

OFF static void *reserve(size_t size)
{
    void *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        abort();
    return p;
}

OFF static struct tree *tree(void)
{
    if (!mine) {
        mine = reserve(sizeof *mine);
        mine->nodes = reserve(sizeof(struct node) * NODES);
        mine->frames = reserve(sizeof(struct frame) * FRAMES);
        mine->used = 1;
        pthread_mutex_lock(&lock);
        mine->next = trees;
        trees = mine;
        if (!owner)
            owner = getpid();
        pthread_mutex_unlock(&lock);
    }
    return mine;
}

OFF static uint32_t child(struct tree *t, uint32_t parent, void *function)
{
    for (uint32_t c = t->nodes[parent].first_child; c; c = t->nodes[c].next_sibling)
        if (t->nodes[c].function == function)
            return c;
    if (t->used == NODES)
        abort();
    uint32_t c = t->used++;
    t->nodes[c] = (struct node){ function, parent, 0, t->nodes[parent].first_child, 0 };
    t->nodes[parent].first_child = c;
    return c;
}

OFF void __cyg_profile_func_enter(void *function, void *site)
{
    (void)site;
    uintptr_t cfa = (uintptr_t)__builtin_frame_address(1) + 16;
    struct tree *t = tree();
    while (t->depth && t->frames[t->depth - 1].cfa <= cfa)
        t->depth--;
    uint32_t parent = t->depth ? t->frames[t->depth - 1].node : 0;
    uint32_t node = child(t, parent, function);
    t->nodes[node].calls++;
    if (t->depth == FRAMES)
        abort();
    t->frames[t->depth++] = (struct frame){ cfa, node };
}

OFF void __cyg_profile_func_exit(void *function, void *site)
{
    (void)site;
    struct tree *t = tree();
    for (uint32_t d = t->depth; d--;)
        if (t->nodes[t->frames[d].node].function == function) {
            t->depth = d;
            return;
        }
}

OFF static void write_path(FILE *out, struct tree *t, uint32_t node)
{
    if (t->nodes[node].parent)
        write_path(out, t, t->nodes[node].parent);
    fprintf(out, "%s%p", t->nodes[node].parent ? ";" : "", t->nodes[node].function);
}

OFF __attribute__((destructor)) static void dump(void)
{
    const char *name = getenv("CYG_OUT");
    if (!name || owner != getpid())
        return;
    FILE *out = fopen(name, "w");
    if (!out)
        abort();
    /* The reader subtracts where this symbol was loaded to get addresses of the file. */
    fprintf(out, "base %p\n", (void *)__cyg_profile_func_enter);
    for (struct tree *t = trees; t; t = t->next)
        for (uint32_t n = 1; n < t->used; n++) {
            fprintf(out, "%llu ", (unsigned long long)t->nodes[n].calls);
            write_path(out, t, n);
            fputc('\n', out);
        }
    fclose(out);
}
