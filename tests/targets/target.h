/* Shared by the target programs: functions that stay functions, and checks that stop the program.
 *
 * FN keeps a function out of line and uncloned, so that the plain build and the build with
 * -finstrument-functions make the same calls. KEEP is an empty statement with a side effect: behind a
 * recursive call it keeps the compiler from turning the recursion into a loop, inside a function it
 * keeps equal calls from being merged. */
#ifndef TARGET_H
#define TARGET_H
#include <stdio.h>
#include <stdlib.h>

#ifdef __clang__
#define FN __attribute__((noinline))
#else
#define FN __attribute__((noinline, noclone, noipa))
#endif
#define KEEP __asm__ volatile("" ::: "memory")

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            printf("ERROR %s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            fflush(stdout);                                                                \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#endif
