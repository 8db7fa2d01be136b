//! Symbols kept outside the module's own tables: .gnu_debugdata inside it, and separate debug files found by build id
//! or by .gnu_debuglink.

use crate::bytes::{c_string, u32_at};
use crate::elf::Elf;
use crate::regular;
use std::path::{Path, PathBuf};

/// What decompressed .gnu_debugdata may take. Fedora's largest are around 20 MB.
const DEBUGDATA_LIMIT: u64 = 256 << 20;

/// Where to look for a module's separate debug file.
#[derive(Clone, Debug, Default)]
pub struct DebugLookup {
    /// Directories laid out like `/usr/lib/debug`. Empty: look nowhere.
    pub roots: Vec<PathBuf>,
    /// The directory in which the module lies, for .gnu_debuglink.
    pub directory: Option<PathBuf>,
}

impl DebugLookup {
    /// Only what is in the module itself.
    pub fn none() -> Self {
        Self::default()
    }

    /// The places where debuggers look for a file that lies at `path`.
    pub fn for_path(path: &Path) -> Self {
        let real = std::fs::canonicalize(path).ok();
        let directory = real.as_deref().unwrap_or(path).parent().map(Path::to_owned);
        DebugLookup {
            roots: vec![PathBuf::from("/usr/lib/debug")],
            directory,
        }
    }
}

/// Reads the separate debug file of `elf`; one that does not belong to this very build is passed over.
pub(crate) fn find(elf: &Elf<'_>, lookup: &DebugLookup) -> Option<Vec<u8>> {
    let build_id = elf.build_id();
    let by_id = by_build_id(elf, lookup)
        .into_iter()
        .find_map(|path| read_matching(&path, elf, |debug, _| debug.build_id() == build_id));
    by_id.or_else(|| {
        let (_, crc) = debug_link(elf)?;
        by_link(elf, lookup).into_iter().find_map(|path| {
            read_matching(&path, elf, |debug, data| {
                match (&build_id, debug.build_id()) {
                    (Some(ours), Some(theirs)) => *ours == theirs,
                    _ => crc32(data) == crc,
                }
            })
        })
    })
}

/// Every file that may be the separate debug file of what is in `data`, there or not.
pub fn debug_candidates(data: &[u8], lookup: &DebugLookup) -> Vec<PathBuf> {
    let Ok(elf) = Elf::parse("", data) else {
        return Vec::new();
    };
    let mut paths = by_build_id(&elf, lookup);
    paths.extend(by_link(&elf, lookup));
    paths
}

fn by_build_id(elf: &Elf<'_>, lookup: &DebugLookup) -> Vec<PathBuf> {
    let Some(id) = elf.build_id() else {
        return Vec::new();
    };
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let (first, rest) = hex.split_at(2.min(hex.len()));
    let name = format!("{rest}.debug");
    let roots = lookup.roots.iter();
    roots
        .map(|root| root.join(".build-id").join(first).join(&name))
        .collect()
}

fn by_link(elf: &Elf<'_>, lookup: &DebugLookup) -> Vec<PathBuf> {
    let (Some((name, _)), Some(directory)) = (debug_link(elf), lookup.directory.as_deref()) else {
        return Vec::new();
    };
    let mut paths = vec![directory.join(&name), directory.join(".debug").join(&name)];
    paths.extend(lookup.roots.iter().map(|root| {
        root.join(directory.strip_prefix("/").unwrap_or(directory))
            .join(&name)
    }));
    paths
}

fn read_matching(
    path: &Path,
    elf: &Elf<'_>,
    belongs: impl Fn(&Elf<'_>, &[u8]) -> bool,
) -> Option<Vec<u8>> {
    let data = regular::read(path).ok()?;
    // A debug link may name the file itself.
    if data.len() == elf.data.len() && data == elf.data {
        return None;
    }
    let debug = Elf::parse("", &data).ok()?;
    belongs(&debug, &data).then_some(())?;
    Some(data)
}

/// File name and checksum. A name with a slash could lead anywhere and is not followed.
fn debug_link(elf: &Elf<'_>) -> Option<(String, u32)> {
    let contents = elf.contents(elf.header(".gnu_debuglink")?)?;
    let name = c_string(contents, 0, 4096)?;
    let crc = u32_at(contents, (name.len() + 1).next_multiple_of(4))?;
    let name = std::str::from_utf8(name).ok()?;
    (!name.is_empty() && !name.contains('/') && name != "..").then(|| (name.to_owned(), crc))
}

fn crc32(data: &[u8]) -> u32 {
    let mut table = [0u32; 256];
    for (i, slot) in table.iter_mut().enumerate() {
        *slot = (0..8).fold(i as u32, |c, _| {
            if c & 1 == 1 {
                0xedb8_8320 ^ (c >> 1)
            } else {
                c >> 1
            }
        });
    }
    !data.iter().fold(!0u32, |crc, &b| {
        table[((crc ^ u32::from(b)) & 0xff) as usize] ^ (crc >> 8)
    })
}

/// The small ELF file that some distributions leave in .gnu_debugdata when they strip.
pub(crate) fn embedded(elf: &Elf<'_>) -> Option<Vec<u8>> {
    let packed = elf.contents(elf.header(".gnu_debugdata")?)?;
    let size = unpacked_size(packed)?;
    if size > DEBUGDATA_LIMIT {
        return None;
    }
    let mut out = Vec::new();
    lzma_rs::xz_decompress(&mut &packed[..], &mut out).ok()?;
    Some(out)
}

/// Adds up what the LZMA2 chunks of the first block of an .xz stream say they unpack to: the decoder holds all of it in
/// memory, so the sum has to be known to be harmless before it starts.
fn unpacked_size(xz: &[u8]) -> Option<u64> {
    const STREAM_HEADER: usize = 12;
    if xz.get(..6)? != b"\xfd7zXZ\0" {
        return None;
    }
    let block_header = (usize::from(*xz.get(STREAM_HEADER)?) + 1) * 4;
    let mut at = STREAM_HEADER + block_header;
    let mut total = 0u64;
    let be16 = |at: usize| {
        Some(u64::from(u16::from_be_bytes(
            xz.get(at..at + 2)?.try_into().ok()?,
        )))
    };
    loop {
        let control = *xz.get(at)?;
        match control {
            0 => break,
            1 | 2 => {
                let size = be16(at + 1)? + 1;
                total += size;
                at += 3 + size as usize;
            }
            3..=0x7f => return None,
            _ => {
                total += (u64::from(control & 0x1f) << 16) + be16(at + 1)? + 1;
                let properties = usize::from(control >= 0xc0);
                at += 5 + properties + be16(at + 3)? as usize + 1;
            }
        }
    }
    // After the block come its padding and checksum and then the index, which starts with a zero byte; a second
    // block would start with its non-zero header size. Nobody writes .gnu_debugdata in several blocks.
    let check = match xz.get(7)? & 15 {
        0 => 0,
        1 => 4,
        4 => 8,
        10 => 32,
        _ => return None,
    };
    let block_end = STREAM_HEADER + (at + 1 - STREAM_HEADER).next_multiple_of(4) + check;
    (*xz.get(block_end)? == 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn crc32_is_the_one_of_debug_links() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn the_unpacked_size_of_an_xz_stream_is_known_before_it_is_unpacked() {
        for size in [1usize, 100, 70_000, 9_000_000] {
            let plain: Vec<u8> = (0..size).map(|i| ((i * i) >> 7) as u8).collect();
            let Some(packed) = xz(&plain) else { return };
            assert_eq!(unpacked_size(&packed), Some(size as u64));
            let mut out = Vec::new();
            lzma_rs::xz_decompress(&mut &packed[..], &mut out).unwrap();
            assert!(out == plain);
        }
    }

    fn xz(plain: &[u8]) -> Option<Vec<u8>> {
        use std::io::Write;
        let mut child = Command::new("xz")
            .arg("-c")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut stdin = child.stdin.take()?;
        let plain = plain.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&plain));
        let output = child.wait_with_output().ok()?;
        writer.join().ok()?.ok()?;
        Some(output.stdout)
    }
}
