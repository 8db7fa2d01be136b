// A program's own allocator, with the C library's names: never gives memory back.
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define ROOM ((size_t)1 << 32)
static _Atomic(char *) next;

static size_t *head(void *block) { return (size_t *)block - 2; }

static void *take(size_t align, size_t size) {
    char *first = NULL;
    if (size > ROOM / 2) {
        errno = ENOMEM;
        return NULL;
    }
    if (!next) {
        char *room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        atomic_compare_exchange_strong(&next, &first, room);
    }
    size_t whole = (size + align + 31) & ~(size_t)15;
    char *place = atomic_fetch_add(&next, whole) + 16;
    place = (char *)(((uintptr_t)place + align - 1) & ~(uintptr_t)(align - 1));
    *head(place) = size;
    return place;
}

void *malloc(size_t size) { return take(16, size); }
void free(void *block) { (void)block; }
void *calloc(size_t count, size_t size) { return take(16, count * size); }
void *memalign(size_t align, size_t size) { return take(align, size); }
void *aligned_alloc(size_t align, size_t size) { return take(align, size); }
void *valloc(size_t size) { return take(4096, size); }
int posix_memalign(void **into, size_t align, size_t size) {
    void *block = take(align, size);
    if (!block) return ENOMEM;
    *into = block;
    return 0;
}
void *realloc(void *old, size_t size) {
    if (old && size == 0) return NULL;
    void *block = take(16, size);
    if (block && old) memcpy(block, old, *head(old) < size ? *head(old) : size);
    return block;
}
void *reallocarray(void *old, size_t count, size_t size) {
    if (size && count > ROOM / size) return NULL;
    return realloc(old, count * size);
}
