//! What cannot be done is said in one message with exit code 2, and the target is not touched.

use crate::support::build::{Build, copy_program, small32, targets};
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::{assert_restored, compare};
use crate::support::thalweg::{command, export, refuse, succeed, text, thalweg};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const NOBODY: u32 = 65534;

#[track_caller]
fn refused_everywhere(pid: &str, words: &[&str]) {
    for arguments in [
        &["attach", "--budget", "off", pid][..],
        &["record", "-p", pid, "-d", "100ms"],
    ] {
        let message = refuse(arguments);
        assert!(
            words
                .iter()
                .any(|word| message.to_lowercase().contains(word)),
            "{arguments:?} should speak of one of {words:?}: {message}"
        );
    }
}

#[test]
fn no_such_process() {
    refused_everywhere("4194303", &["no such process", "no process"]);
    for command in ["status", "detach"] {
        let message = refuse(&[command, "4194303"]);
        assert!(message.contains("4194303"), "{message}");
    }
    refuse(&["attach", "-1"]);
    refuse(&["attach", "0"]);
    refuse(&["attach", "word"]);
}

#[test]
fn a_kernel_thread() {
    let kernel_thread = (2..40).find(|pid| {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| stat.contains(") S 2 ") || stat.contains("(kthreadd)"))
    });
    if let Some(pid) = kernel_thread {
        refused_everywhere(&pid.to_string(), &["kernel thread"]);
    } else {
        // In a container of its own there are none to see; the reader of /proc has its own test.
        assert!(
            !std::path::Path::new("/proc/2/stat").exists()
                || std::fs::read_link("/proc/2/exe").is_ok()
        );
    }
}

#[test]
fn a_zombie() {
    let mut child = Command::new("true").spawn().expect("true");
    std::thread::sleep(Duration::from_millis(200));
    refused_everywhere(&child.id().to_string(), &["zombie"]);
    child.wait().expect("reaped");
}

#[test]
fn a_32_bit_process() {
    let scratch = Scratch::new();
    let program = small32(&scratch);
    let live = Live::start(&program, &[]);
    std::thread::sleep(Duration::from_millis(100));
    refused_everywhere(&live.id(), &["32-bit"]);
    let message = refuse(&["record", "--", program.to_str().expect("UTF-8")]);
    assert!(message.contains("32-bit"), "{message}");
}

#[test]
fn a_process_under_a_debugger() {
    let mut live = Live::ready(&Build::simple("torture.c").path, &[]);
    let before = live.text();
    let pid = Pid::from_raw(live.pid() as i32);
    ptrace::seize(pid, ptrace::Options::empty()).expect("this test may trace its child");
    refused_everywhere(&live.id(), &["traced"]);
    // An untraced process again: the tracer lets go when it stops and detaches.
    ptrace::interrupt(pid).expect("tracee runs");
    nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::__WALL)).expect("tracee stops");
    ptrace::detach(pid, None).expect("tracee goes on");
    assert_restored(&before, &live.text());
    live.assert_healthy();
}

#[test]
fn a_seccomp_filter_that_could_kill_the_target() {
    let program = Build::simple("confined.c");
    // The last one forbids only what the probes ask for, once in a thread's life.
    for how in ["strict", "filter", "unnamed"] {
        let mut live = Live::ready(&program.path, &[how]);
        let before = live.text();
        refused_everywhere(&live.id(), &["seccomp"]);
        assert_restored(&before, &live.text());
        live.assert_healthy();
    }
}

/// As services and containers have them. To read the filter we must be under none ourselves.
#[test]
fn a_seccomp_filter_that_allows_what_is_needed() {
    let own = std::fs::read_to_string("/proc/self/status").expect("our own status");
    let program = Build::simple("confined.c");
    let mut live = Live::ready(&program.path, &["lenient"]);
    let before = live.text();
    if own.contains("Seccomp:\t0") {
        succeed(&["attach", "--budget", "off", &live.id()]);
        live.assert_healthy();
        succeed(&["detach", &live.id()]);
    } else {
        refused_everywhere(&live.id(), &["seccomp"]);
    }
    assert_restored(&before, &live.text());
    live.assert_healthy();
}

#[test]
fn a_seccomp_filter_that_comes_while_attached() {
    let program = Build::simple("confined.c");
    let mut live = Live::ready(&program.path, &["late"]);
    let before = live.text();
    succeed(&["attach", "--budget", "off", &live.id()]);
    assert_eq!(live.ask("go"), "shut");
    let output = thalweg(&["detach", &live.id()]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("seccomp"), "{}", text(&output));
    let (changed, _) = compare(&before, &live.text());
    assert!(changed.is_empty(), "{changed:?}");
    live.assert_healthy();
}

/// Nothing is ever mapped writable and executable, so this policy is no obstacle.
#[test]
fn memory_that_is_never_both_writable_and_executable() {
    let program = Build::simple("confined.c");
    for how in ["mdwe", "undumpable"] {
        let mut live = Live::start(&program.path, &[how]);
        let line = live.line();
        if line == "no such policy in this kernel" {
            continue;
        }
        assert_eq!(line, "ready");
        let before = live.text();
        succeed(&["attach", "--budget", "off", &live.id()]);
        live.assert_healthy();
        succeed(&["detach", &live.id()]);
        assert_restored(&before, &live.text());
        live.assert_healthy();
    }
}

/// A copy of thalweg that an unprivileged user can reach.
fn reachable(scratch: &PathBuf) -> PathBuf {
    std::fs::create_dir_all(scratch).expect("temporary folder");
    std::fs::set_permissions(scratch, PermissionsExt::from_mode(0o777)).expect("permissions");
    let copy = scratch.join("thalweg");
    copy_program(env!("CARGO_BIN_EXE_thalweg").as_ref(), &copy);
    copy
}

/// Needs root to become another user, which the machines of the tests give.
#[test]
fn another_users_process_and_ones_own() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test changes users: run the tests as root"
    );
    let folder = std::env::temp_dir().join(format!("thalweg-nobody-{}", std::process::id()));
    let copy = reachable(&folder);
    let as_nobody = |arguments: &[&str]| {
        Command::new(&copy)
            .args(arguments)
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .output()
            .expect("runs")
    };
    let target = folder.join("torture");
    copy_program(&Build::simple("torture.c").path, &target);

    let roots = Live::ready(&target, &[]);
    let before = roots.text();
    let output = as_nobody(&["attach", "--budget", "off", &roots.id()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    let message = String::from_utf8_lossy(&output.stderr).to_lowercase();
    assert!(
        message.contains("user") || message.contains("permi"),
        "{message}"
    );
    assert_restored(&before, &roots.text());

    let mut own = Live::spawn(Command::new(&target).uid(NOBODY).gid(NOBODY));
    assert_eq!(own.line(), "ready");
    let before = own.text();
    let file = folder.join("out.thalweg");
    let output = as_nobody(&[
        "record",
        "--budget",
        "off",
        "-p",
        &own.id(),
        "-d",
        "300ms",
        "--no-report",
        "-o",
        file.to_str().expect("UTF-8"),
    ]);
    assert!(
        output.status.success(),
        "one's own processes need no privilege: {}",
        text(&output)
    );
    assert!(export(&file).calls_by_name()["fib"] > 0);
    assert_restored(&before, &own.text());
    own.assert_healthy();
    std::fs::remove_dir_all(&folder).expect("clean-up");
}

#[test]
fn outputs_that_cannot_be_written() {
    let mut live = Live::ready(&Build::simple("torture.c").path, &[]);
    let before = live.text();
    let scratch = Scratch::new();
    let missing = scratch.join("no/such/folder/out.thalweg");
    let message = refuse(&[
        "record",
        "--budget",
        "off",
        "-p",
        &live.id(),
        "-d",
        "100ms",
        "-o",
        missing.to_str().expect("UTF-8"),
    ]);
    assert!(message.contains("no/such/folder"), "{message}");
    let message = refuse(&[
        "record",
        "--budget",
        "off",
        "-p",
        &live.id(),
        "-d",
        "100ms",
        "-o",
        scratch.path().to_str().expect("UTF-8"),
    ]);
    assert!(message.contains("directory"), "{message}");
    assert_restored(&before, &live.text());
    live.assert_healthy();
    assert!(scratch.list().is_empty(), "{:?}", scratch.list());
}

/// The disk is a file system of one page, in a mount namespace of its own; that takes root.
#[test]
fn a_full_disk_leaves_nothing_under_the_final_name() {
    let live = Live::ready(&Build::simple("torture.c").path, &[]);
    let before = live.text();
    let scratch = Scratch::new();
    let line = format!(
        "mount -t tmpfs -o size=4k none . && cd . && '{}' record -p {} -d 300ms --no-report -o $PWD/out.thalweg; \
         code=$?; ls -A \"$PWD\"; exit $code",
        env!("CARGO_BIN_EXE_thalweg"),
        live.id()
    );
    let mut shell = Command::new("unshare");
    shell.args([
        "--mount",
        "bash",
        "-c",
        &format!("cd '{}' && {line}", scratch.path().display()),
    ]);
    let output = shell.output().expect("unshare starts");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.contains("out.thalweg") && message.contains("space"),
        "{message}"
    );
    assert!(output.stdout.is_empty(), "left behind: {}", text(&output));
    assert_restored(&before, &live.text());
}

#[test]
fn programs_that_cannot_be_started() {
    let scratch = Scratch::new();
    let text_file = scratch.join("text");
    std::fs::write(&text_file, "not a program\n").expect("file");
    for program in [
        "/no/such/program",
        "no-such-program-in-path",
        text_file.to_str().expect("UTF-8"),
        "/",
    ] {
        let message = refuse(&["record", "--", program]);
        assert!(message.contains(program), "{message}");
    }
    refuse(&["record"]);
    refuse(&["record", "-p", "1", "--", "ls"]);
    refuse(&["record", "-d", "soon", "--", "ls"]);
    refuse(&["record", "--memory", "lots", "--", "ls"]);
}

#[test]
fn files_that_are_no_profiles() {
    let scratch = Scratch::new();
    let good = scratch.join("good.thalweg");
    let program = Build::simple("recursion.c");
    let output = command()
        .args(["record", "--no-report", "-q", "-o"])
        .arg(&good)
        .arg("--")
        .arg(&program.path)
        .output()
        .expect("runs");
    assert!(output.status.success(), "{}", text(&output));
    let bytes = std::fs::read(&good).expect("profile");
    let cut = scratch.join("cut.thalweg");
    let mut broken = vec![
        Vec::new(),
        b"text".to_vec(),
        bytes[..bytes.len() / 2].to_vec(),
        bytes[..bytes.len() - 1].to_vec(),
    ];
    let mut flipped = bytes.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x10;
    broken.push(flipped);
    for bytes in broken {
        std::fs::write(&cut, &bytes).expect("file");
        for arguments in [&["report", "-i"][..], &["export", "--format", "json", "-i"]] {
            let mut arguments = arguments.to_vec();
            arguments.push(cut.to_str().expect("UTF-8"));
            let message = refuse(&arguments);
            assert!(message.contains("cut.thalweg"), "{message}");
        }
    }
    refuse(&["report", "-i", "/no/such/file"]);
}

/// Whatever moment the target chooses to end at, thalweg ends too, well or with code 2.
#[test]
fn targets_that_exit_at_any_step() {
    let scratch = Scratch::new();
    for milliseconds in (0..400).step_by(in_short_or_long(40, 20) as usize) {
        let mut live = Live::ready(&Build::simple("torture.c").path, &[]);
        let pid = live.id();
        let file = scratch.join("out.thalweg");
        let path = file.to_str().expect("UTF-8").to_owned();
        let runner = std::thread::spawn(move || {
            thalweg(&[
                "record",
                "--budget",
                "off",
                "-p",
                &pid,
                "-d",
                "300ms",
                "--no-report",
                "-o",
                &path,
            ])
        });
        std::thread::sleep(Duration::from_millis(milliseconds));
        live.send(Signal::SIGKILL);
        live.wait(Duration::from_secs(60));
        let output = runner.join().expect("runner");
        match output.status.code() {
            Some(0) => drop(export(&file)),
            Some(2) => assert!(!file.exists(), "{}", text(&output)),
            _ => panic!("killed after {milliseconds} ms: {}", text(&output)),
        }
        assert!(
            !String::from_utf8_lossy(&output.stderr).contains("panicked"),
            "{}",
            text(&output)
        );
        let _ = std::fs::remove_file(&file);
    }
}

#[test]
fn probe_lists_what_it_would_do() {
    let program = Build::simple("torture.c");
    let path = program.path.to_str().expect("UTF-8");
    let listing = succeed(&["probe", path]);
    assert!(
        listing.contains("torture") && listing.contains("direct"),
        "{listing}"
    );
    let skipped = succeed(&["probe", path, "--skipped"]);
    assert!(
        skipped.contains("_start"),
        "entry code is listed with its reason: {skipped}"
    );
    let message = refuse(&["probe", targets().join("all.c").to_str().expect("UTF-8")]);
    assert!(message.contains("ELF"), "{message}");
}
