//! Which processes are chosen, out of `/proc`. What a process says of itself is only compared.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::config::Group;

/// A process may have a command line of any length.
const MAX_READ_BYTES: u64 = 64 << 10;
/// A process with so many mappings has megabytes of them.
const MAX_MAPS_BYTES: u64 = 16 << 20;
/// What an attached process has mapped.
const MAPPED: &str = "/memfd:thalweg";

/// A number is given again; with the time of its start it is one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    pub pid: u32,
    /// In ticks since boot.
    pub start: u64,
}

#[derive(Clone, Debug)]
pub struct Process {
    pub id: Id,
    pub pid: u32,
    pub name: String,
    /// The first group that chooses it.
    pub group: usize,
}

/// What is never recorded: thalweg's own programs.
pub struct Own {
    files: Vec<(u64, u64)>,
}

impl Own {
    pub fn new(thalweg: &Path) -> Own {
        let own = std::env::current_exe().ok();
        let files = [Some(thalweg.to_owned()), own].into_iter().flatten();
        let files = files.filter_map(|path| fs::metadata(path).ok());
        Own {
            files: files.map(|file| (file.dev(), file.ino())).collect(),
        }
    }

    fn has(&self, pid: u32) -> bool {
        pid == std::process::id()
            || fs::metadata(format!("/proc/{pid}/exe"))
                .is_ok_and(|file| self.files.contains(&(file.dev(), file.ino())))
    }
}

/// All that are chosen now, in the order of their numbers.
pub fn chosen(groups: &[Group], own: &Own) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<Process> = numbers
        .filter_map(|pid| choose(pid, groups))
        .filter(|process| !own.has(process.pid))
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

fn choose(pid: u32, groups: &[Group]) -> Option<Process> {
    let stat = Stat::of(pid)?;
    // Kernel threads and processes that have ended have none.
    let command = text(pid, "cmdline").filter(|command| !command.is_empty())?;
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let program = program
        .as_deref()
        .and_then(Path::file_name)
        .map(|name| name.to_string_lossy().into_owned());
    let command = command.trim_end_matches('\0').replace('\0', " ");
    let has_name = |group: &Group| match &group.name {
        Some(name) => {
            name.is_match(&stat.name) || program.as_deref().is_some_and(|text| name.is_match(text))
        }
        None => true,
    };
    let has_cgroup = |group: &Group| match &group.cgroup {
        Some(pattern) => text(pid, "cgroup").is_some_and(|text| {
            // number:controllers:path
            let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
            paths.any(|path| pattern.is_match(path))
        }),
        None => true,
    };
    let group = groups.iter().position(|group| {
        has_name(group)
            && group
                .command
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(&command))
            && has_cgroup(group)
            && group
                .uid
                .is_none_or(|uid| status(pid, "Uid:") == Some(uid.into()))
    })?;
    Some(Process {
        id: Id {
            pid,
            start: stat.start,
        },
        pid,
        name: program.unwrap_or(stat.name),
        group,
    })
}

/// Why it is left alone for now.
pub fn taken(pid: u32) -> Option<&'static str> {
    if status(pid, "TracerPid:").is_some_and(|tracer| tracer != 0) {
        return Some("it is traced");
    }
    is_attached(pid).then_some("it is attached already")
}

pub fn is_attached(pid: u32) -> bool {
    read(&format!("/proc/{pid}/maps"), MAX_MAPS_BYTES).is_some_and(|maps| {
        String::from_utf8_lossy(&maps)
            .lines()
            .any(|line| line.contains(MAPPED))
    })
}

/// Somebody's `thalweg record -p PID` lives: whatever it left in the process is its own to take
/// out.
pub fn is_recorded(pid: u32) -> bool {
    let wanted = pid.to_string();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.any(|other| {
        let command = text(other, "cmdline").unwrap_or_default();
        let mut words = command.split('\0').skip(1);
        words.next() == Some("record")
            && words.any(|word| word == "-p")
            && words.next() == Some(&*wanted)
    })
}

/// It has not ended, and its number is not another's.
pub fn is_alive(id: Id) -> bool {
    Stat::of(id.pid).is_some_and(|stat| stat.start == id.start && !stat.has_ended)
}

struct Stat {
    name: String,
    has_ended: bool,
    start: u64,
}

impl Stat {
    /// `pid (name) state ...`, and the start is the 22nd; the name may have blanks and brackets.
    fn of(pid: u32) -> Option<Stat> {
        let stat = text(pid, "stat")?;
        let (before, after) = stat.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        let mut fields = after.split_whitespace();
        let state = fields.next()?;
        Some(Stat {
            name: name.to_owned(),
            has_ended: matches!(state, "Z" | "X" | "x"),
            start: fields.nth(18)?.parse().ok()?,
        })
    }
}

/// The first number of a line.
fn status(pid: u32, line: &str) -> Option<u64> {
    let status = text(pid, "status")?;
    let value = status.lines().find_map(|text| text.strip_prefix(line))?;
    value.split_whitespace().next()?.parse().ok()
}

fn text(pid: u32, file: &str) -> Option<String> {
    let bytes = read(&format!("/proc/{pid}/{file}"), MAX_READ_BYTES)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn read(path: &str, limit: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .ok()?
        .take(limit)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_there_and_is_never_chosen() {
        let pid = std::process::id();
        let start = Stat::of(pid).unwrap().start;
        let id = Id { pid, start };
        assert!(is_alive(id) && !is_attached(pid));
        assert!(!is_alive(Id {
            start: id.start + 1,
            ..id
        }));
        let all = Group {
            name: Some(regex::Regex::new(".").unwrap()),
            ..Group::default()
        };
        assert!(choose(pid, std::slice::from_ref(&all)).is_some());
        let own = Own::new(Path::new("/nonexistent"));
        let found = chosen(&[all], &own);
        assert!(found.iter().all(|process| process.pid != pid));
    }
}
