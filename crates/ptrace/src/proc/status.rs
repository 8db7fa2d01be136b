//! Readers of the small files: status, stat, task/, auxv, cmdline, comm, wchan.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::{Pid, Tid, gone_or_io, slurp};
use crate::error::{Error, Result};

/// The fields of /proc/PID/status that decide whether and how a process may be traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub name: String,
    pub state: char,
    /// The process that this thread belongs to.
    pub tgid: i32,
    pub parent: i32,
    /// 0: nobody traces it.
    pub tracer: i32,
    /// Real, effective, saved and file-system user.
    pub uids: [u32; 4],
    pub gids: [u32; 4],
    pub threads: usize,
    /// 0: none, 1: strict, 2: filter.
    pub seccomp: u32,
    /// How many filters.
    pub seccomp_filters: u32,
    /// A shadow stack is in use.
    pub shadow_stack: bool,
    pub cap_permitted: u64,
    pub cap_effective: u64,
    /// Signals pending for this thread, and for its process.
    pub pending: u64,
    pub shared_pending: u64,
    pub blocked: u64,
    pub ignored: u64,
    pub caught: u64,
    /// How often it was switched away from, by its own will and not: one that sleeps on has the same figure.
    pub switches: u64,
}

/// The fields of /proc/PID/stat that `status` lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub name: String,
    pub state: char,
    pub parent: i32,
    /// The kernel's PF_ flags.
    pub flags: u64,
    pub threads: usize,
    pub start_ticks: u64,
}

impl Stat {
    const PF_KTHREAD: u64 = 0x0020_0000;

    pub fn is_kernel_thread(&self) -> bool {
        self.flags & Self::PF_KTHREAD != 0
    }

    /// Ended, though still listed.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// /proc/PID/status of a process or of one of its threads.
pub fn status(pid: Pid, tid: Tid) -> Result<Status> {
    let path = PathBuf::from(format!("/proc/{pid}/task/{tid}/status"));
    let bytes = slurp(pid, &path)?;
    Ok(parse_status(&String::from_utf8_lossy(&bytes)))
}

/// /proc/PID/stat.
pub fn stat(pid: Pid) -> Result<Stat> {
    stat_at(pid, PathBuf::from(format!("/proc/{pid}/stat")))
}

/// The same of one thread.
pub fn thread_stat(pid: Pid, tid: Tid) -> Result<Stat> {
    stat_at(pid, PathBuf::from(format!("/proc/{pid}/task/{tid}/stat")))
}

fn stat_at(pid: Pid, path: PathBuf) -> Result<Stat> {
    let bytes = slurp(pid, &path)?;
    parse_stat(&String::from_utf8_lossy(&bytes)).ok_or_else(|| Error::Malformed {
        path,
        what: "a field is missing".into(),
    })
}

/// All threads, as /proc lists them now; dead ones that nobody collected are among them.
pub fn tasks(pid: Pid) -> Result<Vec<Tid>> {
    let path = PathBuf::from(format!("/proc/{pid}/task"));
    let dir = std::fs::read_dir(&path).map_err(|source| gone_or_io(pid, &path, source))?;
    let mut tids = Vec::new();
    for entry in dir {
        let entry = entry.map_err(|source| gone_or_io(pid, &path, source))?;
        if let Some(tid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            tids.push(Tid(tid));
        }
    }
    Ok(tids)
}

/// Living children; none where the kernel does not tell.
pub fn children(pid: Pid) -> Vec<Pid> {
    let mut children = Vec::new();
    for tid in tasks(pid).unwrap_or_default() {
        let path = format!("/proc/{pid}/task/{tid}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let numbers = text.split_whitespace();
        children.extend(numbers.filter_map(|n| n.parse().ok().map(Pid)));
    }
    children
}

/// All processes, as /proc lists them now.
pub fn all() -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
        .collect()
}

/// What a thread is called in its own PID namespace.
pub fn inner_number(pid: Pid, tid: Tid) -> Option<u32> {
    let bytes = slurp(
        pid,
        &PathBuf::from(format!("/proc/{pid}/task/{tid}/status")),
    )
    .ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// The process that traces the first thread, if any does.
pub fn tracer(pid: Pid) -> Option<Pid> {
    let tracer = status(pid, pid.into()).ok()?.tracer;
    if tracer == 0 {
        return None;
    }
    // It is a thread's number.
    let whole = status(Pid(tracer), Tid(tracer));
    Some(Pid(whole.map_or(tracer, |status| status.tgid)))
}

/// The /proc directory of a living thread: of the first one unless that has ended before the others.
pub fn living_dir(pid: Pid) -> Result<PathBuf> {
    if !stat(pid)?.is_dead() {
        return Ok(PathBuf::from(format!("/proc/{pid}")));
    }
    for tid in tasks(pid)? {
        if thread_stat(pid, tid).is_ok_and(|stat| !stat.is_dead()) {
            return Ok(PathBuf::from(format!("/proc/{pid}/task/{tid}")));
        }
    }
    Err(Error::NoSuchProcess { pid })
}

/// The auxiliary vector: (AT_ type, value), without AT_NULL.
pub fn auxv(pid: Pid) -> Result<Vec<(u64, u64)>> {
    let bytes = slurp(pid, &living_dir(pid)?.join("auxv"))?;
    let words: Vec<u64> = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    Ok(words
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .take_while(|(kind, _)| *kind != libc::AT_NULL)
        .collect())
}

/// The command line as the process shows it; empty for kernel threads.
pub fn command(pid: Pid) -> Result<Vec<OsString>> {
    let bytes = slurp(pid, &living_dir(pid)?.join("cmdline"))?;
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    Ok(bytes
        .split(|byte| *byte == 0)
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect())
}

/// The name of a thread.
pub fn thread_name(pid: Pid, tid: Tid) -> Result<String> {
    let bytes = slurp(pid, &PathBuf::from(format!("/proc/{pid}/task/{tid}/comm")))?;
    Ok(String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned())
}

/// How long a thread has been on a processor, in nanoseconds.
pub fn processor_time(pid: Pid, tid: Tid) -> Option<u64> {
    ProcessorTime::of(pid, tid)?.nanoseconds()
}

/// The same, to be asked at a moment when nothing may take long: opening the file takes several times as long as reading it.
pub struct ProcessorTime(File);

impl ProcessorTime {
    pub fn of(pid: Pid, tid: Tid) -> Option<ProcessorTime> {
        let file = File::open(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        Some(ProcessorTime(file))
    }

    /// Until now; `None`: the thread has ended.
    pub fn nanoseconds(&self) -> Option<u64> {
        let mut line = [0; 64];
        let len = self.0.read_at(&mut line, 0).ok()?;
        let text = std::str::from_utf8(&line[..len]).ok()?;
        text.split_whitespace().next()?.parse().ok()
    }
}

/// Faults and switches of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

/// What the kernel has counted for a thread since that began.
pub fn kernel_counts(pid: Pid, tid: Tid) -> Option<KernelCounts> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{name}")).ok();
    let stat = read("stat")?;
    // Behind the name, which may hold anything: state, five numbers, flags, minflt, cminflt, majflt.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let minor_faults = fields.nth(7)?.parse().ok()?;
    let major_faults = fields.nth(1)?.parse().ok()?;
    let status = read("status")?;
    let switches = |name: &str| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some(KernelCounts {
        minor_faults,
        major_faults,
        voluntary_switches: switches("voluntary_ctxt_switches:")?,
        involuntary_switches: switches("nonvoluntary_ctxt_switches:")?,
    })
}

/// The kernel function that a thread sleeps in, where it may be known.
pub fn wchan(pid: Pid, tid: Tid) -> String {
    match std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan")) {
        Ok(name) if !matches!(name.trim(), "" | "0") => name.trim().to_owned(),
        _ => "an unknown place".to_owned(),
    }
}

fn parse_status(text: &str) -> Status {
    fn ids(value: &str) -> [u32; 4] {
        let mut ids = [u32::MAX; 4];
        for (id, word) in ids.iter_mut().zip(value.split_whitespace()) {
            *id = word.parse().unwrap_or(u32::MAX);
        }
        ids
    }
    let hex = |value: &str| u64::from_str_radix(value, 16).unwrap_or(0);
    let mut status = Status {
        state: '?',
        uids: [u32::MAX; 4],
        gids: [u32::MAX; 4],
        ..Status::default()
    };
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        match key {
            "Name" => status.name = value.to_owned(),
            "State" => status.state = value.chars().next().unwrap_or('?'),
            "Tgid" => status.tgid = value.parse().unwrap_or(0),
            "PPid" => status.parent = value.parse().unwrap_or(0),
            "TracerPid" => status.tracer = value.parse().unwrap_or(0),
            "Uid" => status.uids = ids(value),
            "Gid" => status.gids = ids(value),
            "Threads" => status.threads = value.parse().unwrap_or(0),
            "Seccomp" => status.seccomp = value.parse().unwrap_or(0),
            "Seccomp_filters" => status.seccomp_filters = value.parse().unwrap_or(0),
            "x86_Thread_features" => status.shadow_stack = value.contains("shstk"),
            "CapPrm" => status.cap_permitted = hex(value),
            "CapEff" => status.cap_effective = hex(value),
            "SigPnd" => status.pending = hex(value),
            "ShdPnd" => status.shared_pending = hex(value),
            "SigBlk" => status.blocked = hex(value),
            "SigIgn" => status.ignored = hex(value),
            "SigCgt" => status.caught = hex(value),
            "voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches" => {
                status.switches += value.parse().unwrap_or(0);
            }
            _ => {}
        }
    }
    status
}

/// `41 (a (odd) name) S 1 ...`: the name may hold anything, so the fields count from the last parenthesis.
fn parse_stat(text: &str) -> Option<Stat> {
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let name = text.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = text[close + 1..].split_whitespace().collect();
    Some(Stat {
        name,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        flags: fields.get(6)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields_of_stat() {
        let text = "41 (a) S (b) R 7 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 3 0 991 1 1";
        let stat = parse_stat(text).unwrap();
        assert_eq!(stat.name, "a) S (b");
        assert_eq!((stat.state, stat.parent), ('R', 7));
        assert_eq!((stat.threads, stat.start_ticks), (3, 991));
    }

    #[test]
    fn a_cut_off_stat_is_no_panic() {
        for text in ["", "1", ")(", "1 (x", "1 (x) R 2 3"] {
            assert_eq!(parse_stat(text), None, "{text:?}");
        }
    }

    #[test]
    fn our_own_status_is_read() {
        let pid = Pid(std::process::id() as i32);
        let status = status(pid, pid.into()).unwrap();
        assert_eq!(status.tgid, pid.0);
        assert!(status.threads >= 1);
        // SAFETY: geteuid has no preconditions.
        assert_eq!(status.uids[1], unsafe { libc::geteuid() });
        assert!(tasks(pid).unwrap().contains(&pid.into()));
        assert!(!command(pid).unwrap().is_empty());
        assert!(
            auxv(pid)
                .unwrap()
                .iter()
                .any(|(kind, _)| *kind == libc::AT_PHDR)
        );
    }
}
