// Two threads that serve requests by queries: some wait, some throw. Arguments: requests per thread; 0: one thread, without an end.
#include <pthread.h>
#include <stdexcept>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static volatile long sink;
static int requests;

extern "C" NOINLINE int query(const char *sql, int n) {
  for (int i = 0; i < n * 10; i++) sink = sink + i;
  if (n % 97 == 0) {
    timespec pause{0, 200000};
    nanosleep(&pause, nullptr);
  }
  if (n % 41 == 0) throw std::runtime_error(sql);
  return n - 50;
}

extern "C" NOINLINE int work(int n) {
  char sql[64];
  snprintf(sql, sizeof sql, "select * from t where id = %d", n);
  int result = 0;
  for (int i = 0; i < n % 3 + 1; i++) result += query(sql, n + i);
  return result;
}

extern "C" NOINLINE int handle_request(int n) {
  volatile char *copy = static_cast<char *>(malloc(n * 16 + 16));
  copy[0] = n;
  int result;
  try {
    result = work(n);
  } catch (const std::exception &) {
    result = -1;
  }
  free(const_cast<char *>(copy));
  return result;
}

static void *serve(void *) {
  for (int i = 0; i < requests; i++) sink = sink + handle_request(i % 200);
  return nullptr;
}

int main(int, char **arguments) {
  requests = atoi(arguments[1]);
  if (requests == 0) {
    requests = 100;
    for (;;) {
      serve(nullptr);
      usleep(100000);
    }
  }
  pthread_t threads[2];
  for (auto &thread : threads) pthread_create(&thread, nullptr, serve, nullptr);
  for (auto &thread : threads) pthread_join(thread, nullptr);
}
