//! Stopping and releasing live programs that watch themselves.

mod support;

use std::time::{Duration, Instant};

use support::{Dir, Target};
use thalweg_ptrace::error::Error;
use thalweg_ptrace::proc::{self, RemoteAddr};
use thalweg_ptrace::tracee::{StopOptions, Stopped, on_own_thread};

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Eight threads that spin and check an invariant; the longest gap that one of them saw is in the verdict.
const SPIN: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
static volatile int end;
static void on_term(int s) { end = 1; }
static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static volatile uint64_t rounds[8];
static int bad[8];
static void *spin(void *p) {
    long i = (long)p; double x = 1.5; uint64_t h = i;
    while (!end) {
        uint64_t a = h; double y = x;
        for (int k = 0; k < 1000; k++) { a = a * 6364136223846793005ull + 1442695040888963407ull; y = y * 1.0000001; }
        for (int k = 0; k < 1000; k++) { a = (a - 1442695040888963407ull) * 13877824140714322085ull; }
        if (a != h) bad[i]++;
        if (y <= x) bad[i]++;
        rounds[i]++;
    }
    return 0;
}
int main(void) {
    pthread_t t[8];
    signal(SIGTERM, on_term);
    for (long i = 0; i < 8; i++) pthread_create(&t[i], 0, spin, (void *)i);
    for (int i = 0; i < 8; i++) while (!rounds[i]) usleep(1000);
    puts("ready"); fflush(stdout);
    int wrong = 0;
    for (int i = 0; i < 8; i++) { pthread_join(t[i], 0); wrong += bad[i]; }
    printf("wrong %d\n", wrong); fflush(stdout);
    return 0;
}
"#;

#[test]
fn eight_spinning_threads_survive_hundreds_of_stops_and_remote_calls() {
    let dir = Dir::new("spin");
    let target = Target::start(&dir.c("spin", SPIN, &[]), &[]);
    let pid = target.pid();
    let mut times = Vec::new();
    for _ in 0..100 {
        let begin = Instant::now();
        let stopped = Stopped::stop(pid).unwrap();
        assert_eq!(stopped.threads().len(), 9);
        stopped.release().unwrap();
        times.push(begin.elapsed());
    }
    times.sort();
    println!(
        "stop and release of 9 threads: median {:?}, 90 % {:?}, longest {:?}",
        times[50], times[90], times[99]
    );
    assert!(times[50] < Duration::from_millis(5), "{:?}", times[50]);

    let mut calls = Vec::new();
    for round in 0..300u64 {
        let mut stopped = Stopped::stop(pid).unwrap();
        let begin = Instant::now();
        let at = stopped
            .mmap(RemoteAddr(0), 8192, RW, PRIVATE, -1, 0)
            .unwrap();
        calls.push(begin.elapsed());
        stopped.write(at, &round.to_le_bytes()).unwrap();
        let mut back = [0; 8];
        stopped.read(at, &mut back).unwrap();
        assert_eq!(u64::from_le_bytes(back), round);
        stopped.mprotect(at, 8192, libc::PROT_READ).unwrap();
        stopped.write(at, &[7]).unwrap();
        stopped.munmap(at, 8192).unwrap();
        assert!(stopped.read(at, &mut back).is_err());
        let thread = stopped.threads()[round as usize % 9];
        let tid = stopped
            .syscall_by(thread, libc::SYS_gettid, [0; 6])
            .unwrap();
        assert_eq!(tid as i32, thread.0);
        stopped.release().unwrap();
    }
    calls.sort();
    println!(
        "first remote call: median {:?}, longest {:?}",
        calls[150], calls[299]
    );
    assert_eq!(target.verdict(), "wrong 0");
}

#[test]
fn a_failed_remote_call_tells_its_name_and_leaves_the_target_running() {
    let dir = Dir::new("failed");
    let target = Target::start(&dir.c("spin", SPIN, &[]), &[]);
    let mut stopped = Stopped::stop(target.pid()).unwrap();
    let error = stopped.munmap(RemoteAddr(1), 5).unwrap_err();
    assert!(error.to_string().contains("munmap"), "{error}");
    let fd = stopped.memfd_create("probe", libc::MFD_CLOEXEC).unwrap();
    stopped.ftruncate(fd, 4096).unwrap();
    let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", target.pid())).unwrap();
    assert!(link.to_string_lossy().contains("memfd:probe"), "{link:?}");
    let at = stopped
        .mmap(RemoteAddr(0), 4096, RW, libc::MAP_SHARED, fd, 0)
        .unwrap();
    stopped.close(fd).unwrap();
    stopped.write(at, b"x").unwrap();
    stopped.munmap(at, 4096).unwrap();
    drop(stopped);
    assert_eq!(target.verdict(), "wrong 0");
}

#[test]
fn executable_memory_is_the_same_bytes_after_remote_calls() {
    let dir = Dir::new("same");
    let target = Target::start(&dir.c("spin", SPIN, &[]), &[]);
    let hash = |stopped: &Stopped| -> Vec<(RemoteAddr, Vec<u8>)> {
        let exec = stopped
            .maps()
            .unwrap()
            .into_iter()
            .filter(|m| m.perms.exec && m.perms.read);
        exec.map(|m| {
            let mut bytes = vec![0; m.len() as usize];
            stopped.read(m.start, &mut bytes).unwrap();
            (m.start, bytes)
        })
        .collect()
    };
    let mut stopped = Stopped::stop(target.pid()).unwrap();
    let before = hash(&stopped);
    let at = stopped
        .mmap(RemoteAddr(0), 4096, RW, PRIVATE, -1, 0)
        .unwrap();
    assert!(before == hash(&stopped), "a reader sees the borrowed bytes");
    stopped.munmap(at, 4096).unwrap();
    stopped.release().unwrap();
    let stopped = Stopped::stop(target.pid()).unwrap();
    assert!(before == hash(&stopped), "the borrowed bytes stayed behind");
    drop(stopped);
    assert_eq!(target.verdict(), "wrong 0");
}

/// Threads that live for a moment, made by threads that live for a moment.
const CHURN: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdatomic.h>
#include <unistd.h>
static volatile int end;
static atomic_long made, done;
static void on_term(int s) { end = 1; }
static void *leaf(void *p) { atomic_fetch_add(&done, 1); return 0; }
static void *maker(void *p) {
    while (!end) {
        pthread_t t[4]; int n = 0;
        for (int i = 0; i < 4; i++) if (!pthread_create(&t[n], 0, leaf, 0)) { n++; atomic_fetch_add(&made, 1); }
        for (int i = 0; i < n; i++) pthread_join(t[i], 0);
    }
    return 0;
}
int main(void) {
    pthread_t t[3];
    signal(SIGTERM, on_term);
    for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, maker, 0);
    puts("ready"); fflush(stdout);
    for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
    printf("lost %ld\n", made - done); fflush(stdout);
    return 0;
}
"#;

#[test]
fn no_thread_runs_while_stopped_though_threads_come_and_go() {
    let dir = Dir::new("churn");
    let target = Target::start(&dir.c("churn", CHURN, &[]), &[]);
    let pid = target.pid();
    let mut most = 0;
    for _ in 0..300 {
        let mut stopped = Stopped::stop(pid).unwrap();
        most = most.max(stopped.threads().len());
        for tid in proc::tasks(pid).unwrap() {
            let state = proc::thread_stat(pid, tid).map_or('X', |stat| stat.state);
            assert!(
                matches!(state, 't' | 'Z' | 'X'),
                "thread {tid} is in state {state}"
            );
        }
        let at = stopped
            .mmap(RemoteAddr(0), 4096, RW, PRIVATE, -1, 0)
            .unwrap();
        stopped.munmap(at, 4096).unwrap();
        drop(stopped);
    }
    assert!(most > 4, "no short-lived thread was ever caught");
    assert_eq!(target.verdict(), "lost 0");
}

#[test]
fn a_process_stopped_by_a_signal_stays_stopped_and_can_be_changed() {
    let dir = Dir::new("sigstop");
    let target = Target::start(&dir.c("spin", SPIN, &[]), &[]);
    target.signal(libc::SIGSTOP);
    wait_for(|| target.state() == 'T');
    for _ in 0..20 {
        let mut stopped = Stopped::stop(target.pid()).unwrap();
        let at = stopped
            .mmap(RemoteAddr(0), 4096, RW, PRIVATE, -1, 0)
            .unwrap();
        stopped.munmap(at, 4096).unwrap();
        stopped.release().unwrap();
        wait_for(|| {
            proc::tasks(target.pid())
                .unwrap()
                .into_iter()
                .all(|tid| proc::thread_stat(target.pid(), tid).unwrap().state == 'T')
        });
    }
    target.signal(libc::SIGCONT);
    wait_for(|| target.state() != 'T');
    assert_eq!(target.verdict(), "wrong 0");
}

#[test]
fn a_stop_signal_sent_during_the_stop_takes_effect_after_it() {
    let dir = Dir::new("during");
    let target = Target::start(&dir.c("spin", SPIN, &[]), &[]);
    let mut stopped = Stopped::stop(target.pid()).unwrap();
    target.signal(libc::SIGSTOP);
    let at = stopped
        .mmap(RemoteAddr(0), 4096, RW, PRIVATE, -1, 0)
        .unwrap();
    stopped.munmap(at, 4096).unwrap();
    stopped.release().unwrap();
    wait_for(|| target.state() == 'T');
    target.signal(libc::SIGCONT);
    assert_eq!(target.verdict(), "wrong 0");
}

#[test]
fn a_target_killed_while_stopped_is_an_error_and_not_a_hang() {
    let dir = Dir::new("killed");
    let target = Target::start(&dir.c("spin", SPIN, &[]), &[]);
    let mut stopped = Stopped::stop(target.pid()).unwrap();
    target.signal(libc::SIGKILL);
    let mut last = Ok(RemoteAddr(0));
    for _ in 0..1000 {
        last = stopped.mmap(RemoteAddr(0), 4096, RW, PRIVATE, -1, 0);
        if last.is_err() {
            break;
        }
    }
    assert!(matches!(last, Err(Error::TargetExited { .. })), "{last:?}");
    assert!(stopped.release().is_err());
    assert!(Stopped::stop(target.pid()).is_err());
}

#[test]
fn a_vfork_parent_is_told_as_stuck_and_left_alone() {
    const VFORK: &str = r#"
#include <stdio.h>
#include <unistd.h>
#include <sys/wait.h>
int main(void) {
    puts("ready"); fflush(stdout);
    pid_t p = vfork();
    if (p == 0) { usleep(600000); _exit(7); }
    int s; waitpid(p, &s, 0);
    printf("child %d\n", WEXITSTATUS(s)); fflush(stdout);
    pause();
}
"#;
    let dir = Dir::new("vfork");
    let mut target = Target::start(&dir.c("vfork", VFORK, &[]), &[]);
    wait_for(|| target.state() == 'D');
    let options = StopOptions {
        retry: Duration::from_millis(100),
        ..StopOptions::default()
    };
    let error = match Stopped::stop_with(target.pid(), options) {
        Ok(_) => panic!("a vfork parent was stopped"),
        Err(error) => error,
    };
    assert!(matches!(error, Error::Stuck { state: 'D', .. }), "{error}");
    assert_eq!(
        proc::status(target.pid(), target.pid().into())
            .unwrap()
            .tracer,
        0
    );
    assert_eq!(target.line(), "child 7");
    Stopped::stop(target.pid()).unwrap().release().unwrap();
}

fn wait_for(mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(5), "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A thread in a loop of known extent: steps must end right behind it, without a trace in flags or signals.
#[test]
fn single_steps_leave_the_range_and_leave_nothing_behind() {
    const LOOP: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
static volatile int end;
static void on_term(int s) { end = 1; }
/* pushes and pops the flags all the time: a trap flag on the stack would come alive at the popf */
__asm__("turn: mov $200, %ecx\n1: pushf\n nop\n popf\n dec %ecx\n jnz 1b\n ret\nturn_end:\n");
extern void turn(void); extern char turn_end[];
int main(int argc, char **argv) {
    signal(SIGTERM, on_term);
    if (argv[1][0] == 'i') signal(SIGTRAP, SIG_IGN);
    if (argv[1][0] == 'b') { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGTRAP); sigprocmask(SIG_BLOCK, &s, 0); }
    printf("%p %p\n", turn, turn_end); puts("ready"); fflush(stdout);
    while (!end) turn();
    struct sigaction a; sigaction(SIGTRAP, 0, &a);
    sigset_t s; sigprocmask(SIG_BLOCK, 0, &s);
    printf("ignored %d blocked %d\n", a.sa_handler == SIG_IGN, sigismember(&s, SIGTRAP)); fflush(stdout);
    return 0;
}
"#;
    let dir = Dir::new("step");
    let program = dir.c("loop", LOOP, &[]);
    for (argument, verdict) in [
        ("none", "ignored 0 blocked 0"),
        ("ignored", "ignored 1 blocked 0"),
        ("blocked", "ignored 0 blocked 1"),
    ] {
        let mut target = Target::run(std::process::Command::new(&program).arg(argument));
        let line = target.line();
        let (start, end) = line.split_once(' ').unwrap();
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
        let inside = (hex(start), hex(end));
        assert_eq!(target.line(), "ready");
        let mut stepped = 0;
        for _ in 0..30 {
            let mut stopped = Stopped::stop(target.pid()).unwrap();
            let tid = stopped.threads()[0];
            let is_inside = |pc: RemoteAddr| pc.0 >= inside.0 && pc.0 < inside.1;
            let before = is_inside(RemoteAddr(stopped.regs(tid).unwrap().rip));
            assert!(stopped.step_out(tid, &is_inside, 2000).unwrap());
            let after = stopped.regs(tid).unwrap();
            assert!(!is_inside(RemoteAddr(after.rip)));
            assert_eq!(after.eflags & 0x100, 0);
            stepped += usize::from(before);
            stopped.release().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(
            stepped > 10,
            "{argument}: the thread was hardly ever inside"
        );
        let mut stopped = Stopped::stop(target.pid()).unwrap();
        let tid = stopped.threads()[0];
        assert!(!stopped.step_out(tid, &|_| true, 5).unwrap());
        stopped.release().unwrap();
        assert_eq!(target.verdict(), verdict, "{argument}");
    }
}

#[test]
fn the_end_of_the_stopping_thread_lets_go_even_after_a_panic() {
    let dir = Dir::new("own-thread");
    let target = Target::start(&dir.c("spin", SPIN, &[]), &[]);
    let pid = target.pid();
    for round in 0..50 {
        let result = std::panic::catch_unwind(|| {
            on_own_thread(|| {
                let mut stopped = Stopped::stop(pid).unwrap();
                stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap();
                assert!(round % 2 == 0, "a panic in the middle");
                stopped.threads().len()
            })
        });
        assert_eq!(result.ok(), (round % 2 == 0).then_some(9));
        for tid in proc::tasks(pid).unwrap() {
            assert_eq!(proc::status(pid, tid).unwrap().tracer, 0);
        }
    }
    target.signal(libc::SIGSTOP);
    wait_for(|| target.state() == 'T');
    on_own_thread(|| Stopped::stop(pid).unwrap().release().unwrap());
    wait_for(|| target.state() == 'T');
    target.signal(libc::SIGCONT);
    assert_eq!(target.verdict(), "wrong 0");
}

#[test]
fn a_program_that_is_replaced_all_the_time_is_told_and_goes_on() {
    const EXECS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static char **arguments;
static void *spin(void *p) { for (;;) ; }
static void *replace(void *p) { usleep(rand() % 2000); execv("/proc/self/exe", arguments); return 0; }
int main(int argc, char **argv) {
    pthread_t t[3];
    if (argc == 1) { puts("ready"); fflush(stdout); }
    char *again[] = { argv[0], "again", 0 };
    arguments = again;
    srand(getpid() ^ (unsigned long)&t);
    pthread_create(&t[0], 0, spin, 0); pthread_create(&t[1], 0, spin, 0);
    if (rand() % 2) pthread_create(&t[2], 0, replace, 0), pause();
    replace(0);
}
"#;
    let dir = Dir::new("execs");
    let mut target = Target::start(&dir.c("execs", EXECS, &[]), &[]);
    let (mut stops, mut replaced) = (0, 0);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        match Stopped::stop(target.pid()) {
            Ok(mut stopped) => {
                stops += 1;
                stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap();
                stopped.release().unwrap();
            }
            Err(Error::TargetExeced { .. }) => replaced += 1,
            Err(error) => panic!("{error}"),
        }
    }
    println!("{stops} stops, {replaced} replaced");
    assert!(stops > 0 && target.is_alive());
    wait_for(|| {
        proc::tasks(target.pid())
            .unwrap()
            .into_iter()
            .all(|tid| proc::status(target.pid(), tid).map_or(0, |status| status.tracer) == 0)
    });
}

#[test]
fn a_thread_that_is_stepped_into_a_wait_goes_on_waiting() {
    const WAITS: &str = r#"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>
static volatile int end;
static void on_term(int s) { end = 1; }
int main(int argc, char **argv) {
    struct sigaction a = { .sa_handler = on_term };
    struct epoll_event e; int ep = epoll_create1(0), fds[2], back = 0; char c;
    sigaction(SIGTERM, &a, 0); pipe(fds);
    puts("ready"); fflush(stdout);
    while (!end) { if (argv[1][0] == 'e') epoll_wait(ep, &e, 1, -1); else read(fds[0], &c, 1); back++; }
    printf("back %d\n", back); fflush(stdout);
    return 0;
}
"#;
    let dir = Dir::new("step-wait");
    let program = dir.c("waits", WAITS, &[]);
    for kind in ["epoll", "read"] {
        let target = Target::start(&program, &[kind]);
        wait_for(|| target.state() == 'S');
        for _ in 0..5 {
            let options = StopOptions {
                patience: Duration::from_millis(200),
                ..StopOptions::default()
            };
            let mut stopped = Stopped::stop_with(target.pid(), options).unwrap();
            let tid = stopped.threads()[0];
            assert!(!stopped.step_out(tid, &|_| true, 100).unwrap());
            stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap();
            stopped.release().unwrap();
        }
        // A signal that comes before it waits again would be none that ends the wait.
        wait_for(|| target.state() == 'S');
        assert_eq!(target.verdict(), "back 1", "{kind}");
    }
}
