//! Blocked system calls across stops: no EINTR that no handler explains, and none missing.
//!
//! The target has one thread per system call, each in an endless loop of waiting. Each thread counts how often its
//! wait returned EINTR and how often its own signal handler (without SA_RESTART) ran. A wait that came back with
//! EINTR must have seen a handler run since it began, and a handler that ran in a wait must have made it return
//! EINTR, unless the wait was just over. The second is checked by waiting without end: a lost EINTR is a thread that
//! does not come back.

mod support;

use std::time::{Duration, Instant};

use support::{Dir, Target};
use thalweg_ptrace::proc::{Pid, RemoteAddr, status, thread_name};
use thalweg_ptrace::tracee::{Stopped, on_own_thread};

const WAITS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { EPOLL, EPOLL_P, NANO, FUTEX, FUTEX_T, READ, POLL, PPOLL, SELECT, SEM, SEM_T, SIGWAIT, SUSPEND, RECV, ACCEPT, MSG, N };
static const char *names[N] = { "epoll", "epoll_pwait", "nanosleep", "futex", "futex_t", "read", "poll", "ppoll", "select",
    "semop", "semtimedop", "sigtimedwait", "sigsuspend", "recv", "accept", "msgrcv" };
static volatile int end;
static atomic_long handled[N], eintr[N], extra[N], other[N];
static __thread int self_index;
static pthread_t threads[N];

static void on_usr1(int s) { atomic_fetch_add(&handled[self_index], 1); }
static void on_term(int s) { end = 1; }

static int word;
static int pipe_fd[2], sem, queue, sockets[2], listener, ep;

static long wait_once(int kind) {
    struct timespec long_time = { 1000, 0 };
    switch (kind) {
    case EPOLL: { struct epoll_event e; return epoll_wait(ep, &e, 1, -1); }
    case EPOLL_P: { struct epoll_event e; sigset_t s; sigemptyset(&s); sigaddset(&s, SIGTERM); return epoll_pwait(ep, &e, 1, 1000000, &s); }
    case NANO: return nanosleep(&long_time, 0);
    case FUTEX: return syscall(SYS_futex, &word, FUTEX_WAIT, 0, 0, 0, 0);
    case FUTEX_T: return syscall(SYS_futex, &word, FUTEX_WAIT, 0, &long_time, 0, 0);
    case READ: { char c; return read(pipe_fd[0], &c, 1); }
    case POLL: { struct pollfd p = { pipe_fd[0], POLLIN }; return poll(&p, 1, 1000000); }
    case PPOLL: { struct pollfd p = { pipe_fd[0], POLLIN }; sigset_t s; sigemptyset(&s); sigaddset(&s, SIGTERM); return ppoll(&p, 1, &long_time, &s); }
    case SELECT: { fd_set f; FD_ZERO(&f); FD_SET(pipe_fd[0], &f); return select(pipe_fd[0] + 1, &f, 0, 0, 0); }
    case SEM: { struct sembuf b = { 0, -1, 0 }; return semop(sem, &b, 1); }
    case SEM_T: { struct sembuf b = { 1, -1, 0 }; return semtimedop(sem, &b, 1, &long_time); }
    case SIGWAIT: { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); return sigtimedwait(&s, 0, &long_time); }
    case SUSPEND: { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGTERM); return sigsuspend(&s); }
    case RECV: { char c; return recv(sockets[0], &c, 1, 0); }
    case ACCEPT: return accept(listener, 0, 0);
    case MSG: { struct { long t; char b[8]; } m; return msgrcv(queue, &m, 8, 0, 0); }
    }
    return 0;
}

static void *run(void *p) {
    int kind = self_index = (int)(long)p;
    prctl(PR_SET_NAME, names[kind]);
    sigset_t s; sigemptyset(&s); sigaddset(&s, SIGTERM); sigaddset(&s, SIGUSR2); sigaddset(&s, SIGALRM);
    /* these take their signal only inside of the wait */
    if (kind == SUSPEND || kind == PPOLL || kind == EPOLL_P) sigaddset(&s, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &s, 0);
    while (!end) {
        long before = handled[kind];
        errno = 0;
        long r = wait_once(kind);
        if (r == -1 && errno == EINTR) {
            atomic_fetch_add(&eintr[kind], 1);
            if (handled[kind] == before) atomic_fetch_add(&extra[kind], 1);
        } else if (!end) {
            atomic_fetch_add(&other[kind], 1);
            fprintf(stderr, "%s returned %ld, %s\n", names[kind], r, strerror(errno));
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    struct sigaction a = { .sa_handler = on_usr1 };
    int signals = atoi(argv[1]);
    sigaction(SIGUSR1, &a, 0);
    a.sa_handler = on_term; sigaction(SIGTERM, &a, 0);
    pipe(pipe_fd); ep = epoll_create1(0);
    sem = semget(IPC_PRIVATE, 2, 0600); queue = msgget(IPC_PRIVATE, 0600);
    struct timeval tv = { 1000, 0 };
    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
    setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    listener = socket(AF_UNIX, SOCK_STREAM, 0); listen(listener, 1);
    struct sockaddr sa = { AF_UNIX }; bind(listener, &sa, sizeof(sa_family_t)); listen(listener, 1);
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    for (long i = 0; i < N; i++) pthread_create(&threads[i], 0, run, (void *)i);
    usleep(100000);
    puts("ready"); fflush(stdout);

    long sent = 0, lost = 0;
    while (!end) {
        if (!signals) { usleep(1000); continue; }
        /* one signal to each thread, then wait for all handlers, then for all returns */
        long h[N], e[N];
        for (int i = 0; i < N; i++) { h[i] = handled[i]; e[i] = eintr[i]; }
        for (int i = 0; i < N; i++) pthread_kill(threads[i], SIGUSR1);
        kill(getpid(), SIGCHLD); kill(getpid(), SIGWINCH);  /* ignored ones among them */
        sent++;
        for (int i = 0; i < N; i++) {
            for (int t = 0; handled[i] == h[i] && t < 20000; t++) usleep(100);
            /* the handler may run just before the wait begins: then the wait goes on, natively as well */
            for (int t = 0; eintr[i] == e[i] && t < 20; t++) usleep(500);
            if (handled[i] == h[i]) lost++;
        }
        usleep(500);
    }
    long sum = 0, odd = 0, all = 0, missing = 0;
    for (int i = 0; i < N; i++) {
        sum += extra[i]; odd += other[i]; all += eintr[i];
        if (extra[i]) fprintf(stderr, "%s: %ld of %ld EINTR without a handler\n", names[i], extra[i], eintr[i]);
        /* of the signals of a run, nearly all hit a wait */
        if (eintr[i] < handled[i] * 9 / 10) { missing++; fprintf(stderr, "%s: %ld handlers, %ld EINTR\n", names[i], handled[i], eintr[i]); }
    }
    semctl(sem, 0, IPC_RMID); msgctl(queue, IPC_RMID, 0);
    printf("extra %ld odd %ld lost %ld missing %ld\n", sum, odd, lost, missing); fflush(stdout);
    fprintf(stderr, "%ld rounds of signals, %ld EINTR\n", sent, all);
    _exit(0);
}
"#;

/// `own_thread`: the threads are let go all at once.
fn stop_often(target: &Target, rounds: usize, own_thread: bool) {
    let pid = target.pid();
    for round in 0..rounds {
        if own_thread {
            on_own_thread(|| stop_and_map(pid, round));
            assert_eq!(status(pid, pid.into()).unwrap().tracer, 0);
        } else {
            stop_and_map(pid, round);
        }
        std::thread::sleep(Duration::from_micros(200 + (round as u64 * 7919) % 3000));
    }
}

fn stop_and_map(pid: Pid, round: usize) {
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mut stopped = Stopped::stop(pid).unwrap();
    assert_eq!(stopped.threads().len(), 17);
    // Every thread gets its turn to be the one that is borrowed in the middle of its wait.
    let tid = stopped.threads()[round % 17];
    let args = [0, 4096, rw as u64, private as u64, u64::MAX, 0];
    let page = stopped.syscall_by(tid, libc::SYS_mmap, args).unwrap();
    if round.is_multiple_of(3) {
        let next = stopped.threads()[(round + 1) % 17];
        stopped.syscall_by(next, libc::SYS_getpid, [0; 6]).unwrap();
    }
    stopped.munmap(RemoteAddr(page), 4096).unwrap();
    if round.is_multiple_of(5) {
        drop(stopped);
    } else {
        stopped.release().unwrap();
    }
}

#[test]
fn waits_without_signals_never_return() {
    let dir = Dir::new("eintr-quiet");
    let target = Target::start(&dir.c("waits", WAITS, &["-lrt"]), &["0"]);
    stop_often(&target, 200, false);
    stop_often(&target, 200, true);
    assert_eq!(target.verdict(), "extra 0 odd 0 lost 0 missing 0");
}

#[test]
fn waits_with_signals_return_exactly_when_a_handler_ran() {
    let dir = Dir::new("eintr-busy");
    let target = Target::start(&dir.c("waits", WAITS, &["-lrt"]), &["1"]);
    let begin = Instant::now();
    stop_often(&target, 200, false);
    stop_often(&target, 200, true);
    println!("400 stops in {:?}", begin.elapsed());
    assert_eq!(target.verdict(), "extra 0 odd 0 lost 0 missing 0");
}

#[test]
fn every_kind_of_wait_is_really_there() {
    let dir = Dir::new("eintr-kinds");
    let target = Target::start(&dir.c("waits", WAITS, &["-lrt"]), &["0"]);
    let mut stopped = Stopped::stop(target.pid()).unwrap();
    let mut waiting = 0;
    for tid in stopped.threads().to_vec() {
        let name = thread_name(target.pid(), tid).unwrap();
        if name == "waits" {
            continue; // the first thread, which sleeps now and then
        }
        let regs = stopped.regs(tid).unwrap();
        let restarts = (-516..=-512).contains(&(regs.rax as i64)) && regs.orig_rax as i64 >= 0;
        assert!(
            restarts,
            "{name}: rax {} of call {}",
            regs.rax as i64, regs.orig_rax as i64
        );
        waiting += 1;
    }
    assert_eq!(waiting, 16);
}
