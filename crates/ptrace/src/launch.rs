//! A program started by us, held at the moment when all its code is in memory and none of it has run.
//!
//! ```text
//! fork ── child: waits ───────────────── execve ──> stands before its first instruction (ld.so's, or its own)
//!   └──── parent: seizes it, says go ──────┘           run_to_ready: on to the loader's _dl_debug_state with the
//!                                                      libraries mapped and relocated, no constructor run yet
//! ```
//!
//! The child is seized, not traced by its own wish (PTRACE_TRACEME), so that it has the very interface of a process that
//! was attached to. Standard input, output and error are ours, untouched. If we die, the kernel lets it run.

pub mod loader;
pub mod program;

pub use loader::list_state;

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::proc::Pid;
use crate::tracee::{self, StopOptions, Stopped};

/// A child that we started, traced from its first instruction.
pub struct Launched {
    pid: Pid,
    stopped: Option<Stopped>,
    status: Option<ExitStatus>,
}

impl Launched {
    /// Starts the program; it stands at its first instruction afterwards.
    pub fn start(command: &[OsString]) -> Result<Launched> {
        let program = command.first().ok_or(Error::EmptyCommand)?;
        let path = program::find(program)?;
        let name = program.to_string_lossy().into_owned();
        let to_start = |source| Error::Start {
            program: name.clone(),
            source,
        };
        let c_path = c_string(path.as_os_str().as_bytes()).map_err(to_start)?;
        let arguments = command
            .iter()
            .map(|word| c_string(word.as_bytes()))
            .collect::<io::Result<Vec<CString>>>()
            .map_err(to_start)?;
        let mut argv: Vec<*const libc::c_char> =
            arguments.iter().map(|word| word.as_ptr()).collect();
        argv.push(std::ptr::null());

        let (go_read, go_write) = pipe().map_err(to_start)?;
        let (error_read, error_write) = pipe().map_err(to_start)?;
        // SAFETY: between fork and exec the child calls only functions that are safe there (`child`), on memory made
        // before; it never returns.
        let pid = unsafe {
            match libc::fork() {
                -1 => return Err(to_start(io::Error::last_os_error())),
                0 => child(
                    &c_path,
                    &argv,
                    go_read.as_raw_fd(),
                    go_write.as_raw_fd(),
                    error_write.as_raw_fd(),
                ),
                pid => Pid(pid),
            }
        };
        drop((go_read, error_write));
        tracee::adopt_child(pid);
        let mut launched = Launched {
            pid,
            stopped: None,
            status: None,
        };
        // A child that cannot be traced reads the end of the pipe and ends by itself.
        if let Err(error) = Stopped::seize_child(pid) {
            drop(go_write);
            launched.wait()?;
            return Err(error);
        }
        write_byte(&go_write).map_err(to_start)?;
        drop(go_write);
        match Stopped::child_at_exec(pid, StopOptions::default()) {
            Ok(stopped) => {
                launched.stopped = Some(stopped);
                Ok(launched)
            }
            Err(error) => match read_errno(&error_read) {
                Some(errno) => {
                    launched.wait()?;
                    Err(program::cannot_run(
                        &name,
                        io::Error::from_raw_os_error(errno),
                    ))
                }
                None => Err(error),
            },
        }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the loader map and relocate all needed libraries; stops before any constructor. A static program is
    /// ready as it is.
    ///
    /// An [`Error::TargetExited`] (say, a missing library) leaves the exit status to [`Launched::wait`].
    pub fn run_to_ready(&mut self) -> Result<()> {
        match &mut self.stopped {
            Some(stopped) => loader::run_to_ready(stopped),
            None => Ok(()),
        }
    }

    /// The stopped child; `None` once it was released or has ended.
    pub fn stopped(&mut self) -> Option<&mut Stopped> {
        self.stopped.as_mut()
    }

    /// Ends a child that was not let run yet: a command that is refused must not have begun.
    pub fn abandon(&mut self) {
        let Some(stopped) = self.stopped.take() else {
            return;
        };
        // SAFETY: signals our own child, which we have not collected.
        unsafe { libc::kill(self.pid.0, libc::SIGKILL) };
        drop(stopped);
        let _ = self.wait();
    }

    /// Lets the child run, untraced.
    pub fn release(&mut self) -> Result<()> {
        match self.stopped.take() {
            Some(stopped) => stopped.release(),
            None => Ok(()),
        }
    }

    /// The exit status, if it has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.wait_with(libc::WNOHANG)
    }

    /// Releases the child if it is still stopped, and waits for its end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        self.stopped = None;
        loop {
            // A thread of it that we still hold would keep it from ending.
            let flags = if tracee::tend_left_behind() > 0 {
                std::thread::sleep(Duration::from_millis(5));
                libc::WNOHANG
            } else {
                0
            };
            if let Some(status) = self.wait_with(flags)? {
                return Ok(status);
            }
        }
    }

    /// `None`: it has not ended, or the wait was interrupted by a signal.
    fn wait_with(&mut self, flags: i32) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = tracee::child_status(self.pid).map(ExitStatus::from_raw);
        }
        if self.status.is_some() {
            return Ok(self.status);
        }
        if !self.is_collectable(flags)? {
            return Ok(None);
        }
        let mut raw = 0;
        // SAFETY: `raw` is writable.
        if unsafe { libc::waitpid(self.pid.0, &mut raw, 0) } == self.pid.0 {
            self.status = Some(ExitStatus::from_raw(raw));
        }
        Ok(self.status)
    }
}

impl Launched {
    /// Whether the child has ended. Looks without collecting: another thread of ours may be following it through an
    /// execve, and the stops on the way are not ours to take.
    fn is_collectable(&self, flags: i32) -> Result<bool> {
        let flags = flags | libc::WEXITED | libc::WNOWAIT;
        // SAFETY: a structure of plain integers, filled by the call.
        let (result, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let id = self.pid.0 as libc::id_t;
            (libc::waitid(libc::P_PID, id, &mut info, flags), info)
        };
        if result != 0 {
            let source = io::Error::last_os_error();
            return match source.kind() {
                io::ErrorKind::Interrupted => Ok(false),
                // Collected by the thread that followed it, a moment ago.
                _ if tracee::child_status(self.pid).is_some() => Ok(false),
                _ => Err(Error::System {
                    doing: format!("cannot wait for process {}", self.pid),
                    source,
                }),
            };
        }
        // SAFETY: filled by waitid, or zero.
        let someone = unsafe { info.si_pid() } == self.pid.0;
        let ended = matches!(
            info.si_code,
            libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED
        );
        if someone && !ended {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(someone && ended)
    }
}

/// The child's side. Only async-signal-safe calls.
///
/// SAFETY: `argv` must be a null-terminated list of C strings that live.
unsafe fn child(
    path: &CString,
    argv: &[*const libc::c_char],
    go_read: i32,
    go_write: i32,
    errors: i32,
) -> ! {
    // SAFETY: plain system calls on our own descriptors and memory; `argv` by contract.
    unsafe {
        // Else the end of the pipe would never be seen should the parent die.
        libc::close(go_write);
        // The runtime of this program ignores SIGPIPE; a program started by a shell would not.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        let mut byte = 0u8;
        loop {
            match libc::read(go_read, (&raw mut byte).cast(), 1) {
                1 => break,
                -1 if *libc::__errno_location() == libc::EINTR => {}
                _ => libc::_exit(127),
            }
        }
        libc::execv(path.as_ptr(), argv.as_ptr());
        let errno = (*libc::__errno_location()).to_ne_bytes();
        libc::write(errors, errno.as_ptr().cast(), errno.len());
        libc::_exit(127)
    }
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "an argument holds a zero byte"))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are owned by nobody else once made.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

fn write_byte(to: &OwnedFd) -> io::Result<()> {
    // SAFETY: one readable byte.
    match unsafe { libc::write(to.as_raw_fd(), [1u8].as_ptr().cast(), 1) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the child said about its failed exec, if it failed.
fn read_errno(from: &OwnedFd) -> Option<i32> {
    let mut bytes = [0; 4];
    // SAFETY: four writable bytes. The other end is closed by now: this does not block.
    let got = unsafe { libc::read(from.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    (got == 4).then(|| i32::from_ne_bytes(bytes))
}
