//! Has a virtual machine drop the code that it has compiled, so that it is compiled again with or without the calls of the
//! method probes: a library of a few hundred instructions (`agent/jvmti`) is loaded through the machine's attach socket, as
//! `jcmd` does it.
//!
//! ```text
//! .attach_pidN in /tmp, SIGQUIT    the machine opens its socket, unless it has before
//! /tmp/.java_pidN                  "load", the library's path
//! the library, in a folder of the user's own, removed when the machine has answered
//! ```
//!
//! All of this is done as the target's user: what is in /tmp may be anybody's. SIGQUIT ends a process that does not
//! expect it, and makes a machine that refuses to be attached print all its threads: both are asked for first.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Machine, unusable};
use crate::error::Result;
use crate::memory::write_remote;
use crate::proc::{self, Pid, Status};

/// What the machine loads.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libthalweg_jvm.so"));

/// Where every machine has its socket, whatever its temporary folder is.
const PLACE: &str = "/tmp";
/// How long a machine may take to open its socket, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);
const SIGQUIT: u64 = 1 << (libc::SIGQUIT - 1);

/// Why a machine that runs cannot be asked.
pub(super) fn refusal(machine: &Machine) -> Result<Option<String>> {
    let pid = machine.pid;
    let status = proc::status(pid, pid.into())?;
    let is_set = |place| machine.byte(place).map(|byte| byte != 0);
    let reason = if is_set(machine.symbols.attach_disabled)? {
        "it was started with -XX:+DisableAttachMechanism"
    } else if is_set(machine.symbols.signals_reduced)? {
        "it was started with -Xrs, so that nobody can ask it for its attach socket"
    } else if status.caught & SIGQUIT == 0 {
        "it does not expect SIGQUIT, by which it is asked for its attach socket"
    } else if !is_among_us(pid) {
        "it runs in a container: its attach socket is not to be reached from here"
    } else {
        return Ok(None);
    };
    Ok(Some(reason.into()))
}

/// The same files and the same numbers of processes here and there.
fn is_among_us(pid: Pid) -> bool {
    let same = |what: &str| {
        let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{what}"));
        matches!((of(&pid.to_string()), of("self")), (Ok(there), Ok(here)) if there == here)
    };
    let roots = ["/proc/self/root/", &format!("/proc/{pid}/root/")].map(fs::metadata);
    let [Ok(here), Ok(there)] = roots else {
        return false;
    };
    same("mnt") && same("pid") && (here.dev(), here.ino()) == (there.dev(), there.ino())
}

/// Whatever the machine of a process has compiled is dropped, and compiled again when it is worth it.
pub fn drop_compiled(machine: &Machine) -> Result<()> {
    let pid = machine.pid;
    if let Some(reason) = refusal(machine)? {
        return Err(unusable(pid, reason));
    }
    let status = proc::status(pid, pid.into())?;
    let started = proc::stat(pid)?.start_ticks;
    // Else the machine would know by now which code depends on what is redefined. That it does not know is always safe to say.
    write_remote(pid, machine.symbols.dependencies_known, &[0])?;
    let asked =
        as_user(&status, || ask(pid, started, &status)).map_err(|error| unusable(pid, error))?;
    asked.map_err(|error| unusable(pid, format!("its attach socket: {error}")))
}

/// On a thread that has the target's rights and no others, where those differ.
fn as_user<T: Send>(status: &Status, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let (user, group) = (status.uids[1], status.gids[1]);
    // SAFETY: has no requirement.
    let own = unsafe { libc::geteuid() };
    let become_user = move || {
        if own != 0 || user == own {
            return Ok(());
        }
        // The kernel's own calls, which are about this thread alone. The group first: afterwards we may not.
        // SAFETY: they touch no memory.
        let done = unsafe {
            libc::syscall(libc::SYS_setgroups, 0, 0) == 0
                && libc::syscall(libc::SYS_setresgid, group, group, group) == 0
                && libc::syscall(libc::SYS_setresuid, user, user, user) == 0
        };
        match done {
            true => Ok(()),
            false => Err(io::Error::last_os_error()),
        }
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| become_user().map(|()| work()));
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn ask(pid: Pid, started: u64, status: &Status) -> io::Result<()> {
    let socket = open_socket(pid, status)?;
    // A name that nobody has had before, and the same for this process each time: the loader then takes what it has.
    let folder = PathBuf::from(format!("{PLACE}/.thalweg-{pid}-{started}"));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let library = folder.join("libthalweg_jvm.so");
    let result = write_library(&library).and_then(|()| load(socket, &library));
    let _ = fs::remove_file(&library);
    let _ = fs::remove_dir(&folder);
    result
}

fn write_library(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o500)
        .open(path)?;
    file.write_all(LIBRARY)
}

/// The machine's socket, which is made when it is asked for.
fn open_socket(pid: Pid, status: &Status) -> io::Result<UnixStream> {
    let path = PathBuf::from(format!("{PLACE}/.java_pid{pid}"));
    let is_there = || {
        let meta = fs::symlink_metadata(&path).ok();
        meta.is_some_and(|meta| meta.file_type().is_socket() && meta.uid() == status.uids[1])
    };
    if !is_there() {
        let wish = PathBuf::from(format!("{PLACE}/.attach_pid{pid}"));
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&wish)?;
        let opened = wait_for(pid, is_there);
        let _ = fs::remove_file(&wish);
        opened?;
    }
    let socket = UnixStream::connect(&path)?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.set_write_timeout(Some(ANSWER))?;
    Ok(socket)
}

fn wait_for(pid: Pid, is_there: impl Fn() -> bool) -> io::Result<()> {
    // SAFETY: touches no memory.
    if unsafe { libc::kill(pid.0, libc::SIGQUIT) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let until = Instant::now() + PATIENCE;
    while !is_there() {
        if Instant::now() > until {
            return Err(io::Error::other("the virtual machine does not open it"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The machine's own protocol: version, command and three arguments, each ended by a zero; then its answer, until it closes.
fn load(mut socket: UnixStream, library: &Path) -> io::Result<()> {
    const MOST: u64 = 4096;
    let path = library.display().to_string();
    for part in ["1", "load", &path, "true", ""] {
        socket.write_all(part.as_bytes())?;
        socket.write_all(&[0])?;
    }
    let mut answer = Vec::new();
    socket.take(MOST).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    // What the socket's side says, and what the library says; from 9 on in words.
    let mut lines = answer.lines().map(str::trim);
    let said = lines.next_back().unwrap_or_default();
    let code = said.strip_prefix("return code: ").unwrap_or(said);
    match answer.lines().next() == Some("0") && code == "0" {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "the virtual machine says '{}'",
            answer.replace('\n', " ").trim()
        ))),
    }
}
