/* A program under thalweg, seen from inside: read its own figures, name a piece of code, ask for a checkpoint.
 *
 * Nothing to link, nothing to initialise. Where nobody counts each of these is a call of a function that does nothing.
 * thalweg finds these functions by their names, so the program must not be stripped of them. x86-64 Linux, C and C++.
 */
#ifndef THALWEG_H
#define THALWEG_H

#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All 0 where nobody counts. Times in nanoseconds; what was allocated only with --metric alloc. */
typedef struct thalweg_totals {
    uint64_t attached; /* 1: somebody counts */
    uint64_t calls;
    uint64_t base_ns; /* on a processor, in counted functions; of the asking thread up to now, of others up to their last returns */
    uint64_t waited_ns;
    uint64_t alloc_calls;
    uint64_t alloc_bytes;
    uint64_t free_calls;
    uint64_t free_bytes;
    uint64_t live_bytes;
    uint64_t partial; /* 1: some contexts were too deep to be added up */
} thalweg_totals;

#if defined(__clang__)
#define THALWEG_APART __attribute__((noinline, used, unused))
#else
#define THALWEG_APART __attribute__((noinline, noclone, used, unused))
#endif
/* Room for a jump, and nothing that a compiler could leave out or, as the numbers differ, make one of two. */
#define THALWEG_ROOM(into, number) \
    __asm__ volatile("nopl " number "(%%rax,%%rax,1)\n\tnopl 0(%%rax,%%rax,1)" : : "D"(into) : "memory")

static THALWEG_APART void thalweg_answer_thread(thalweg_totals *into) { THALWEG_ROOM(into, "1"); }
static THALWEG_APART void thalweg_answer_process(thalweg_totals *into) { THALWEG_ROOM(into, "2"); }

/* Of this thread. */
static inline thalweg_totals thalweg_thread_totals(void) {
    thalweg_totals totals;
    memset(&totals, 0, sizeof totals);
    thalweg_answer_thread(&totals);
    return totals;
}

/* Of all threads of this process, ended ones included. */
static inline thalweg_totals thalweg_process_totals(void) {
    thalweg_totals totals;
    memset(&totals, 0, sizeof totals);
    thalweg_answer_process(&totals);
    return totals;
}

/* `thalweg record` saves what was counted so far, at most once a second, beside its output. */
static THALWEG_APART void thalweg_checkpoint(void) { THALWEG_ROOM(0, "3"); }

/* At file scope: THALWEG_REGION(parse) makes a function thalweg_region_parse(code, argument), which calls code(argument):
 * in the profile a context of that name, with all that happened in it. */
#define THALWEG_REGION(name)                                                               \
    static THALWEG_APART void *thalweg_region_##name(void *(*code)(void *), void *argument) { \
        void *result = code(argument);                                                     \
        THALWEG_ROOM(result, "4");                                                         \
        return result;                                                                     \
    }

#ifdef __cplusplus
}
#endif
#endif
