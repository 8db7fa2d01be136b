// A hostile target: it finds the memory that thalweg has given it and writes over it for as long as it lives.
//
//   scribbler MODE NODES_OFFSET NODES_USED SLOTS STATE [SECONDS]
//
// The numbers say where things lie in that memory: two fields of its header, the first thread's page, and the state of the
// record area in such a page. The modes:
//
//   rings    the indices of record areas
//   links    links between contexts, so that trees lead round and into each other
//
// It calls nothing while it does so, so that no probe of its own trips over it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))

static volatile uint8_t *memory;
static uint64_t length;
static uint64_t nodes_offset_at, nodes_used_at, slots_at, state_at;
volatile uint64_t sum;

__attribute__((noinline)) uint64_t leaf(uint64_t n) { return n * 2654435761u; }
__attribute__((noinline)) uint64_t branch(uint64_t n) { return n == 0 ? leaf(n) : branch(n - 1) + leaf(n); }
__attribute__((noinline)) void work(uint64_t n) { sum += branch(n % 20); }

static int find(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long start, end;
        if (strstr(line, "/memfd:thalweg") != NULL && sscanf(line, "%lx-%lx", &start, &end) == 2) {
            memory = (volatile uint8_t *)start;
            length = end - start;
            found = 1;
        }
    }
    if (maps != NULL)
        fclose(maps);
    return found;
}

INLINE uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// A number that a reader is likely to believe, or to stumble over.
INLINE uint64_t number(uint64_t *state) {
    uint64_t any = next(state);
    switch (any % 10) {
    case 0: return 0;
    case 1: return 1;
    case 2: return UINT64_MAX;
    case 3: return length;
    case 4: return length - any / 64 % 8192;
    case 5: return 1ull << any / 16 % 64;
    case 6: return (1ull << any / 16 % 64) - 1;
    case 7: return any / 16 % 4096;
    case 8: return (any / 16 % 65536) << 32 | any / 4096 % 65536;
    default: return any;
    }
}

INLINE uint64_t word(uint64_t at) { return *(volatile uint64_t *)(memory + at); }
INLINE void put(uint64_t at, uint64_t value) { *(volatile uint64_t *)(memory + at) = value; }

INLINE uint64_t ticks(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

enum { RINGS, LINKS };

// Never returns: ends by itself after so many ticks.
__attribute__((noinline)) static void scribble(int mode, uint64_t until) {
    uint64_t state = 88172645463325252ull;
    // Of the unharmed header: later it may say anything.
    uint64_t nodes = word(nodes_offset_at), used = word(nodes_used_at) / 128;
    for (;;) {
        uint64_t any = next(&state);
        switch (mode) {
        case RINGS: {
            uint64_t at = slots_at + any % 4 * 4096 + state_at;
            put(at + 8 + any / 4 % 3 * 8, number(&state));
            break;
        }
        case LINKS: {
            if (used == 0)
                break;
            // first_child and sibling are the two halves at 52 and 56.
            volatile uint32_t *link = (volatile uint32_t *)(memory + nodes + any % used * 128 + 52);
            link[any >> 63] = (uint32_t)(next(&state) % (used + 2));
            break;
        }
        }
        if (ticks() > until)
            __asm__ volatile("syscall" : : "a"(231), "D"(0) : "rcx", "r11", "memory");
    }
}

int main(int argc, char **argv) {
    const char *names[] = {"rings", "links"};
    int mode = 0;
    if (argc < 6)
        return 64;
    while (mode < LINKS && strcmp(argv[1], names[mode]) != 0)
        mode++;
    nodes_offset_at = strtoull(argv[2], NULL, 0);
    nodes_used_at = strtoull(argv[3], NULL, 0);
    slots_at = strtoull(argv[4], NULL, 0);
    state_at = strtoull(argv[5], NULL, 0);
    uint64_t seconds = argc > 6 ? strtoull(argv[6], NULL, 0) : 60;
    puts("ready");
    fflush(stdout);
    while (!find()) {
        work(3);
        usleep(1000);
    }
    for (uint64_t n = 0; n < 100; n++) {
        work(n);
        usleep(1000);
    }
    puts("scribbling");
    fflush(stdout);
    // Some billions a second, whatever the processor.
    scribble(mode, ticks() + seconds * 3000000000ull);
}
