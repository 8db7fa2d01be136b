// Threads that share two processors count on per-CPU counters, made by restartable sequences (rseq_bump.S): the sum of
// the counters is the number of increments, or a sequence was torn.
//
// rseq_counters KIND INCREMENTS [LIBRARY]: KIND is section, data, made or hidden; each of eight threads counts INCREMENTS times,
// or, with 0, until the end of standard input. With LIBRARY the functions are loaded from there. Linked with -rdynamic.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/rseq.h>
#include <unistd.h>

enum { THREADS = 8, PROCESSORS = 1024 };

typedef void bump_fn(long *counters, void *area, void *made);

static long counters[PROCESSORS][8] __attribute__((aligned(64)));
static char *made;
static bump_fn *bump;
static long wanted;
static volatile int over;
static long counted[THREADS][8];

static void *count(void *own) {
  void *area = (char *)__builtin_thread_pointer() + __rseq_offset;
  long *done = own;
  while (wanted ? *done < wanted : !over) {
    bump(counters[0], area, made);
    *done += 1;
  }
  return NULL;
}

int main(int argc, char **argv) {
  const char *kind = argv[1];
  wanted = atol(argv[2]);
  void *library = dlopen(argc > 3 ? argv[3] : NULL, RTLD_NOW);
  if (!library) return fputs(dlerror(), stderr), 3;
  if (__rseq_size == 0) return puts("no rseq"), 77;
  made = aligned_alloc(32, 32);
  char name[32];
  snprintf(name, sizeof name, "describe_%s", kind);
  void (*describe)(void *) = dlsym(library, name);
  if (describe) describe(made);
  snprintf(name, sizeof name, "bump_%s", kind);
  bump = dlsym(library, name);

  // No more than two processors, so that threads take turns.
  cpu_set_t may, two;
  sched_getaffinity(0, sizeof may, &may);
  CPU_ZERO(&two);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; cpu++)
    if (CPU_ISSET(cpu, &may)) CPU_SET(cpu, &two);
  sched_setaffinity(0, sizeof two, &two);

  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, count, counted[i]);
  if (!wanted) {
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    over = 1;
  }
  long increments = 0, sum = 0;
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    increments += counted[i][0];
  }
  for (int cpu = 0; cpu < PROCESSORS; cpu++) sum += counters[cpu][0];
  printf("increments %ld lost %ld\n", increments, increments - sum);
  return increments != sum;
}
