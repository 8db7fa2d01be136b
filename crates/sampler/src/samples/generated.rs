//! Code that a process has made itself, by the names that its compiler writes into `/tmp/perf-PID.map` for perf: one line a piece,
//! start and size in hexadecimal and a name that may have blanks; or into `jit-PID.dump`, see `jitdump.rs`.
//!
//! The file is whoever's who may write to /tmp: it counts if it is the process's own, is read up to a bound, and no name of it
//! reaches a terminal with anything that a terminal obeys.

mod jitdump;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::jitdump::{Dump, Told};
use super::functions::{Function, ModuleName};
use crate::proc::{self, Pid};

/// Compilers append: what is new is read at most so often, and so much in all.
const PAUSE: Duration = Duration::from_millis(50);
const MAX_BYTES: u64 = 256 << 20;
const MAX_NAME_BYTES: usize = 512;
const MAX_PIECES: usize = 1 << 20;
/// What names may take in all.
const MAX_TEXT_BYTES: usize = 128 << 20;
/// A file that is mapped is looked for no more often than this.
const SEARCH_PAUSE: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Generated {
    file: Option<(File, Arc<ModuleName>)>,
    dump: Option<(File, Arc<ModuleName>, Dump)>,
    searched: Option<Instant>,
    /// By start.
    pieces: BTreeMap<u64, Piece>,
    text_bytes: usize,
    /// Bytes that were read, and the line that has not ended yet.
    read: u64,
    rest: Vec<u8>,
    looked: Option<Instant>,
    /// Pieces came that `fresh_ranges` has not told of.
    is_fresh: bool,
}

struct Piece {
    end: u64,
    name: String,
    module: Arc<ModuleName>,
}

impl Generated {
    /// The function of the piece at an address, if the process has written of one.
    pub(super) fn function_at(&mut self, pid: Pid, address: u64) -> Option<Function> {
        if let Some(known) = self.known(address) {
            return Some(known);
        }
        if self.looked.is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        self.looked = Some(Instant::now());
        // What cannot be read has no names.
        let _ = self.read_on(pid);
        self.known(address)
    }

    /// Where all of it is, pieces next to each other as one; `None` where that is what it was.
    pub(super) fn fresh_ranges(&mut self) -> Option<Vec<(u64, u64)>> {
        if !std::mem::take(&mut self.is_fresh) {
            return None;
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (&start, &Piece { end, .. }) in &self.pieces {
            match ranges.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => ranges.push((start, end)),
            }
        }
        Some(ranges)
    }

    fn known(&self, address: u64) -> Option<Function> {
        let (_, piece) = self.pieces.range(..=address).next_back()?;
        // What is compiled again has another place and the same name: it is the same function.
        (address < piece.end).then(|| Function::Unprobed {
            module: piece.module.clone(),
            address: 0,
            name: piece.name.clone(),
        })
    }

    fn read_on(&mut self, pid: Pid) -> std::io::Result<()> {
        // Each whatever becomes of the other.
        let map = self.read_map(pid);
        self.read_dump(pid).and(map)
    }

    fn read_dump(&mut self, pid: Pid) -> std::io::Result<()> {
        if self.dump.is_none() && self.searched.is_none_or(|at| at.elapsed() >= SEARCH_PAUSE) {
            self.searched = Some(Instant::now());
            let found = open_dump(pid);
            self.dump = found.map(|(file, module)| (file, module, Dump::default()));
        }
        let Some((file, module, dump)) = &mut self.dump else {
            return Ok(());
        };
        let module = module.clone();
        for told in dump.read_on(file)? {
            match told {
                Told::Loaded { start, size, name } => {
                    let name = readable(&String::from_utf8_lossy(&name));
                    self.insert(start, size, name, &module);
                }
                Told::Moved { from, to, size } => {
                    if let Some(piece) = self.pieces.remove(&from) {
                        self.insert(to, size, piece.name, &module);
                    }
                }
            }
        }
        Ok(())
    }

    fn insert(&mut self, start: u64, size: u64, name: String, module: &Arc<ModuleName>) {
        let Some(end) = start.checked_add(size).filter(|end| *end > start) else {
            return;
        };
        let text_bytes = self.text_bytes.saturating_add(name.len());
        if name.is_empty() || self.pieces.len() >= MAX_PIECES || text_bytes > MAX_TEXT_BYTES {
            return;
        }
        self.text_bytes = text_bytes;
        let module = module.clone();
        self.pieces.insert(start, Piece { end, name, module });
        self.is_fresh = true;
    }

    fn read_map(&mut self, pid: Pid) -> std::io::Result<()> {
        if self.file.is_none() {
            self.file = open(pid)?;
        }
        let Some((file, _)) = &mut self.file else {
            return Ok(());
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut more = Vec::new();
        let left = MAX_BYTES.saturating_sub(self.read);
        self.read += file.take(left).read_to_end(&mut more)? as u64;
        self.add(&more);
        Ok(())
    }

    fn add(&mut self, more: &[u8]) {
        self.rest.extend_from_slice(more);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return;
        };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        let Some((_, module)) = &self.file else {
            return;
        };
        let module = module.clone();
        for line in whole.split(|byte| *byte == b'\n') {
            if let Some((start, size, name)) = piece(line) {
                self.insert(start, size, name, &module);
            }
        }
    }
}

fn open(pid: Pid) -> std::io::Result<Option<(File, Arc<ModuleName>)>> {
    let Ok(status) = proc::status(pid, pid.into()) else {
        return Ok(None);
    };
    let Some(inner) = proc::inner_number(pid, pid.into()) else {
        return Ok(None);
    };
    let name = format!("perf-{inner}.map");
    // As the process sees it, wherever its root is.
    let path = PathBuf::from(format!("/proc/{pid}/root/tmp/{name}"));
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.uid() != status.uids[1] {
        return Ok(None);
    }
    let module = ModuleName {
        path: format!("/tmp/{name}"),
        name,
        ..ModuleName::default()
    };
    Ok(Some((file, Arc::new(module))))
}

/// The file that whoever writes it has mapped, as it is open there.
fn open_dump(pid: Pid) -> Option<(File, Arc<ModuleName>)> {
    let user = proc::status(pid, pid.into()).ok()?.uids[1];
    let name = format!("jit-{}.dump", proc::inner_number(pid, pid.into())?);
    let maps = proc::maps(pid).ok()?;
    let mapping = maps.iter().find(|mapping| {
        let file = mapping.path.as_deref().and_then(|path| path.file_name());
        mapping.perms.exec && file.is_some_and(|file| *file == *name)
    })?;
    let file = proc::file_of(pid, mapping).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.uid() != user {
        return None;
    }
    let path = mapping.path.as_deref()?.to_string_lossy().into_owned();
    let path = readable(&path);
    let module = ModuleName {
        path,
        name,
        ..ModuleName::default()
    };
    Some((file, Arc::new(module)))
}

/// Start, size and name.
fn piece(line: &[u8]) -> Option<(u64, u64, String)> {
    let line = String::from_utf8_lossy(line);
    let mut fields = line.splitn(3, ' ');
    let mut number = || {
        let digits = fields.next()?;
        u64::from_str_radix(digits.trim_start_matches("0x"), 16).ok()
    };
    let (start, len) = (number()?, number()?);
    let name = readable(fields.next()?.trim());
    let is_piece = len > 0 && !name.is_empty();
    start.checked_add(len)?;
    is_piece.then_some((start, len, name))
}

/// A name that a terminal may be given, and not too long.
fn readable(name: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut name: String = name.chars().map(visible).collect();
    if name.len() > MAX_NAME_BYTES {
        let end = (0..=MAX_NAME_BYTES)
            .rev()
            .find(|at| name.is_char_boundary(*at));
        name.truncate(end.unwrap_or(0));
        name.push_str("...");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(generated: &Generated, address: u64) -> Option<String> {
        match generated.known(address)? {
            Function::Unprobed { name, .. } => Some(name),
            Function::Probed(_) => None,
        }
    }

    #[test]
    fn a_piece_is_named_by_its_line_however_it_comes() {
        let mut generated = Generated {
            file: Some((File::open("/dev/null").unwrap(), Arc::default())),
            ..Generated::default()
        };
        generated.add(b"1000 20 LazyCompile:*work /srv/app.js:3:1\n0x2000 10 st");
        assert_eq!(named(&generated, 0x0fff), None);
        let work = Some("LazyCompile:*work /srv/app.js:3:1".to_owned());
        assert_eq!(named(&generated, 0x1000), work);
        assert_eq!(named(&generated, 0x101f), work);
        assert_eq!(named(&generated, 0x1020), None);
        assert_eq!(named(&generated, 0x2000), None, "the line goes on");
        generated.add(b"ub\n1000 20 other\n");
        assert_eq!(named(&generated, 0x2000).as_deref(), Some("stub"));
        let ranges = vec![(0x1000, 0x1020), (0x2000, 0x2010)];
        assert_eq!(generated.fresh_ranges(), Some(ranges));
        assert_eq!(generated.fresh_ranges(), None);
        assert_eq!(named(&generated, 0x1000).as_deref(), Some("other"));
    }

    #[test]
    fn lines_that_are_none_say_nothing_and_names_obey_nobody() {
        for line in [
            "",
            "x 1 f",
            "10 f",
            "10 0 f",
            "10 1 ",
            "ffffffffffffffff 2 f",
            "10 1",
        ] {
            assert_eq!(piece(line.as_bytes()), None, "{line}");
        }
        let (_, _, name) = piece(b"10 1 a\x1b[31m\xff").unwrap();
        assert_eq!(name, "a\u{fffd}[31m\u{fffd}");
        let long = format!("10 1 {}", "\u{e9}".repeat(400));
        let (_, _, name) = piece(long.as_bytes()).unwrap();
        assert!(name.len() <= MAX_NAME_BYTES + 3 && name.ends_with("..."));
    }
}
