//! Processes that cannot be profiled: each refused with its own reason, none touched.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use support::{Dir, Target};
use thalweg_ptrace::error::Error;
use thalweg_ptrace::proc::{Pid, preflight, stat, status, tasks};
use thalweg_ptrace::tracee::Stopped;

const IDLE: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <linux/seccomp.h>
#include <linux/filter.h>
static void *idle(void *p) { for (;;) pause(); }
int main(int argc, char **argv) {
    pthread_t t;
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "undumpable")) prctl(PR_SET_DUMPABLE, 0);
    if (!strcmp(how, "seccomp")) {
        struct sock_filter all[] = { { BPF_RET, 0, 0, SECCOMP_RET_ALLOW } };
        struct sock_fprog p = { 1, all };
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p);
    }
    if (!strcmp(how, "zombie")) { if (fork() == 0) _exit(0); usleep(20000); }
    else pthread_create(&t, 0, idle, 0);
    puts("ready"); fflush(stdout);
    if (!strcmp(how, "headless")) pthread_exit(0);
    for (;;) pause();
}
"#;

fn idle(dir: &Dir, how: &str) -> Target {
    Target::start(&dir.c("idle", IDLE, &[]), &[how])
}

fn refusal(pid: Pid) -> Error {
    match preflight(pid) {
        Ok(target) => panic!("{target:?} passed"),
        Err(error) => error,
    }
}

#[test]
fn a_good_target_passes_and_is_described() {
    let dir = Dir::new("good");
    let target = idle(&dir, "plain");
    let found = preflight(target.pid()).unwrap();
    assert_eq!((found.pid, found.name.as_str()), (target.pid(), "idle"));
    assert_eq!(found.command[1], "plain");
    assert!(found.exe.ends_with("idle") && found.is_alive());
    drop(target);
    assert!(!found.is_alive());
}

#[test]
fn ids_that_name_no_process() {
    let dead = {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        Pid(child.id() as i32)
    };
    for pid in [dead, Pid(0), Pid(-1), Pid(i32::MIN), Pid(i32::MAX)] {
        assert!(matches!(refusal(pid), Error::NoSuchProcess { .. }));
        assert!(Stopped::stop(pid).is_err());
    }
}

#[test]
fn a_thread_is_told_from_its_process() {
    let dir = Dir::new("thread");
    let target = idle(&dir, "plain");
    let thread = tasks(target.pid()).unwrap()[1];
    let error = refusal(Pid(thread.0));
    assert!(
        matches!(error, Error::IsThread { pid, .. } if pid == target.pid()),
        "{error}"
    );
}

#[test]
fn a_zombie() {
    let dir = Dir::new("zombie");
    let target = idle(&dir, "zombie");
    let path = format!("/proc/{0}/task/{0}/children", target.pid());
    let children = std::fs::read_to_string(path).unwrap();
    let zombie = Pid(children.trim().parse().unwrap());
    let error = refusal(zombie);
    assert!(
        matches!(error, Error::Zombie { parent, .. } if parent == target.pid()),
        "{error}"
    );
}

#[test]
fn a_process_whose_first_thread_has_ended_is_no_zombie() {
    let dir = Dir::new("headless");
    let target = idle(&dir, "headless");
    while !stat(target.pid()).unwrap().is_dead() {
        std::thread::yield_now();
    }
    preflight(target.pid()).unwrap();
    for _ in 0..20 {
        let mut stopped = Stopped::stop(target.pid()).unwrap();
        assert_eq!(stopped.threads().len(), 1);
        assert!(!stopped.maps().unwrap().is_empty());
        stopped.syscall(libc::SYS_getpid, [0; 6]).unwrap();
        stopped.release().unwrap();
    }
}

#[test]
fn a_kernel_thread() {
    // Only where the kernel's own threads are visible, which they are not in a container.
    if stat(Pid(2)).is_ok_and(|stat| stat.is_kernel_thread()) {
        assert!(matches!(refusal(Pid(2)), Error::KernelThread { .. }));
    }
}

#[test]
fn ourselves() {
    assert!(matches!(
        refusal(Pid(std::process::id() as i32)),
        Error::Ourselves { .. }
    ));
}

/// Without the right to read the filter; with it, one that allows everything is no obstacle.
#[test]
fn a_process_under_seccomp() {
    let dir = Dir::new("seccomp");
    let target = idle(&dir, "seccomp");
    let mut stopped = Stopped::stop(target.pid()).unwrap();
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let root = own.lines().any(|line| line.starts_with("Uid:\t0\t0"));
    let can_read = own.contains("Seccomp:\t0") && root;
    match stopped.check_system_calls() {
        Ok(()) => assert!(can_read),
        Err(error) => assert!(!can_read && matches!(error, Error::Seccomp { mode: 2, .. })),
    }
}

#[test]
fn a_traced_process_names_its_tracer() {
    let dir = Dir::new("traced");
    let target = idle(&dir, "plain");
    let pid = target.pid();
    let stopped = Stopped::stop(pid).unwrap();
    let error = refusal(pid);
    let own = std::process::id() as i32;
    assert!(
        matches!(error, Error::AlreadyTraced { tracer, .. } if tracer.0 == own),
        "{error}"
    );
    // Another thread is another tracer.
    let error = std::thread::spawn(move || Stopped::stop(pid).err().unwrap().to_string());
    let error = error.join().unwrap();
    assert!(error.contains("already traced"), "{error}");
    drop(stopped);
    preflight(pid).unwrap();
    assert_eq!(status(pid, pid.into()).unwrap().tracer, 0);
}

const SUBJECT: &str = "THALWEG_TEST_SUBJECT";
const NOBODY: u32 = 65534;

/// Not a test of its own: the look at a process by a user without rights.
#[test]
#[ignore = "run by the tests below"]
fn look_as_nobody() {
    if let Ok(pid) = std::env::var(SUBJECT) {
        let pid = Pid(pid.parse().unwrap());
        match preflight(pid).and_then(|_| Stopped::stop(pid)) {
            Ok(_) => println!("verdict: passed"),
            Err(error) => println!("verdict: {error}"),
        }
    }
}

/// What a user without rights is told. `None` if we are not root and cannot become another.
fn told_to_nobody(dir: &Dir, pid: Pid) -> Option<String> {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let copy = dir.path().join("look");
    support::copy_program(&std::env::current_exe().unwrap(), &copy);
    for path in [dir.path(), &copy] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let output = Command::new(&copy)
        .args(["--exact", "look_as_nobody", "--ignored", "--nocapture"])
        .env(SUBJECT, pid.to_string())
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let verdict = text
        .split("verdict: ")
        .nth(1)
        .unwrap_or_else(|| panic!("{text}"));
    Some(verdict.lines().next().unwrap().to_owned())
}

fn idle_of_nobody(dir: &Dir, how: &str) -> Target {
    let program = dir.c("idle", IDLE, &[]);
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut target = Target::run(Command::new(program).arg(how).uid(NOBODY).gid(NOBODY));
    assert_eq!(target.line(), "ready");
    target
}

#[test]
fn another_users_process_names_both_users() {
    let dir = Dir::new("other-user");
    let target = idle(&dir, "plain");
    if let Some(told) = told_to_nobody(&dir, target.pid()) {
        assert!(
            told.contains("belongs to user 0") && told.contains("you are user 65534"),
            "{told}"
        );
    }
}

#[test]
fn an_undumpable_process_of_ones_own() {
    let dir = Dir::new("undumpable");
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    let target = idle_of_nobody(&dir, "undumpable");
    let told = told_to_nobody(&dir, target.pid()).unwrap();
    assert!(
        told.contains("not dumpable") || told.contains("ptrace_scope"),
        "{told}"
    );
    let target = idle_of_nobody(&dir, "plain");
    let told = told_to_nobody(&dir, target.pid()).unwrap();
    assert!(told == "passed" || told.contains("ptrace_scope"), "{told}");
}
