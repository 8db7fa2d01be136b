//! The memory map, one line of /proc/PID/maps at a time.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::{Pid, RemoteAddr, living_dir, slurp};
use crate::error::{Error, Result};

/// `rwxp` of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Perms {
    pub read: bool,
    pub write: bool,
    pub exec: bool,
    pub shared: bool,
}

/// One line of /proc/PID/maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    pub start: RemoteAddr,
    pub end: RemoteAddr,
    pub perms: Perms,
    /// Offset of `start` in the file.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub dev: (u32, u32),
    /// 0: no file.
    pub inode: u64,
    /// `None` for anonymous memory; `[vdso]`, `[stack]` and the like are kept as they are written, and so is the
    /// ` (deleted)` behind a file that has no name any more.
    pub path: Option<PathBuf>,
}

impl Mapping {
    pub fn contains(&self, addr: RemoteAddr) -> bool {
        self.start <= addr && addr < self.end
    }

    pub fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a file lies behind it (`[vdso]`, heap and the like have none).
    pub fn is_file(&self) -> bool {
        self.inode != 0 && self.path.is_some()
    }
}

/// All memory mappings, by address.
pub fn maps(pid: Pid) -> Result<Vec<Mapping>> {
    let path = living_dir(pid)?.join("maps");
    let bytes = slurp(pid, &path)?;
    bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            parse_line(line).ok_or_else(|| Error::Malformed {
                path: path.clone(),
                what: format!("the line {:?}", String::from_utf8_lossy(line)),
            })
        })
        .collect()
}

/// `7f00-7f10 r-xp 00001000 fe:01 1234     /usr/lib/x.so`
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let start = rest.iter().position(|byte| *byte != b' ')?;
        let end = rest[start..]
            .iter()
            .position(|byte| *byte == b' ')
            .map_or(rest.len(), |len| start + len);
        let word = std::str::from_utf8(&rest[start..end]).ok();
        rest = &rest[end..];
        word
    };
    let (start, end) = word()?.split_once('-')?;
    let perms = word()?.as_bytes();
    let offset = word()?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let mapping = Mapping {
        start: RemoteAddr(u64::from_str_radix(start, 16).ok()?),
        end: RemoteAddr(u64::from_str_radix(end, 16).ok()?),
        perms: Perms {
            read: *perms.first()? == b'r',
            write: *perms.get(1)? == b'w',
            exec: *perms.get(2)? == b'x',
            shared: *perms.get(3)? == b's',
        },
        offset: u64::from_str_radix(offset, 16).ok()?,
        dev: (
            u32::from_str_radix(major, 16).ok()?,
            u32::from_str_radix(minor, 16).ok()?,
        ),
        inode,
        path: name(rest),
    };
    (mapping.start < mapping.end).then_some(mapping)
}

/// The rest of the line. The kernel escapes a newline as `\012`, and nothing else.
fn name(rest: &[u8]) -> Option<PathBuf> {
    let start = rest.iter().position(|byte| *byte != b' ')?;
    let mut bytes = Vec::with_capacity(rest.len() - start);
    let mut left = &rest[start..];
    while let Some((first, tail)) = left.split_first() {
        if let Some(after) = left.strip_prefix(b"\\012") {
            bytes.push(b'\n');
            left = after;
        } else {
            bytes.push(*first);
            left = tail;
        }
    }
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_spaces_and_a_newline_in_its_file_name() {
        let line =
            b"7f0000001000-7f0000003000 r-xs 00002000 fe:1a 77      /tmp/a b\\012c (deleted)";
        let mapping = parse_line(line).unwrap();
        assert_eq!(mapping.start, RemoteAddr(0x7f00_0000_1000));
        assert_eq!(mapping.len(), 0x2000);
        assert!(mapping.perms.exec && mapping.perms.shared && !mapping.perms.write);
        assert_eq!(
            (mapping.offset, mapping.dev, mapping.inode),
            (0x2000, (0xfe, 0x1a), 77)
        );
        assert_eq!(
            mapping.path.unwrap().to_str(),
            Some("/tmp/a b\nc (deleted)")
        );
    }

    #[test]
    fn anonymous_memory_has_no_name() {
        let mapping = parse_line(b"1000-2000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!(mapping.path, None);
        assert!(!mapping.is_file());
    }

    #[test]
    fn nonsense_is_refused_and_no_panic() {
        for line in [
            "",
            "x",
            "2000-1000 rw-p 0 0:0 0",
            "1-2 r 0 0:0 0",
            "1-2 rw-p 0 00 0",
            "1-2 rwxp 0 0:0",
        ] {
            assert_eq!(parse_line(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn our_own_code_is_in_our_own_map() {
        let maps = maps(Pid(std::process::id() as i32)).unwrap();
        let here = RemoteAddr(our_own_code_is_in_our_own_map as *const () as u64);
        let mapping = maps.iter().find(|mapping| mapping.contains(here)).unwrap();
        assert!(mapping.perms.exec && mapping.is_file());
    }
}
