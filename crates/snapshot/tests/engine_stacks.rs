//! The engine on stacks that it does not know: no target is harmed, no count is lost.

#[path = "../../ptrace/tests/support/mod.rs"]
mod support;

use support::{Dir, Target};
use thalweg_instrument::attach::{self, Attached, Options};
use thalweg_instrument::detach;
use thalweg_instrument::filter::Filter;
use thalweg_model::{FuncId, Profile};
use thalweg_ptrace::error::Error;
use thalweg_region::pruning::Pruning;
use thalweg_snapshot::snapshot::{self, ThreadRegistry};

const MAIN: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#define APART __attribute__((noinline))
static volatile int end;
static volatile long sink;
static void on_term(int s) { end = 1; }
static void await_term(void) {
    signal(SIGTERM, on_term);
    puts("ready"); fflush(stdout);
    while (!end) usleep(1000);
}
"#;

fn try_attach(target: &Target, memory: u64) -> Result<Attached, Error> {
    let options = Options {
        filter: Filter::default(),
        threads: vec![],
        timed: true,
        leaves_counted: false,
        sites: false,
        alloc: false,
        system_calls: false,
        memory,
        pruning: Pruning::default(),
        follow: false,
        has_budget: false,
        gates_suffice: false,
        samples_only: false,
        refuse_rseq: false,
        recording: None,
    };
    attach::attach(target.pid(), &options, &|_, _, _| {})
}

fn attach(target: &Target, memory: u64) -> Attached {
    try_attach(target, memory).unwrap()
}

fn calls(profile: &Profile, name: &str) -> u64 {
    let threads = profile.processes.iter().flat_map(|p| &p.threads);
    let named = |n: &&thalweg_model::Node| profile.functions[n.function].name == name;
    threads
        .flat_map(|t| &t.nodes)
        .filter(named)
        .map(|n| n.calls)
        .sum()
}

/// Calls of `name` whose caller is `caller`.
fn calls_from(profile: &Profile, caller: &str, name: &str) -> u64 {
    let is = |function: FuncId, name: &str| profile.functions[function].name == name;
    let mut sum = 0;
    for thread in profile.processes.iter().flat_map(|p| &p.threads) {
        for node in thread.nodes.iter().filter(|n| is(n.function, name)) {
            if node
                .parent
                .is_some_and(|p| is(thread.nodes[p as usize].function, caller))
            {
                sum += node.calls;
            }
        }
    }
    sum
}

#[test]
fn a_target_returns_through_a_stack_too_deep_to_be_unwound() {
    let source = format!(
        "{MAIN}{}",
        r#"
APART long leaf(long n) { sink += n; __asm__ volatile("nop; nop; nop; nop; nop"); return n; }
APART long deep(long n) {
    if (n == 0) { await_term(); return 1; }
    long below = deep(n - 1);
    leaf(n);
    return below + 1;
}
int main(void) { printf("%ld\n", deep(60000)); fflush(stdout); return 0; }
"#
    );
    let dir = Dir::new("too-deep");
    let target = Target::start(
        &dir.c("deep", &source, &["-fno-optimize-sibling-calls"]),
        &[],
    );
    let attached = attach(&target, 64 << 20);
    assert_eq!(target.verdict(), "60001");
    let profile = snapshot::take(&attached.shared, &ThreadRegistry::default(), None).unwrap();
    assert_eq!(calls(&profile, "leaf"), 60000);
}

#[test]
fn threads_born_when_the_memory_is_full_are_counted() {
    let source = format!(
        "{MAIN}{}",
        r#"
APART void leaf(void) { sink++; __asm__ volatile("nop; nop; nop; nop; nop"); }
APART void work(void) { for (int i = 0; i < 100; i++) leaf(); sink++; }
static void *thread(void *arg) { work(); return 0; }
int main(void) {
    await_term();
    for (int i = 0; i < 50; i++) { pthread_t t; pthread_create(&t, 0, thread, 0); pthread_join(t, 0); }
    puts("done"); fflush(stdout);
    return 0;
}
"#
    );
    let dir = Dir::new("full-arena");
    let target = Target::start(&dir.c("full", &source, &[]), &[]);
    let attached = attach(&target, 64 << 10);
    assert_eq!(target.verdict(), "done");
    let profile = snapshot::take(&attached.shared, &ThreadRegistry::default(), None).unwrap();
    assert_eq!(
        (calls(&profile, "work"), calls(&profile, "leaf")),
        (50, 5000)
    );
}

#[test]
fn a_signal_stack_above_the_threads_own_leaves_its_callers_known() {
    let source = format!(
        "{MAIN}{}",
        r#"
APART void in_handler(void) { sink++; __asm__ volatile("nop; nop; nop; nop; nop"); }
static void handler(int s) { in_handler(); sink++; __asm__ volatile("nop; nop; nop; nop; nop"); }
APART void leaf(void) { sink++; __asm__ volatile("nop; nop; nop; nop; nop"); }
APART void inner(void) { for (int i = 0; i < 10; i++) { raise(SIGUSR1); leaf(); } sink++; }
APART void outer(void) { for (int i = 0; i < 10; i++) inner(); sink++; }
static char *memory;
static void *thread(void *arg) {
    stack_t stack = { .ss_sp = memory + (1 << 20) + 65536, .ss_size = 65536 };
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
    sigaltstack(&stack, 0); sigaction(SIGUSR1, &action, 0);
    outer();
    return 0;
}
int main(void) {
    pthread_attr_t attributes; pthread_t t;
    memory = mmap(0, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_init(&attributes); pthread_attr_setstack(&attributes, memory, 1 << 20);
    await_term();
    pthread_create(&t, &attributes, thread, 0); pthread_join(t, 0);
    puts("done"); fflush(stdout);
    return 0;
}
"#
    );
    let dir = Dir::new("above");
    let target = Target::start(
        &dir.c("above", &source, &["-fno-optimize-sibling-calls"]),
        &[],
    );
    let attached = attach(&target, 16 << 20);
    assert_eq!(target.verdict(), "done");
    let profile = snapshot::take(&attached.shared, &ThreadRegistry::default(), None).unwrap();
    assert_eq!(calls_from(&profile, "outer", "inner"), 10);
    assert_eq!(calls_from(&profile, "inner", "leaf"), 100);
    assert_eq!(calls(&profile, "in_handler"), 100);
}

#[test]
fn a_handler_on_its_own_stack_returns_to_one_that_interrupted_a_probe() {
    let source = format!(
        "{MAIN}{}",
        r#"
#include <sys/time.h>
static volatile long handled;
APART void leaf(void) { sink++; __asm__ volatile("nop; nop; nop; nop; nop"); }
APART void outer(void) { leaf(); leaf(); leaf(); sink++; }
static void second(int s) { volatile long x = 0; for (long i = 0; i < 20000000; i++) x++; }
static void first(int s) { handled++; raise(SIGUSR2); }
static char other[65536];
int main(void) {
    stack_t stack = { .ss_sp = other, .ss_size = sizeof other };
    struct sigaction a = { .sa_handler = first }, b = { .sa_handler = second, .sa_flags = SA_ONSTACK };
    struct itimerval soon = { { 0, 0 }, { 0, 2000 } };
    sigaltstack(&stack, 0); sigaction(SIGALRM, &a, 0); sigaction(SIGUSR2, &b, 0); signal(SIGTERM, on_term);
    puts("ready"); fflush(stdout);
    while (!end) {
        long before = handled;
        setitimer(ITIMER_REAL, &soon, 0);
        while (handled == before) for (int i = 0; i < 1000; i++) outer();
    }
    puts("done"); fflush(stdout);
    return 0;
}
"#
    );
    let dir = Dir::new("nested");
    let target = Target::start(
        &dir.c("nested", &source, &["-fno-optimize-sibling-calls"]),
        &[],
    );
    for _ in 0..6 {
        // Refused as long as a handler is on top of a probe of the round before.
        let attached = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            try_attach(&target, 16 << 20).is_ok()
        });
        assert!(attached);
        std::thread::sleep(std::time::Duration::from_millis(70));
        detach::detach(target.pid()).unwrap().unmap().unwrap();
    }
    assert_eq!(target.verdict(), "done");
}
