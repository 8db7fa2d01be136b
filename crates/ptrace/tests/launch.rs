//! Starting programs: held at the right place, ending as they would have ended alone, refused with a reason.

mod support;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

use support::Dir;
use thalweg_ptrace::error::Error;
use thalweg_ptrace::launch::Launched;
use thalweg_ptrace::proc::{self, RemoteAddr};
use thalweg_ptrace::tracee::Stopped;

fn launch(words: &[&str]) -> Result<Launched, Error> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    Launched::start(&words)
}

fn refusal(words: &[&str]) -> Error {
    match launch(words) {
        Ok(_) => panic!("{words:?} was started"),
        Err(error) => error,
    }
}

#[test]
fn a_dynamic_program_is_held_with_its_libraries_mapped_and_nothing_run() {
    // The constructor writes: whatever stands in the file when the program is held, it ran too early.
    const EARLY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
__attribute__((constructor)) static void early(void) { FILE *f = fopen(getenv("MARK"), "w"); fputs("ran", f); fclose(f); }
int main(int argc, char **argv) { return cos(argc) > 2 ? 1 : 5; }
"#;
    let dir = Dir::new("early");
    let program = dir.c("early", EARLY, &["-lm", "-fno-builtin"]);
    let mark = dir.path().join("mark");
    let shell = format!("exec env MARK={} {}", mark.display(), program.display());
    // First directly, then behind two further programs, which the child starts itself.
    let words: Vec<OsString> = vec![program.clone().into()];
    // SAFETY: no other test of this binary reads or writes the variable.
    unsafe { std::env::set_var("MARK", &mark) };
    let mut launched = Launched::start(&words).unwrap();
    launched.run_to_ready().unwrap();
    let pid = launched.pid();
    let stopped = launched.stopped().unwrap();
    assert_eq!(stopped.threads().len(), 1);
    let maps = stopped.maps().unwrap();
    for library in ["libc.so.6", "libm.so.6"] {
        assert!(
            maps.iter()
                .any(|m| m.perms.exec && m.path.as_ref().is_some_and(|p| p.ends_with(library))),
            "{library} is not mapped"
        );
    }
    assert!(
        !mark.exists(),
        "a constructor ran before the program was held"
    );
    let page = stopped
        .mmap(
            RemoteAddr(0),
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
        .unwrap();
    stopped.munmap(page, 4096).unwrap();
    launched.release().unwrap();
    assert_eq!(launched.wait().unwrap().code(), Some(5));
    assert!(mark.exists());
    assert!(proc::stat(pid).is_err(), "the child was not collected");

    let mut launched = launch(&["sh", "-c", &shell]).unwrap();
    launched.run_to_ready().unwrap();
    assert_eq!(launched.wait().unwrap().code(), Some(5));
}

#[test]
fn the_loaders_bytes_are_put_back() {
    let text = |launched: &mut Launched| {
        let stopped = launched.stopped().unwrap();
        let map = stopped.maps().unwrap().into_iter().find(|m| {
            m.perms.exec
                && m.path
                    .as_ref()
                    .is_some_and(|p| p.to_string_lossy().contains("ld-linux"))
        });
        let mut bytes = vec![0; map.as_ref().unwrap().len() as usize];
        stopped.read(map.unwrap().start, &mut bytes).unwrap();
        bytes
    };
    let mut launched = launch(&["true"]).unwrap();
    let before = text(&mut launched);
    launched.run_to_ready().unwrap();
    assert!(before == text(&mut launched));
    assert!(launched.wait().unwrap().success());
}

#[test]
fn a_static_program_is_ready_at_once() {
    let dir = Dir::new("static");
    for flags in [
        &["-static"][..],
        &["-static-pie"],
        &["-no-pie"],
        &["-Wl,-z,now"],
    ] {
        let program = dir.c("seven", "int main(void) { return 7; }", flags);
        let mut launched = Launched::start(&[program.into()]).unwrap();
        launched.run_to_ready().unwrap();
        assert!(launched.stopped().is_some());
        assert_eq!(launched.wait().unwrap().code(), Some(7), "{flags:?}");
    }
}

#[test]
fn a_script_runs_under_its_interpreter() {
    let dir = Dir::new("script");
    let script = dir.path().join("three");
    let draft = dir.path().join("draft");
    std::fs::write(&draft, "#!/bin/sh\nexit 3\n").unwrap();
    std::fs::set_permissions(&draft, PermissionsExt::from_mode(0o755)).unwrap();
    support::copy_program(&draft, &script);
    let mut launched = Launched::start(&[script.into()]).unwrap();
    launched.run_to_ready().unwrap();
    assert_eq!(launched.wait().unwrap().code(), Some(3));
}

#[test]
fn death_by_a_signal_is_told_as_such() {
    let mut launched = launch(&["sh", "-c", "kill -9 $$"]).unwrap();
    launched.run_to_ready().unwrap();
    launched.release().unwrap();
    assert_eq!(launched.wait().unwrap().signal(), Some(9));
}

#[test]
fn the_status_survives_a_later_stop_that_saw_the_end() {
    let mut launched = launch(&["sleep", "0.05"]).unwrap();
    launched.run_to_ready().unwrap();
    launched.release().unwrap();
    while Stopped::stop(launched.pid())
        .and_then(Stopped::release)
        .is_ok()
    {}
    assert_eq!(launched.wait().unwrap().code(), Some(0));
}

#[test]
fn a_missing_library_leaves_the_loaders_own_status() {
    let dir = Dir::new("missing");
    let library = dir.path().join("libgone.so");
    dir.c(
        "libgone.so",
        "int gone(void) { return 1; }",
        &["-shared", "-fPIC"],
    );
    let program = dir.c(
        "needs",
        "int gone(void); int main(void) { return gone(); }",
        &[library.to_str().unwrap()],
    );
    std::fs::remove_file(&library).unwrap();
    let mut launched = Launched::start(&[program.into()]).unwrap();
    let error = launched.run_to_ready().unwrap_err();
    assert!(matches!(error, Error::TargetExited { .. }), "{error}");
    assert_eq!(launched.wait().unwrap().code(), Some(127));
}

#[test]
fn what_cannot_be_run_is_refused_with_its_reason() {
    assert!(matches!(Launched::start(&[]), Err(Error::EmptyCommand)));
    assert!(matches!(
        refusal(&["/no/such/program"]),
        Error::ProgramNotFound {
            searched: false,
            ..
        }
    ));
    assert!(matches!(
        refusal(&["no-such-program"]),
        Error::ProgramNotFound { searched: true, .. }
    ));
    assert!(matches!(refusal(&["/etc"]), Error::NotExecutable { .. }));
    assert!(matches!(
        refusal(&["/etc/passwd"]),
        Error::NotExecutable { .. }
    ));

    let dir = Dir::new("refused");
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let elf = |class: u8, machine: u8| {
        let mut head = vec![0x7f, b'E', b'L', b'F', class, 1, 1];
        head.resize(64, 0);
        head[16] = 2;
        head[18] = machine;
        head
    };
    assert!(matches!(
        refusal(&[&file("bits32", &elf(1, 3))]),
        Error::Bits32 { .. }
    ));
    assert!(matches!(
        refusal(&[&file("arm", &elf(2, 183))]),
        Error::WrongArchitecture { .. }
    ));
    assert!(matches!(
        refusal(&[&file("empty", b"")]),
        Error::NotExecutable { .. }
    ));
    assert!(matches!(
        refusal(&[&file("cut", b"\x7fELF")]),
        Error::WrongArchitecture { .. }
    ));
    // Passes the look at its first bytes; the kernel refuses it.
    assert!(matches!(
        refusal(&[&file("hollow", &elf(2, 62))]),
        Error::NotExecutable { .. }
    ));
    let lost = refusal(&[&file("lost", b"#! /no/such/interpreter -x\n")]);
    assert!(matches!(lost, Error::NotExecutable { .. }));
    let message = lost.to_string();
    assert!(
        message.contains("the interpreter /no/such/interpreter,"),
        "{message}"
    );
}

#[test]
fn an_ignored_trap_signal_stays_ignored() {
    const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);
    // SAFETY: nothing in this process handles the signal; children of other tests inherit it harmlessly.
    unsafe { libc::signal(libc::SIGTRAP, libc::SIG_IGN) };
    let launched = launch(&["true"]);
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGTRAP, libc::SIG_DFL) };
    let mut launched = launched.unwrap();
    let ignored = |pid: proc::Pid| proc::status(pid, pid.into()).unwrap().ignored & SIGTRAP_BIT;
    assert_ne!(ignored(launched.pid()), 0);
    launched.run_to_ready().unwrap();
    assert_ne!(
        ignored(launched.pid()),
        0,
        "the breakpoint reset the signal's action"
    );
    assert!(launched.wait().unwrap().success());
}
