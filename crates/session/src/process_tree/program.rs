//! What a process is about to become, looked at before it does: whether it can and may be followed.
//!
//! A tracer takes a setuid program's privilege away, and 32-bit code cannot be patched: such a program is never touched. One
//! that is not there is not waited for.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::memory::read_remote;
use crate::proc::{self, Pid, RemoteAddr};

/// What to do about an execve.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Follow,
    /// It will fail: nothing to follow, nothing to tell.
    Absent,
    /// Left alone for this reason.
    Refuse(String),
}

/// As long as the kernel takes a path to be.
const LONGEST_PATH: usize = 4096;
/// As deep as the kernel follows scripts whose interpreters are scripts.
const SCRIPTS: usize = 5;

/// The program that the gated call names. `args` are the registers at its entry; `by` is the function's name.
pub(super) fn named(pid: Pid, args: &[u64; 6], call: Call) -> Option<PathBuf> {
    match call {
        Call::Execve => text_at(pid, args[0]).map(|path| below(pid, None, &path)),
        Call::Fexecve => Some(descriptor(pid, args[0])),
        Call::Execveat => {
            let path = text_at(pid, args[1])?;
            if path.is_empty() {
                return Some(descriptor(pid, args[0]));
            }
            Some(below(pid, Some(args[0] as i32), &path))
        }
    }
}

/// How the path is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Execve,
    Execveat,
    Fexecve,
}

fn descriptor(pid: Pid, number: u64) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/fd/{}", number as i32))
}

/// A path as the process means it, as one of ours.
fn below(pid: Pid, dir: Option<i32>, path: &[u8]) -> PathBuf {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(OsStr::from_bytes(path));
    match (path.strip_prefix("/"), dir) {
        (Ok(rest), _) => PathBuf::from(format!("/proc/{pid}/root")).join(rest),
        (Err(_), Some(dir)) if dir != libc::AT_FDCWD => {
            PathBuf::from(format!("/proc/{pid}/fd/{dir}")).join(path)
        }
        (Err(_), _) => PathBuf::from(format!("/proc/{pid}/cwd")).join(path),
    }
}

fn text_at(pid: Pid, address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    // Page by page: the string may end just before memory that is not there.
    while text.len() < LONGEST_PATH {
        let at = address.checked_add(text.len() as u64)?;
        let mut piece = vec![0; (4096 - at % 4096) as usize];
        read_remote(pid, RemoteAddr(at), &mut piece).ok()?;
        match piece.iter().position(|&byte| byte == 0) {
            Some(end) => {
                text.extend_from_slice(&piece[..end]);
                return Some(text);
            }
            None => text.extend_from_slice(&piece),
        }
    }
    None
}

/// Judges the file, and the interpreter if it is a script.
pub(super) fn judge(pid: Pid, path: &Path) -> Verdict {
    let mut path = path.to_path_buf();
    for _ in 0..=SCRIPTS {
        let Ok(meta) = std::fs::metadata(&path) else {
            return Verdict::Absent;
        };
        if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
            return Verdict::Absent;
        }
        let name = shown(pid, &path);
        if is_privileged(pid, &path, &meta) {
            return Verdict::Refuse(format!(
                "{name}: it has privileges of its own (setuid, setgid or capabilities), which a traced program loses"
            ));
        }
        let Ok(mut file) = thalweg_symbols::open_regular(&path) else {
            return Verdict::Refuse(format!("{name}: its file may not be read"));
        };
        let mut head = Vec::new();
        if (&mut file).take(256).read_to_end(&mut head).is_err() {
            return Verdict::Refuse(format!("{name}: its file cannot be read"));
        }
        let Some(line) = head.strip_prefix(b"#!") else {
            let real = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            return match proc::elf_check(&name, head.get(..20).unwrap_or(&head)) {
                Ok(()) => match proc::host_program(&real, &mut file) {
                    Some(host) => Verdict::Refuse(hosted(&name, host)),
                    None => Verdict::Follow,
                },
                // Neither script nor ELF: the kernel will say no, as a rule, and a shell takes it for a script.
                Err(_) if !head.starts_with(b"\x7fELF") => Verdict::Absent,
                Err(Error::Bits32 { .. }) => {
                    Verdict::Refuse(format!("{name}: it is a 32-bit program"))
                }
                Err(error) => Verdict::Refuse(error.to_string()),
            };
        };
        let interpreter = line
            .split(|&byte| byte == b'\n')
            .next()
            .unwrap_or_default()
            .split(|byte| matches!(byte, b' ' | b'\t'))
            .find(|word| !word.is_empty());
        let Some(interpreter) = interpreter else {
            return Verdict::Absent;
        };
        path = below(pid, None, interpreter);
    }
    Verdict::Absent
}

fn hosted(name: &str, host: &'static str) -> String {
    let what = name.to_owned();
    Error::Host { what, host }.to_string()
}

/// Without our view of the process's root.
pub(super) fn shown(pid: Pid, path: &Path) -> String {
    let real = std::fs::read_link(path);
    let path = match path.strip_prefix(format!("/proc/{pid}/root")) {
        Ok(rest) => Path::new("/").join(rest),
        Err(_) => real.unwrap_or_else(|_| path.to_path_buf()),
    };
    path.display().to_string()
}

fn is_privileged(pid: Pid, path: &Path, meta: &std::fs::Metadata) -> bool {
    let (uid, gid) =
        proc::status(pid, pid.into()).map_or((u32::MAX, u32::MAX), |s| (s.uids[1], s.gids[1]));
    let other_user = meta.mode() & libc::S_ISUID != 0 && meta.uid() != uid;
    let other_group = meta.mode() & libc::S_ISGID != 0 && meta.gid() != gid;
    // Of root nothing is taken away by tracing as root; but then the program's own user is another one's.
    other_user || other_group || has_capabilities(path)
}

fn has_capabilities(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(c_path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: two C strings; with no buffer the call only tells the size.
    unsafe {
        libc::getxattr(
            c_path.as_ptr(),
            c"security.capability".as_ptr(),
            std::ptr::null_mut(),
            0,
        ) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(path: &str) -> Verdict {
        judge(Pid(std::process::id() as i32), Path::new(path))
    }

    #[test]
    fn programs_and_scripts_are_followed_and_the_rest_is_not() {
        assert_eq!(verdict("/bin/sh"), Verdict::Follow);
        assert_eq!(verdict("/no/such/program"), Verdict::Absent);
        assert_eq!(verdict("/bin"), Verdict::Absent);
        assert_eq!(verdict("/etc/passwd"), Verdict::Absent);
        let dir = std::env::temp_dir().join(format!("thalweg-judge-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let make = |name: &str, text: &[u8], mode: u32| {
            let path = dir.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.display().to_string()
        };
        assert_eq!(
            verdict(&make("script", b"#! /bin/sh -e\nexit\n", 0o755)),
            Verdict::Follow
        );
        let text = make("text", b"exit\n", 0o755);
        assert_eq!(verdict(&text), Verdict::Absent);
        let lost = make("lost", b"#!/no/such/interpreter\n", 0o755);
        assert_eq!(verdict(&lost), Verdict::Absent);
        let mut elf32 = b"\x7fELF\x01\x01\x01".to_vec();
        elf32.resize(64, 0);
        let small = make("small", &elf32, 0o755);
        assert!(matches!(verdict(&small), Verdict::Refuse(why) if why.contains("32-bit")));
        let looped = make("looped", b"", 0o755);
        std::fs::write(&looped, format!("#!{looped}\n")).unwrap();
        assert_eq!(verdict(&looped), Verdict::Absent);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
