//! Every refusal that can be told without touching the process, most telling first.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::{
    Pid, Status, Target, Tid, command, gone_or_io, host_inside, host_program, living_dir,
    patiently, stat, status,
};
use crate::error::{Error, Result};

const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// Checks that the process exists, is a user program for x86-64, is traced by nobody, and that we may trace it. The
/// process is not touched.
pub fn preflight(pid: Pid) -> Result<Target> {
    patiently(|| check(pid))
}

fn check(pid: Pid) -> Result<Target> {
    if pid.0 <= 0 {
        return Err(Error::NoSuchProcess { pid });
    }
    if pid.0 as u32 == std::process::id() {
        return Err(Error::Ourselves { pid });
    }
    let stat = stat(pid)?;
    let first = status_of(pid)?;
    if first.tgid != pid.0 {
        return Err(Error::IsThread {
            tid: Tid(pid.0),
            pid: Pid(first.tgid),
        });
    }
    if stat.is_kernel_thread() {
        return Err(Error::KernelThread {
            pid,
            name: stat.name,
        });
    }
    let Ok(dir) = living_dir(pid) else {
        return Err(Error::Zombie {
            pid,
            name: stat.name,
            parent: Pid(stat.parent),
        });
    };
    if let Some(tracer) = traced_by(pid, &first) {
        return Err(tracer);
    }

    // Opening `mem` asks the kernel the very question that PTRACE_SEIZE will ask later, security modules included.
    let mem = dir.join("mem");
    File::open(&mem).map_err(|source| refusal_or_gone(pid, &mem, source))?;
    let exe = dir.join("exe");
    let mut program = File::open(&exe).map_err(|source| refusal_or_gone(pid, &exe, source))?;
    let mut head = [0; 20];
    let got = read_up_to(&mut program, &mut head).map_err(|source| Error::Io {
        path: exe.clone(),
        source,
    })?;
    let what = format!("process {pid} ({})", stat.name);
    elf_check(&what, &head[..got])?;
    let path = std::fs::read_link(&exe).unwrap_or_default();
    let host = host_program(&path, &mut program).or_else(|| host_inside(pid));
    if let Some(host) = host {
        return Err(Error::Host { what, host });
    }

    Ok(Target {
        pid,
        name: stat.name,
        command: command(pid)?,
        exe: path,
        uid: first.uids[1],
        start_ticks: stat.start_ticks,
    })
}

/// /proc/N exists for the ids of threads too, but /proc/N/task/N only says what N itself is.
fn status_of(pid: Pid) -> Result<Status> {
    status(pid, pid.into())
}

/// The kernel names the tracing thread; what a user can end is its process.
pub fn traced_by(pid: Pid, status: &Status) -> Option<Error> {
    if status.tracer == 0 {
        return None;
    }
    let process = status_of(Pid(status.tracer)).map_or(status.tracer, |thread| thread.tgid);
    Some(Error::AlreadyTraced {
        pid,
        tracer: Pid(process),
        tracer_name: stat(Pid(process)).map_or_else(|_| "?".to_owned(), |stat| stat.name),
    })
}

/// Whether the first bytes of a file are those of a program that can be profiled.
pub fn elf_check(what: &str, head: &[u8]) -> Result<()> {
    const ELFCLASS64: u8 = 2;
    const EM_X86_64: u16 = 62;
    if head.len() < 20 || !head.starts_with(b"\x7fELF") {
        return Err(Error::WrongArchitecture {
            what: what.to_owned(),
            machine: "no known machine (it is no ELF file)".to_owned(),
        });
    }
    let little = head[5] == 1;
    let machine = match [head[18], head[19]] {
        bytes if little => u16::from_le_bytes(bytes),
        bytes => u16::from_be_bytes(bytes),
    };
    // An x32 program has a 32-bit class and the 64-bit machine: its pointers have 32 bits, too.
    if head[4] != ELFCLASS64 {
        return Err(Error::Bits32 {
            what: what.to_owned(),
        });
    }
    if machine != EM_X86_64 || !little {
        let machine = match machine {
            183 => "AArch64".to_owned(),
            243 => "RISC-V".to_owned(),
            21 => "PowerPC64".to_owned(),
            22 => "S/390".to_owned(),
            258 => "LoongArch".to_owned(),
            other => format!("ELF machine {other}"),
        };
        return Err(Error::WrongArchitecture {
            what: what.to_owned(),
            machine,
        });
    }
    Ok(())
}

fn refusal_or_gone(pid: Pid, path: &Path, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => diagnose_refusal(pid, source),
        _ => gone_or_io(pid, path, source),
    }
}

/// Says which of the kernel's rules forbids tracing: in the order in which the kernel applies them.
pub fn diagnose_refusal(pid: Pid, source: io::Error) -> Error {
    let Ok(theirs) = status_of(pid) else {
        return Error::NoSuchProcess { pid };
    };
    if let Some(tracer) = traced_by(pid, &theirs) {
        return tracer;
    }
    let Ok(ours) = status_of(Pid(std::process::id() as i32)) else {
        return Error::NotPermitted {
            pid,
            reason: source,
        };
    };
    if ours.cap_effective & CAP_SYS_PTRACE == 0 {
        let own = ours.uids[3];
        if theirs.uids[..3].iter().any(|uid| *uid != own) {
            return Error::OtherUser {
                pid,
                owner: theirs.uids[1],
                own,
            };
        }
        if let Some((scope, meaning)) = yama() {
            return Error::Yama {
                pid,
                scope,
                file: YAMA,
                meaning,
            };
        }
        if owner_of_proc(pid).is_some_and(|owner| owner != theirs.uids[1]) {
            return Error::NotDumpable { pid };
        }
        if theirs.cap_permitted & !ours.cap_permitted != 0 {
            return Error::MoreCapabilities {
                pid,
                theirs: theirs.cap_permitted,
                ours: ours.cap_permitted,
            };
        }
    } else if let Some((3, meaning)) = yama() {
        return Error::Yama {
            pid,
            scope: 3,
            file: YAMA,
            meaning,
        };
    }
    Error::NotPermitted {
        pid,
        reason: source,
    }
}

/// The files of an undumpable process belong to root, whatever its user.
fn owner_of_proc(pid: Pid) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}/stat"))
        .ok()
        .map(|meta| meta.uid())
}

/// Yama's scope if it forbids anything, and what it means.
fn yama() -> Option<(u32, &'static str)> {
    let scope = std::fs::read_to_string(YAMA).ok()?.trim().parse().ok()?;
    let meaning = match scope {
        1 => "only descendants may be traced",
        2 => "only CAP_SYS_PTRACE may trace",
        3 => "nobody may trace until the next boot",
        _ => return None,
    };
    Some((scope, meaning))
}

fn read_up_to(file: &mut File, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match file.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(len) => got += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(class: u8, machine: u16) -> [u8; 20] {
        let mut head = [0; 20];
        head[..4].copy_from_slice(b"\x7fELF");
        head[4] = class;
        head[5] = 1;
        head[18..].copy_from_slice(&machine.to_le_bytes());
        head
    }

    #[test]
    fn only_64_bit_x86_64_programs_pass() {
        assert!(elf_check("x", &head(2, 62)).is_ok());
        assert!(matches!(
            elf_check("x", &head(1, 3)),
            Err(Error::Bits32 { .. })
        ));
        assert!(matches!(
            elf_check("x", &head(1, 62)),
            Err(Error::Bits32 { .. })
        ));
        let arm = elf_check("x", &head(2, 183)).unwrap_err();
        assert!(arm.to_string().contains("AArch64"), "{arm}");
        for cut in 0..20 {
            assert!(elf_check("x", &head(2, 62)[..cut]).is_err());
        }
    }
}
