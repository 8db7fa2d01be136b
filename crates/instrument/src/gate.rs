//! Gates, seen from outside: which functions have one, and the controller that threads wait for there.
//!
//! The target's side and the protocol are in the agent's `gate.rs`. Here a `Server` says that somebody serves, and keeps
//! its heart beating on a thread of its own, so that long work is no silence. Posted entries are handed to whoever asks:
//! what is done for them stops processes, and that happens on the one thread that does so.
//!
//! The shared memory is mapped for the kernel's sake only, which needs an address to wait at. Nothing here reads or writes
//! through it: a target that truncates its memory would kill us. It is mapped so that it could not be written either: then
//! the kernel does not count us among those who carry it (`Shared::seal`), and the gates are served until it is forsaken.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thalweg_abi as shm;
use thalweg_patch::CloneKind;
use thalweg_symbols::{Function, FunctionKind, Module};

use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::held;
use crate::java;
use crate::memory::Shared;
use crate::numbers::Carriers;
use crate::proc::{Pid, Tid};
use crate::python;

/// What a thread at a gate is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The loader's list of objects changes or has changed.
    LinkMap,
    /// The process becomes another program: `execve`, `execveat`, `fexecve`.
    Exec,
    ExecAt,
    ExecFile,
    Checkpoint,
    /// A thread is made. The agent notes it by itself: nobody waits.
    NewThread(CloneKind),
    /// `prctl`, `syscall`, `arch_prctl`, and functions with an instruction that sets the GS base: the program may be about to limit
    /// itself so that probes would kill it. The agent looks by itself.
    Prctl,
    /// Any system call; it waits only where another process is to be traced by it.
    Syscall,
    ArchPrctl,
    GsBase,
    /// HotSpot calls it for each Java method: what it does is not done, but what the agent's java.rs does.
    JavaEntry,
    JavaExit,
    /// Java methods are about to give their memory back.
    JavaFree,
    /// HotSpot's compiler puts the call of a method probe into code: not for a method that is off.
    JavaCompile,
    /// CPython's support of perf is about to ask whether somebody else evaluates: it must find what it would find without us.
    Evaluator,
    /// No function, but a fork child at its first event: it waits until it is known, so that it cannot end before. Where
    /// children are not counted: one that has lived for a while, and is to be left clean.
    ForkChild,
}

impl Kind {
    pub const ALL: [Kind; 17] = [
        Kind::LinkMap,
        Kind::Exec,
        Kind::ExecAt,
        Kind::ExecFile,
        Kind::Checkpoint,
        Kind::NewThread(CloneKind::Clone),
        Kind::NewThread(CloneKind::Clone3),
        Kind::Prctl,
        Kind::Syscall,
        Kind::ArchPrctl,
        Kind::GsBase,
        Kind::JavaEntry,
        Kind::JavaExit,
        Kind::JavaFree,
        Kind::JavaCompile,
        Kind::Evaluator,
        Kind::ForkChild,
    ];

    pub fn number(self) -> u32 {
        match self {
            Kind::LinkMap => shm::GATE_KIND_LINK_MAP,
            Kind::Exec => shm::GATE_KIND_EXEC,
            Kind::ExecAt => shm::GATE_KIND_EXEC_AT,
            Kind::ExecFile => shm::GATE_KIND_EXEC_FILE,
            Kind::Checkpoint => shm::GATE_KIND_CHECKPOINT,
            Kind::NewThread(CloneKind::Clone) => shm::GATE_KIND_CLONE,
            Kind::NewThread(CloneKind::Clone3) => shm::GATE_KIND_CLONE3,
            Kind::Prctl => shm::GATE_KIND_PRCTL,
            Kind::Syscall => shm::GATE_KIND_SYSCALL,
            Kind::ArchPrctl => shm::GATE_KIND_ARCH_PRCTL,
            Kind::GsBase => shm::GATE_KIND_GS_BASE,
            Kind::JavaEntry => shm::GATE_KIND_JAVA_ENTRY,
            Kind::JavaExit => shm::GATE_KIND_JAVA_EXIT,
            Kind::JavaFree => shm::GATE_KIND_JAVA_FREE,
            Kind::JavaCompile => shm::GATE_KIND_JAVA_COMPILE,
            Kind::Evaluator => shm::GATE_KIND_EVALUATOR,
            Kind::ForkChild => shm::GATE_KIND_FORK_CHILD,
        }
    }

    fn of(number: u32) -> Option<Kind> {
        use Kind::*;
        [
            LinkMap, Exec, ExecAt, ExecFile, Checkpoint, ForkChild, Syscall,
        ]
        .into_iter()
        .find(|kind| kind.number() == number)
    }
}

/// The kind of gate that a function gets by its name, whatever the filters say.
fn kind_of(function: &Function) -> Option<Kind> {
    if !matches!(function.kind, FunctionKind::Normal) {
        return None;
    }
    match function.linkage_name.as_deref()? {
        "_dl_debug_state" | "dl_debug_state" => Some(Kind::LinkMap),
        "execve" | "__execve" => Some(Kind::Exec),
        "execveat" | "__execveat" => Some(Kind::ExecAt),
        "fexecve" | "__fexecve" => Some(Kind::ExecFile),
        "prctl" | "__prctl" => Some(Kind::Prctl),
        "syscall" => Some(Kind::Syscall),
        "arch_prctl" | "__arch_prctl" => Some(Kind::ArchPrctl),
        python::ASKS_WHO_EVALUATES => Some(Kind::Evaluator),
        _ => None,
    }
}

/// Functions of a module that have a gate: index in `module.functions` and kind.
pub fn gated(module: &Module, filter: &Filter) -> Vec<(usize, Kind)> {
    let kind = |function: &Function| {
        // A goroutine's stack has no room for a gate.
        let is_go = || {
            let table = module.go.as_ref();
            table.is_some_and(|table| table.contains(function.start))
        };
        let checkpoint =
            || filter.is_checkpoint(&function.name, function.linkage_name.as_deref()) && !is_go();
        let java = || {
            let is_machine = filter.wants_java() && module.name == java::LIBRARY;
            is_machine.then(|| java::gate_of(function)).flatten()
        };
        let by_name = || kind_of(function).or_else(java);
        by_name().or_else(|| checkpoint().then_some(Kind::Checkpoint))
    };
    let new_threads = thalweg_patch::clone_sites(module)
        .into_iter()
        .map(|(index, kind)| (index, Kind::NewThread(kind)));
    let gs_bases = thalweg_patch::set_gs_base(module)
        .into_iter()
        .map(|index| (index, Kind::GsBase));
    module
        .functions
        .iter()
        .enumerate()
        .filter_map(|(index, function)| Some((index, kind(function)?)))
        .chain(new_threads)
        .chain(gs_bases)
        .collect()
}

/// A thread that waits at a gate.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    index: usize,
    word: u32,
    pub kind: Kind,
    pub pid: Pid,
    pub tid: Tid,
    /// What the process is called in the shared memory.
    pub inner_pid: u32,
    /// `None` where it is not counted.
    pub function: Option<u32>,
    pub args: [u64; 6],
    pub sp: u64,
    /// When it was seen to wait.
    since: Instant,
}

/// While it lives, threads of the target wait at gates until they are served.
pub struct Server<'a> {
    shared: &'a Shared,
    pages: Arc<Pages>,
    stop: Arc<AtomicBool>,
    heart: Option<std::thread::JoinHandle<()>>,
    sequence: u32,
    /// Entries that were served and not freed yet: their threads were taken elsewhere by a signal, or are about to go on.
    served: [Option<(u32, Instant)>; shm::MAX_GATES],
}

/// After this long nobody comes back for an entry that was served.
const FORGOTTEN: Duration = Duration::from_secs(5);
/// Who is served at once has not waited.
const WORTH_NOTING: Duration = Duration::from_micros(100);
const BEAT: Duration = Duration::from_millis(100);

impl<'a> Server<'a> {
    pub fn start(shared: &'a Shared) -> Result<Server<'a>> {
        let pages = Arc::new(Pages::map(shared)?);
        let sequence = shared.header()?.gate_sequence;
        let stop = Arc::new(AtomicBool::new(false));
        let heart = beat(shared, stop.clone())?;
        let server = Server {
            shared,
            pages,
            stop,
            heart: Some(heart),
            sequence,
            served: [None; shm::MAX_GATES],
        };
        server.open()?;
        Ok(server)
    }

    fn open(&self) -> Result<()> {
        let place = offset_of!(shm::Header, gate_server) as u64;
        self.set(place, std::process::id())
    }

    /// Threads that wait now; if there are none, those that come within `patience`.
    pub fn wait(&mut self, patience: Duration) -> Result<Vec<Posted>> {
        let deadline = Instant::now() + patience;
        loop {
            let header = self.shared.header()?;
            if header.gate_server == shm::GATE_DESERTED {
                // We were stopped for a while, and somebody lost his patience.
                self.open()?;
            }
            let sequence = header.gate_sequence;
            let posted = self.posted()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if !posted.is_empty() || left.is_zero() {
                self.sequence = sequence;
                return Ok(posted);
            }
            let word = offset_of!(shm::Header, gate_sequence) as u64;
            if self.pages.wait(word, sequence, left).is_interrupted() {
                // A signal for us: whoever called looks at it.
                return Ok(Vec::new());
            }
        }
    }

    fn posted(&mut self) -> Result<Vec<Posted>> {
        let mut found = Vec::new();
        let gates: [shm::Gate; shm::MAX_GATES] = self.shared.read(shm::GATES_OFFSET)?;
        if !gates
            .iter()
            .any(|g| g.word & shm::GATE_STATES != shm::GATE_FREE)
        {
            return Ok(found);
        }
        let header = self.shared.header()?;
        let carriers = Carriers::of(self.shared, &header)?;
        let first = header.base + shm::PRIVATE_SIZE + shm::GATES_OFFSET;
        for (index, gate) in gates.iter().enumerate() {
            match gate.word & shm::GATE_STATES {
                shm::GATE_POSTED => {}
                shm::GATE_SERVED => {
                    self.forget(index, gate.word)?;
                    continue;
                }
                _ => continue,
            }
            let word = first + index as u64 * shm::GATE_SIZE;
            let who = || carriers.waiting(gate.pid, gate.tid, word);
            match Kind::of(gate.kind).and_then(|kind| Some((kind, who()?))) {
                Some((kind, (pid, tid))) => found.push(Posted {
                    index,
                    word: gate.word,
                    kind,
                    pid,
                    tid,
                    inner_pid: gate.pid,
                    function: (gate.function != shm::GATE_NO_FUNCTION).then_some(gate.function),
                    args: gate.args,
                    sp: gate.sp,
                    since: Instant::now(),
                }),
                // Nothing that we know, or nobody whom we know: let it go.
                None => self.answer(index, gate.word)?,
            }
        }
        Ok(found)
    }

    /// Lets the thread go on.
    pub fn serve(&mut self, posted: &Posted) -> Result<()> {
        if posted.since.elapsed() >= WORTH_NOTING {
            // It goes on all the same.
            let _ = held::gate_ends(self.shared, posted.pid, posted.since);
        }
        self.answer(posted.index, posted.word)
    }

    fn answer(&mut self, index: usize, word: u32) -> Result<()> {
        let offset = shm::GATES_OFFSET + index as u64 * shm::GATE_SIZE;
        let gate: shm::Gate = self.shared.read(offset)?;
        // It may have lost its patience, if we were stopped ourselves.
        if gate.word == word {
            let served = word & !shm::GATE_STATES | shm::GATE_SERVED;
            self.served[index] = Some((served, Instant::now()));
            self.set(offset, served)?;
        }
        self.pages.wake(offset);
        Ok(())
    }

    fn forget(&mut self, index: usize, word: u32) -> Result<()> {
        match self.served[index] {
            Some((served, since)) if served == word => {
                if since.elapsed() > FORGOTTEN {
                    let offset = shm::GATES_OFFSET + index as u64 * shm::GATE_SIZE;
                    self.set(offset, word & !shm::GATE_STATES | shm::GATE_FREE)?;
                }
            }
            _ => self.served[index] = Some((word, Instant::now())),
        }
        Ok(())
    }

    /// The next thread that comes to a checkpoint waits there.
    pub fn want_checkpoint(&self) -> Result<()> {
        self.set(offset_of!(shm::Header, checkpoint_wanted) as u64, 1)
    }

    fn set(&self, offset: u64, value: u32) -> Result<()> {
        self.shared.write(offset, &value.to_le_bytes())
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = close(self.shared);
        for index in 0..shm::MAX_GATES {
            self.pages
                .wake(shm::GATES_OFFSET + index as u64 * shm::GATE_SIZE);
        }
        self.stop.store(true, Ordering::Relaxed);
        if let Some(heart) = self.heart.take() {
            heart.thread().unpark();
            let _ = heart.join();
        }
    }
}

/// Whether threads wait at gates for a controller.
pub fn is_served(header: &shm::Header) -> bool {
    ![0, shm::GATE_DESERTED].contains(&header.gate_server)
}

/// From now on nobody waits at a gate; those who do go on within a tenth of a second.
pub fn close(shared: &Shared) -> Result<()> {
    shared.write(
        offset_of!(shm::Header, gate_server) as u64,
        &0u32.to_le_bytes(),
    )
}

/// As it was before it was closed.
pub fn reopen(shared: &Shared, server: u32) -> Result<()> {
    shared.write(
        offset_of!(shm::Header, gate_server) as u64,
        &server.to_le_bytes(),
    )
}

fn beat(shared: &Shared, stop: Arc<AtomicBool>) -> Result<std::thread::JoinHandle<()>> {
    let shared = shared.try_clone()?;
    std::thread::Builder::new()
        .name("gate heartbeat".into())
        .spawn(move || {
            let mut beats = shared.header().map_or(0, |header| header.gate_heartbeat);
            while !stop.load(Ordering::Relaxed) {
                beats = beats.wrapping_add(1);
                let place = offset_of!(shm::Header, gate_heartbeat) as u64;
                if shared.write(place, &beats.to_le_bytes()).is_err() {
                    return;
                }
                std::thread::park_timeout(BEAT);
            }
        })
        .map_err(Error::no_thread)
}

/// Header and gates, mapped: an address for the kernel to wait at.
struct Pages(*mut libc::c_void);

// SAFETY: the address is only passed to the kernel.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

const MAPPED: usize = shm::LOADED_OFFSET as usize;

enum Woken {
    Interrupted,
    Otherwise,
}

impl Woken {
    fn is_interrupted(&self) -> bool {
        matches!(self, Woken::Interrupted)
    }
}

impl Pages {
    fn map(shared: &Shared) -> Result<Pages> {
        use std::os::fd::AsRawFd;
        let Shared::File { file, .. } = shared else {
            return Err(Error::Refused(
                "the target's shared memory cannot be mapped here".into(),
            ));
        };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let read_only = std::fs::File::open(&path).map_err(|source| Error::Io {
            path: path.into(),
            source,
        })?;
        // SAFETY: a new mapping, of which nothing here knows the contents.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                MAPPED,
                libc::PROT_READ,
                libc::MAP_SHARED,
                read_only.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            let error = std::io::Error::last_os_error();
            return Err(Error::System {
                doing: "cannot map the target's shared memory".into(),
                source: error,
            });
        }
        Ok(Pages(at))
    }

    fn word(&self, offset: u64) -> *mut u32 {
        self.0.cast::<u8>().wrapping_add(offset as usize).cast()
    }

    fn wait(&self, offset: u64, expected: u32, patience: Duration) -> Woken {
        let pause = libc::timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        let word = self.word(offset);
        // SAFETY: the kernel reads the word and answers with an error if it cannot.
        let result =
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, &pause) };
        let errno = std::io::Error::last_os_error().raw_os_error();
        match (result, errno) {
            (-1, Some(libc::EINTR)) => Woken::Interrupted,
            (-1, Some(libc::EAGAIN | libc::ETIMEDOUT)) | (0, _) => Woken::Otherwise,
            _ => {
                // The memory was truncated: not to be spun on.
                std::thread::sleep(patience.min(Duration::from_millis(1)));
                Woken::Otherwise
            }
        }
    }

    fn wake(&self, offset: u64) {
        let word = self.word(offset);
        // SAFETY: the word is not touched.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has its address any more.
        unsafe { libc::munmap(self.0, MAPPED) };
    }
}
