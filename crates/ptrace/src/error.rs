//! Everything that can go wrong between the controller and a live process.
//!
//! One type for the crate, because a caller at the top (the command line) wants one rule: each of these ends in a
//! message and in an untouched target. A message says what happened, to what, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::proc::{Pid, RemoteAddr, Tid};

/// Shorthand for the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal or a failure while looking at, stopping, changing or starting a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- refused before anything was touched -------------------------------------------------------------------
    /// A rule that cannot be followed.
    #[error("{0}; nothing was touched")]
    Rule(Box<dyn std::error::Error + Send + Sync>),
    /// No process has this id.
    #[error("no process has the id {pid}: check it with `ps -p {pid}`")]
    NoSuchProcess { pid: Pid },
    /// The id is that of a thread which is not its process's first.
    #[error(
        "{tid} is a thread of process {pid}, not a process: give the process id {pid} and select the thread with `-t {tid}`"
    )]
    IsThread { tid: Tid, pid: Pid },
    /// Our own process.
    #[error("process {pid} is this very program: it cannot stop and profile itself")]
    Ourselves { pid: Pid },
    /// A kernel thread has no user code.
    #[error("process {pid} ({name}) is a kernel thread: it has no user code to profile")]
    KernelThread { pid: Pid, name: String },
    /// The process has ended and waits for its parent.
    #[error(
        "process {pid} ({name}) is a zombie: it has already ended and waits for its parent {parent} to collect it"
    )]
    Zombie { pid: Pid, name: String, parent: Pid },
    /// A 32-bit program.
    #[error("{what} is a 32-bit program: only 64-bit x86-64 programs can be profiled")]
    Bits32 { what: String },
    /// Not an x86-64 program.
    #[error(
        "{what} is built for {machine}, not for x86-64: only 64-bit x86-64 programs can be profiled"
    )]
    WrongArchitecture { what: String, machine: String },
    /// Another tracer holds it.
    #[error(
        "process {pid} is already traced by process {tracer} ({tracer_name}): end that debugger or tracer first"
    )]
    AlreadyTraced {
        pid: Pid,
        tracer: Pid,
        tracer_name: String,
    },
    /// The process restricts its own system calls.
    #[error(
        "thread {tid} of process {pid} runs under seccomp (mode {mode}), and its filter cannot be read: the memory mappings that profiling needs could kill it, so it was left alone; as root, outside of any seccomp filter, thalweg can read it"
    )]
    Seccomp { pid: Pid, tid: Tid, mode: u32 },
    /// A filter of its own that we could read.
    #[error(
        "thread {tid} of process {pid} runs under a seccomp filter that does not allow {call}, which profiling needs: it was left alone"
    )]
    SeccompForbids { pid: Pid, tid: Tid, call: String },
    #[error(
        "thread {tid} of process {pid} may not read the time-stamp counter (prctl PR_SET_TSC), which every probe does: it was left alone"
    )]
    NoCounter { pid: Pid, tid: Tid },
    #[error(
        "thread {tid} of process {pid} handles its system calls itself (syscall user dispatch), and would get those that profiling needs: it was left alone"
    )]
    Dispatched { pid: Pid, tid: Tid },
    /// CET.
    #[error(
        "process {pid} runs with a shadow stack (CET), with which moved calls would fault: it was left alone; start it without (for glibc: GLIBC_TUNABLES=glibc.cpu.hwcaps=-SHSTK)"
    )]
    ShadowStack { pid: Pid },
    /// It runs another program inside itself.
    #[error(
        "{what} runs inside {host}, which runs a program's code in its own way: it was left alone; profile the program by itself"
    )]
    Host { what: String, host: &'static str },
    /// Its sequences would be torn.
    #[error("process {pid} uses restartable sequences (rseq): {why}; nothing was changed")]
    Rseq { pid: Pid, why: String },
    /// It belongs to someone else.
    #[error(
        "process {pid} belongs to user {owner} and you are user {own}: run as that user, as root, or with CAP_SYS_PTRACE"
    )]
    OtherUser { pid: Pid, owner: u32, own: u32 },
    /// Yama forbids it.
    #[error(
        "not permitted to trace process {pid}: {file} is {scope} ({meaning}); run as root, give this program CAP_SYS_PTRACE, start the target with `thalweg record -- PROGRAM`, or set it to 0 (`sysctl kernel.yama.ptrace_scope=0`)"
    )]
    Yama {
        pid: Pid,
        scope: u32,
        file: &'static str,
        meaning: &'static str,
    },
    /// The process made itself undumpable or was privileged when it started.
    #[error(
        "process {pid} is not dumpable (it was started setuid, from an unreadable file, or called prctl(PR_SET_DUMPABLE, 0)): tracing it needs CAP_SYS_PTRACE, so run as root"
    )]
    NotDumpable { pid: Pid },
    /// The target holds capabilities that we lack.
    #[error(
        "process {pid} holds capabilities ({theirs:#x}) that this program lacks ({ours:#x}): run as root or with CAP_SYS_PTRACE"
    )]
    MoreCapabilities { pid: Pid, theirs: u64, ours: u64 },
    /// Forbidden for a reason that could not be told.
    #[error(
        "not permitted to trace process {pid} ({reason}): a security module, a container's rules or a missing CAP_SYS_PTRACE forbids it; try as root outside the container"
    )]
    // Not as its source: the text has it already.
    NotPermitted { pid: Pid, reason: io::Error },

    /// The filters leave nothing.
    #[error(
        "no function of process {pid} is left to profile: loosen -F, -N, --lib or --no-lib, or see `thalweg probe -p {pid} --skipped`; if only programs that it starts are meant, give --follow"
    )]
    NothingToProfile { pid: Pid },
    #[error(
        "no function of process {pid} that can be patched matches --checkpoint-on (Go functions make no checkpoints): see `thalweg probe -p {pid}`; if only programs that it starts are meant, give --follow"
    )]
    NoCheckpoint { pid: Pid },

    // ---- while stopped ----------------------------------------------------------------------------------------
    /// A thread did not stop in time; everything has been released.
    #[error(
        "thread {tid} of process {pid} did not stop within {millis} ms (state {state}, waiting in {wchan}): in state D it sleeps uninterruptibly, for a frozen file system, a disk or a file server that does not answer, or a vfork child; everything runs on"
    )]
    Stuck {
        pid: Pid,
        tid: Tid,
        state: char,
        wchan: String,
        millis: u64,
    },
    /// The same when the probes were to be taken out.
    #[error("process {pid} is still attached, run `thalweg detach {pid}` later: {why}")]
    StillAttached { pid: Pid, why: Box<Error> },
    /// New threads appeared faster than they could be stopped.
    #[error(
        "process {pid} created threads faster than they could be stopped for {millis} ms: it was left as it was, try again later"
    )]
    ThreadsKeepComing { pid: Pid, millis: u64 },
    /// The target ended.
    #[error("process {pid} ended ({how}) while {doing}")]
    TargetExited {
        pid: Pid,
        how: String,
        doing: &'static str,
    },
    /// The target replaced its program.
    #[error(
        "process {pid} started another program (execve) while it was being stopped: nothing was changed, try again"
    )]
    TargetExeced { pid: Pid },
    /// A thread is not among the stopped ones.
    #[error("thread {tid} is not one of the stopped threads of process {pid}: it may have ended")]
    NotStopped { pid: Pid, tid: Tid },
    /// A system call made on the target's behalf failed.
    #[error("the system call {name} made inside process {pid} failed: {source}")]
    RemoteSyscall {
        pid: Pid,
        name: String,
        source: io::Error,
    },
    /// No `syscall` instruction could be found in the target.
    #[error(
        "no `syscall` instruction was found in any executable mapping of process {pid}: it cannot be made to map memory"
    )]
    NoSyscallInstruction { pid: Pid },
    /// The target's memory could not be read or written.
    #[error("cannot {verb} {len} bytes at {addr} of process {pid}: {source}")]
    Memory {
        pid: Pid,
        verb: &'static str,
        addr: RemoteAddr,
        len: usize,
        source: io::Error,
    },
    /// A ptrace request failed.
    #[error("ptrace {request} of thread {tid} failed: {source}")]
    Ptrace {
        request: &'static str,
        tid: Tid,
        source: io::Error,
    },

    // ---- files of a process -----------------------------------------------------------------------------------
    /// The mapping has no file behind it.
    #[error("the mapping at {start} of process {pid} has no file behind it ({name})")]
    NotAFile {
        pid: Pid,
        start: RemoteAddr,
        name: String,
    },
    /// The mapped file was deleted or replaced since.
    #[error(
        "{path} as mapped by process {pid} was deleted or replaced since: restart the process, or run as root to read the mapped file itself"
    )]
    FileReplaced { pid: Pid, path: PathBuf },
    /// The mapped file is no regular file.
    #[error("{path} is mapped by process {pid} but is not a regular file")]
    NotRegular { pid: Pid, path: PathBuf },

    // ---- starting a program -----------------------------------------------------------------------------------
    /// Nothing to run.
    #[error("no program to run was given: write it after `--`")]
    EmptyCommand,
    /// Not found along PATH, or at the given path.
    #[error("{program}: no such program{place}", place = if *.searched { " in any directory of PATH" } else { "" })]
    ProgramNotFound { program: String, searched: bool },
    /// Found but not executable.
    #[error("{program}: cannot be run: {why}")]
    NotExecutable { program: String, why: String },
    /// A set-user-id program would silently lose its privilege under a tracer.
    #[error(
        "{program} is a setuid or setgid program of another user: traced by you it would run without that privilege; run as root"
    )]
    Setuid { program: String },
    /// The new process could not be made.
    #[error("cannot start {program}: {source}")]
    Start { program: String, source: io::Error },

    // ---- the rest ---------------------------------------------------------------------------------------------
    /// Reading something of /proc failed.
    #[error("cannot read {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// Something of /proc could not be understood.
    #[error("cannot understand {path}: {what}")]
    Malformed { path: PathBuf, what: String },
    /// What is asked for cannot be done to this process, file or machine; nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// Something changes meanwhile: the same may work when it is tried again.
    #[error("{0}")]
    Busy(String),
    /// What a target carries is not what we have left there.
    #[error("{0}")]
    Damaged(String),
    /// A table, or the target's address space, is full.
    #[error("{0}")]
    NoRoom(String),
    /// A thread or process ended, or does not answer.
    #[error("{0}")]
    Lost(String),
    /// Nothing of ours is there.
    #[error("process {pid} is not attached: `thalweg attach {pid}` begins")]
    NotAttached { pid: Pid },
    /// Nothing of ours is there any more.
    #[error("process {pid} is not attached any more")]
    NoLongerAttached { pid: Pid },
    /// An attach was given up, and memory could not be given back.
    #[error(
        "{why}; the code is as it was, but some memory stays mapped until `thalweg detach {pid}` removes it"
    )]
    StillMapped { pid: Pid, why: Box<Error> },
    /// The kernel refuses us something.
    #[error("{doing}: {source}")]
    System { doing: String, source: io::Error },
}

impl Error {
    /// No thread of our own could be made.
    pub fn no_thread(source: io::Error) -> Error {
        Error::System {
            doing: "cannot start a thread".into(),
            source,
        }
    }
}
