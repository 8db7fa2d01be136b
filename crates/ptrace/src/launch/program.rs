//! Which file a command names, and whether it can be run: told before a process is made, where it can be.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::proc::{elf_check, host_program};

/// Finds the program as execvp(3) does, and checks it.
pub(super) fn find(program: &OsStr) -> Result<PathBuf> {
    let name = program.to_string_lossy().into_owned();
    if program.as_bytes().contains(&b'/') {
        check(&name, Path::new(program))?;
        return Ok(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    for dir in std::env::split_paths(&path) {
        let candidate = if dir.as_os_str().is_empty() {
            Path::new(".").join(program)
        } else {
            dir.join(program)
        };
        match check(&name, &candidate) {
            Ok(()) => return Ok(candidate),
            Err(Error::ProgramNotFound { .. }) => {}
            // A file that may not be run hides no other further along.
            Err(error @ Error::NotExecutable { .. }) => {
                refused.get_or_insert(error);
            }
            Err(other) => return Err(other),
        }
    }
    Err(refused.unwrap_or(Error::ProgramNotFound {
        program: name,
        searched: true,
    }))
}

fn check(name: &str, path: &Path) -> Result<()> {
    let not_executable = |why: &str| Error::NotExecutable {
        program: name.to_owned(),
        why: why.to_owned(),
    };
    let meta = std::fs::metadata(path).map_err(|source| cannot_run(name, source))?;
    if !meta.is_file() {
        return Err(not_executable("it is not a regular file"));
    }
    let c_path = std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| not_executable("its name holds a zero byte"))?;
    // SAFETY: a valid C string.
    if unsafe { libc::access(c_path.as_ptr(), libc::X_OK) } != 0 {
        return Err(not_executable(
            "it has no execute permission for you (see `ls -l`; `chmod +x` sets it)",
        ));
    }
    // SAFETY: no preconditions.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let foreign_user = meta.mode() & libc::S_ISUID != 0 && meta.uid() != uid;
    let foreign_group = meta.mode() & libc::S_ISGID != 0 && meta.gid() != gid;
    if uid != 0 && (foreign_user || foreign_group) {
        return Err(Error::Setuid {
            program: name.to_owned(),
        });
    }
    // A file may be executable and not readable: then the kernel has the last word.
    let Ok(mut file) = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
    else {
        return Ok(());
    };
    let mut head = [0; 20];
    let got = file.read(&mut head).unwrap_or(0);
    match &head[..got] {
        head if head.starts_with(b"\x7fELF") => {
            elf_check(name, head)?;
            check_host(name, path, &mut file)
        }
        head if head.starts_with(b"#!") => {
            let mut line = head.to_vec();
            // As much as the kernel looks at.
            let _ = (&file).take(256).read_to_end(&mut line);
            match interpreter(&line) {
                Some(missing) if is_missing(missing) => Err(Error::NotExecutable {
                    program: name.to_owned(),
                    why: format!(
                        "its first line names the interpreter {}, which does not exist",
                        missing.display()
                    ),
                }),
                _ => Ok(()),
            }
        }
        _ => Err(not_executable(
            "it is neither an ELF program nor a script with a `#!` line",
        )),
    }
}

/// What runs a script: the first word behind its `#!`.
fn interpreter(script: &[u8]) -> Option<&Path> {
    let line = script
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r');
    let word = line.split(is_blank).find(|word| !word.is_empty())?;
    Some(Path::new(OsStr::from_bytes(word)))
}

fn is_missing(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn check_host(name: &str, path: &Path, file: &mut File) -> Result<()> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    match host_program(&real, file) {
        None => Ok(()),
        Some(host) => Err(Error::Host {
            what: name.to_owned(),
            host,
        }),
    }
}

/// The error for a failed look at a program, or for its failed start.
pub(super) fn cannot_run(name: &str, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Error::ProgramNotFound {
            program: name.to_owned(),
            searched: false,
        },
        Some(libc::EACCES) => Error::NotExecutable {
            program: name.to_owned(),
            why: "permission denied".to_owned(),
        },
        Some(libc::ENOEXEC) => Error::NotExecutable {
            program: name.to_owned(),
            why: "the kernel does not know its format".to_owned(),
        },
        _ => Error::Start {
            program: name.to_owned(),
            source,
        },
    }
}
