//! The sudden death of the controller: whatever it was doing to a thread, the thread goes on as if nothing had been.

mod support;

use std::process::{Command, Stdio};
use std::time::Duration;

use support::{Dir, Target};
use thalweg_ptrace::proc::{self, Pid, RemoteAddr};
use thalweg_ptrace::tracee::Stopped;

/// Two threads that compute and check with all registers in use, one that waits in epoll, one in nanosleep, one in read;
/// the waiting ones must not come back.
const WORK: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
static volatile int end;
static volatile long bad, back, rounds;
static int fds[2];
static void on_term(int s) { end = 1; }
static void *compute(void *p) {
    while (!end) {
        char from[256], to[256];
        for (int i = 0; i < 256; i++) from[i] = i ^ rounds;
        memcpy(to, from, 256);
        uint64_t a = 1, b = 2, c = 3, d = 4, e = 5, f = 6; double x = 1;
        for (int k = 0; k < 2000; k++) { a += b ^ k; b += c * 3; c ^= d; d += e << 1; e -= f; f += a; x = x * 1.5; if (x > 1e9) x = 1; }
        uint64_t a2 = 1, b2 = 2, c2 = 3, d2 = 4, e2 = 5, f2 = 6; double x2 = 1;
        for (int k = 0; k < 2000; k++) { a2 += b2 ^ k; b2 += c2 * 3; c2 ^= d2; d2 += e2 << 1; e2 -= f2; f2 += a2; x2 = x2 * 1.5; if (x2 > 1e9) x2 = 1; }
        if (a != a2 || b != b2 || c != c2 || d != d2 || e != e2 || f != f2 || x != x2 || memcmp(from, to, 256)) bad++;
        if (getppid() <= 0) bad++;
        rounds++;
    }
    return 0;
}
static void *in_epoll(void *p) { int ep = epoll_create1(0); struct epoll_event e; for (;;) { epoll_wait(ep, &e, 1, -1); back++; } }
static void *in_sleep(void *p) { struct timespec t = { 100000, 0 }; nanosleep(&t, 0); back += 1000000; return 0; }
static void *in_read(void *p) { char c; for (;;) { read(fds[0], &c, 1); back += 1000000; } }
int main(void) {
    pthread_t t[5];
    signal(SIGTERM, on_term);
    pipe(fds);
    pthread_create(&t[0], 0, compute, 0); pthread_create(&t[1], 0, compute, 0);
    pthread_create(&t[2], 0, in_epoll, 0); pthread_create(&t[3], 0, in_sleep, 0); pthread_create(&t[4], 0, in_read, 0);
    usleep(50000);
    puts("ready"); fflush(stdout);
    pthread_join(t[0], 0); pthread_join(t[1], 0);
    printf("bad %ld back %ld\n", bad, back); fflush(stdout);
    _exit(rounds == 0);
}
"#;

const VICTIM: &str = "THALWEG_TEST_VICTIM";
/// It dies by itself, with a thread borrowed.
const DIES: &str = "THALWEG_TEST_DIES";

fn surgeon_on(pid: Pid) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "surgeon", "--ignored"])
        .env(VICTIM, pid.to_string())
        .stdout(Stdio::null());
    command
}

/// Not a test of its own: the program that is killed below.
#[test]
#[ignore = "run by the test below"]
fn surgeon() {
    let Ok(pid) = std::env::var(VICTIM) else {
        return;
    };
    let pid = Pid(pid.parse().unwrap());
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mut round = 0;
    loop {
        let mut stopped = Stopped::stop(pid).unwrap();
        let threads = stopped.threads().to_vec();
        for tid in [
            threads[round % threads.len()],
            threads[(round + 1) % threads.len()],
        ] {
            let args = [0, 4096, rw as u64, private as u64, u64::MAX, 0];
            let page = stopped.syscall_by(tid, libc::SYS_mmap, args).unwrap();
            if std::env::var_os(DIES).is_some() {
                nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
            }
            stopped.munmap(RemoteAddr(page), 4096).unwrap();
        }
        stopped.release().unwrap();
        round += 1;
    }
}

#[test]
fn a_target_survives_the_death_of_its_controller_at_any_moment() {
    let dir = Dir::new("death");
    let mut target = Target::start(&dir.c("work", WORK, &[]), &[]);
    let pid = target.pid();
    let masks = || -> Vec<u64> {
        let tids = proc::tasks(pid).unwrap().into_iter();
        tids.map(|tid| proc::status(pid, tid).unwrap().blocked)
            .collect()
    };
    let before = masks();
    for round in 0..150u64 {
        let mut surgeon = surgeon_on(pid).spawn().unwrap();
        // Long enough for it to begin, then at any moment of its work.
        std::thread::sleep(Duration::from_micros(8_000 + (round * 7919) % 9_000));
        surgeon.kill().unwrap();
        surgeon.wait().unwrap();
        assert!(target.is_alive(), "the target died in round {round}");
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(masks(), before, "signals stayed blocked");
    for tid in proc::tasks(pid).unwrap() {
        let status = proc::status(pid, tid).unwrap();
        assert_eq!(status.tracer, 0);
        assert!(
            matches!(status.state, 'R' | 'S'),
            "{tid} is in state {}",
            status.state
        );
    }
    let verdict = target.verdict();
    let (bad, back) = verdict.split_once(" back ").unwrap();
    assert_eq!(bad, "bad 0");
    // A wait in epoll that was stopped but not yet seen to when we died returns EINTR; nothing else comes back.
    assert!(back.parse::<u64>().unwrap() < 75, "{verdict}");
}

/// A thread that one controller left in the healing code may not have run before the next one borrows it, and dies too.
#[test]
fn a_thread_survives_the_deaths_of_controllers_in_a_row() {
    let dir = Dir::new("deaths");
    let mut target = Target::start(&dir.c("work", WORK, &[]), &[]);
    let pid = target.pid();
    let stopped_by_signal = |signal| {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.0), signal).unwrap();
    };
    for _ in 0..10 {
        // It stays as each of them leaves it.
        stopped_by_signal(nix::sys::signal::Signal::SIGSTOP);
        for _ in 0..3 {
            surgeon_on(pid).env(DIES, "1").status().unwrap();
        }
        stopped_by_signal(nix::sys::signal::Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(5));
        assert!(target.is_alive());
    }
    assert!(target.verdict().starts_with("bad 0 "));
}
