/* Enters the kernel as often as it has to, and the same number of times in every run: locks that are held, conditions that are waited
   for, semaphores, file locks, select, forks. The argument is a file to lock. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t shared_lock = PTHREAD_RWLOCK_INITIALIZER;
static sem_t semaphore;
static atomic_int waiter, step;
static int is_told;

/* Whether `file` of the waiter's task says so; 0 too when it is gone. */
static int task_says(const char *file, const char *start) {
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", waiter, file);
    int descriptor = open(path, O_RDONLY);
    if (descriptor < 0) return 0;
    ssize_t length = read(descriptor, text, sizeof text - 1);
    close(descriptor);
    return length > 0 && strncmp(text, start, strlen(start)) == 0;
}

/* In futex, call 202. */
static void until_it_waits(int wanted) {
    while (step < wanted || !task_says("syscall", "202 ")) usleep(1000);
}

static void *wait_for_all(void *none) {
    waiter = syscall(SYS_gettid);
    step = 1;
    pthread_mutex_lock(&lock);
    step = 2;
    while (!is_told) pthread_cond_wait(&told, &lock);
    pthread_mutex_unlock(&lock);
    step = 3;
    sem_wait(&semaphore);
    step = 4;
    pthread_rwlock_wrlock(&shared_lock);
    pthread_rwlock_unlock(&shared_lock);
    return none;
}

static void threads(void) {
    pthread_t thread;
    step = 0;
    is_told = 0;
    pthread_mutex_lock(&lock);
    pthread_rwlock_rdlock(&shared_lock);
    pthread_create(&thread, NULL, wait_for_all, NULL);
    until_it_waits(1);
    pthread_mutex_unlock(&lock);
    until_it_waits(2);
    pthread_mutex_lock(&lock);
    is_told = 1;
    pthread_mutex_unlock(&lock);
    pthread_cond_signal(&told);
    until_it_waits(3);
    sem_post(&semaphore);
    until_it_waits(4);
    pthread_rwlock_unlock(&shared_lock);
    while (task_says("comm", "")) usleep(1000);
    pthread_join(thread, NULL);
}

static void files(int file) {
    struct flock range = {.l_whence = SEEK_SET, .l_len = 1};
    for (int i = 0; i < 50; i++) {
        range.l_type = F_WRLCK;
        fcntl(file, F_SETLKW, &range);
        range.l_type = F_UNLCK;
        fcntl(file, F_SETLK, &range);
        fcntl(file, F_GETFD);
    }
}

int main(int argc, char **argv) {
    sem_init(&semaphore, 0, 0);
    for (int i = 0; i < 3; i++) threads();
    int file = open(argv[argc - 1], O_RDWR | O_CREAT, 0600);
    files(file);
    for (int i = 0; i < 10; i++) {
        struct timeval moment = {0, 100};
        select(0, NULL, NULL, NULL, &moment);
        pid_t child = fork();
        if (child == 0) {
            files(file);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        syscall(SYS_getppid);
        syscall(SYS_getsid, 0);
        syscall(100000);
    }
    puts("done");
    return 0;
}
