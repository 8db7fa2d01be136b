//! Programs that run another program inside themselves: valgrind, qemu-user, DynamoRIO, Pin, rr.
//!
//! They read the code of their guest and run a translation of it, or rely on each of its instructions. A patched guest would
//! run into stubs that are no code to them, and its probes would be theirs. So they are left alone as a whole.
//!
//! Known by the executable's name together with what its file holds, or by a library of theirs that is mapped.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::{Mapping, Pid, maps};

/// What the file name of the executable is like, what its contents have to hold, and whose it is.
type Program = (fn(&str) -> bool, &'static [u8], &'static str);

const PROGRAMS: [Program; 4] = [
    (
        |name| name.ends_with("-amd64-linux"),
        b"VALGRIND_LAUNCHER",
        "valgrind",
    ),
    (
        |name| name.starts_with("qemu-"),
        b"QEMU_LD_PREFIX",
        "qemu's user mode",
    ),
    (|name| name == "libdynamorio.so", b"dynamorio", "DynamoRIO"),
    (|name| name == "pinbin", b"PIN_", "Pin"),
];

/// How the name of a mapped library begins, and whose it is.
const LIBRARIES: [(&str, &str); 5] = [
    ("vgpreload_", "valgrind"),
    ("libdynamorio.so", "DynamoRIO"),
    ("librrpreload.so", "rr"),
    ("librrpage.so", "rr"),
    ("libpinvm.so", "Pin"),
];

/// The host that this executable is, opened as `file`.
pub fn host_program(path: &Path, file: &mut File) -> Option<&'static str> {
    let name = path.file_name()?.to_string_lossy();
    let mut likely = PROGRAMS.iter().filter(|(is_named, ..)| is_named(&name));
    let (_, mark, host) = likely.next()?;
    contains(file, mark).unwrap_or(false).then_some(host)
}

/// The host that runs in this process, by the libraries that it has brought along.
pub fn host_inside(pid: Pid) -> Option<&'static str> {
    maps(pid).ok()?.iter().find_map(of_mapping)
}

fn of_mapping(mapping: &Mapping) -> Option<&'static str> {
    let path = mapping.path.as_ref().filter(|_| mapping.inode != 0)?;
    let name = path.file_name()?.to_string_lossy();
    let known = LIBRARIES
        .iter()
        .find(|(begins, _)| name.starts_with(begins));
    known.map(|(_, host)| *host)
}

fn contains(file: &mut File, mark: &[u8]) -> io::Result<bool> {
    let mut bytes = Vec::new();
    loop {
        let got = file.take(1 << 20).read_to_end(&mut bytes)?;
        if bytes.windows(mark.len()).any(|window| window == mark) {
            return Ok(true);
        }
        if got == 0 {
            return Ok(false);
        }
        // The mark may lie across the border.
        bytes.drain(..bytes.len().saturating_sub(mark.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_alone_makes_no_host() {
        let path = std::env::temp_dir().join(format!("thalweg-hosts-{}", std::process::id()));
        let verdict = |name: &str, contents: &[u8]| {
            std::fs::write(&path, contents).unwrap();
            host_program(Path::new(name), &mut File::open(&path).unwrap())
        };
        // Across the border of two pieces.
        let mut long = vec![b'V'; (1 << 20) - 5];
        long.extend(b"VALGRIND_LAUNCHER and more");
        assert_eq!(verdict("/x/memcheck-amd64-linux", &long), Some("valgrind"));
        assert_eq!(verdict("/x/memcheck-amd64-linux", b"something else"), None);
        assert_eq!(verdict("/x/memcheck", &long), None);
        let qemu = verdict("qemu-x86_64-static", b"..QEMU_LD_PREFIX..");
        assert_eq!(qemu, Some("qemu's user mode"));
        assert_eq!(verdict("qemu-system-x86_64", b"a machine"), None);
        std::fs::remove_file(&path).unwrap();
    }
}
