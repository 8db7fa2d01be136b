//! The region as seen from outside: the shared memory that a target carries, mapped here or read through the kernel.

mod bounds;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use thalweg_abi as shm;

use crate::error::{Error, Result};
use crate::proc::{self, Mapping, Pid, RemoteAddr};

pub mod memfd;

pub use crate::remote_memory::{read_remote, write_remote};
pub use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

/// A structure of the contract: integers without padding, so that any bytes are one.
pub trait Contract: FromBytes + IntoBytes + Immutable {}
impl<T: FromBytes + IntoBytes + Immutable> Contract for T {}

/// Where the shared memory is read from.
pub enum Shared {
    /// The memfd itself: works after the target's death too. Not mapped here: reading what was never written must not
    /// fill it.
    File { file: File, len: u64 },
    /// Through the kernel, where the file behind the mapping may not be opened.
    Remote { pid: Pid, start: u64, len: u64 },
}

fn file_error(error: std::io::Error) -> Error {
    Error::System {
        doing: "the target's shared memory cannot be accessed".into(),
        source: error,
    }
}

fn out_of_bounds(offset: u64, len: u64) -> Error {
    Error::Damaged(format!(
        "the target's data is damaged: {len} bytes at {offset:#x} are outside of it"
    ))
}

impl Shared {
    /// The same memory once more, for another thread.
    pub fn try_clone(&self) -> Result<Shared> {
        Ok(match self {
            Shared::File { file, len } => Shared::File {
                file: file.try_clone().map_err(file_error)?,
                len: *len,
            },
            &Shared::Remote { pid, start, len } => Shared::Remote { pid, start, len },
        })
    }

    fn len(&self) -> u64 {
        let (Shared::File { len, .. } | Shared::Remote { len, .. }) = self;
        *len
    }

    fn check(&self, offset: u64, count: u64) -> Result<()> {
        match offset.checked_add(count) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(out_of_bounds(offset, count)),
        }
    }

    /// The target may write meanwhile: a torn value is corrected or tolerated by the reader.
    pub fn read_bytes(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.check(offset, into.len() as u64)?;
        match self {
            Shared::File { file, .. } => file.read_exact_at(into, offset).map_err(file_error),
            Shared::Remote { pid, start, .. } => {
                read_remote(*pid, RemoteAddr(start + offset), into)
            }
        }
    }

    pub fn read<T: Contract>(&self, offset: u64) -> Result<T> {
        let mut value = T::new_zeroed();
        self.read_bytes(offset, value.as_mut_bytes())?;
        Ok(value)
    }

    /// So many of them in a row.
    pub fn read_all<T: Contract>(&self, offset: u64, count: u64) -> Result<Vec<T>> {
        let bytes = self.read_vec(offset, count.saturating_mul(size_of::<T>() as u64))?;
        let all = bytes.chunks_exact(size_of::<T>());
        Ok(all.flat_map(T::read_from_bytes).collect())
    }

    /// As many bytes as the target has filled of it, and some more. Most of the memory is address
    /// space only: no honest target says that there is more to be read.
    pub fn filled(&self) -> Result<u64> {
        const SLACK: u64 = 16 << 20;
        // Where that cannot be asked: more than any honest target has of one kind.
        const MOST_REMOTE: u64 = 4 << 30;
        match self {
            Shared::File { file, .. } => {
                Ok(file.metadata().map_err(file_error)?.blocks() * 512 + SLACK)
            }
            Shared::Remote { .. } => Ok(MOST_REMOTE),
        }
    }

    pub fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        self.check(offset, len)?;
        let most = self.filled()?;
        if len > most {
            return Err(out_of_bounds(offset, len));
        }
        let mut bytes = vec![0; len as usize];
        self.read_bytes(offset, &mut bytes)?;
        Ok(bytes)
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len() as u64)?;
        match self {
            Shared::File { file, .. } => file.write_all_at(bytes, offset).map_err(file_error),
            Shared::Remote { pid, start, .. } => {
                write_remote(*pid, RemoteAddr(start + offset), bytes)
            }
        }
    }

    /// Adds to a word of the header that threads of the target add to as well. Returns what it was.
    pub fn add_to(&self, offset: u64, count: u32) -> Result<u32> {
        use std::os::fd::AsRawFd;
        use std::sync::atomic::{AtomicU32, Ordering};
        self.check(offset, 4)?;
        let page = shm::PAGE as usize;
        let at = offset as usize;
        if at + 4 > page || !at.is_multiple_of(4) {
            return Err(out_of_bounds(offset, 4));
        }
        let Shared::File { file, .. } = self else {
            // Where the memory cannot be mapped, a thread that adds in between is not seen: two functions share a number then.
            let mut word = [0; 4];
            self.read_bytes(offset, &mut word)?;
            let was = u32::from_le_bytes(word);
            self.write(offset, &was.wrapping_add(count).to_le_bytes())?;
            return Ok(was);
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of the first page; the memory's length is sealed, so that it stays there.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page,
                access,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(file_error(std::io::Error::last_os_error()));
        }
        // SAFETY: an aligned word of the mapping, which others touch atomically only; then nobody has its address any more.
        unsafe {
            let word = AtomicU32::from_ptr(start.cast::<u8>().add(at).cast());
            let was = word.fetch_add(count, Ordering::Relaxed);
            libc::munmap(start, page);
            Ok(was)
        }
    }

    /// What this process has as its standard input, if it is beyond doubt a shared memory of ours.
    pub fn from_stdin() -> Option<Shared> {
        Shared::opened_at(Path::new("/proc/self/fd/0"))
    }

    /// The same for any link of /proc.
    pub fn opened_at(link: &Path) -> Option<Shared> {
        let file = memfd::open_sealed(link)?;
        let len = file.metadata().ok()?.len();
        Some(Shared::File { file, len })
    }

    /// A file that a copy made by `thalweg instrument` has left, or still writes. Whoever wrote it may have written anything:
    /// nothing is mapped, and what is cut off is an error.
    pub fn of_region_file(path: &Path) -> Result<Shared> {
        use std::os::unix::fs::OpenOptionsExt;
        let io = |source| Error::Io {
            path: path.to_path_buf(),
            source,
        };
        let mut options = File::options();
        let options = options.read(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        let shared = Shared::File {
            len: meta.len(),
            file,
        };
        let refused = |why: &str| Error::Refused(format!("{}: {why}", path.display()));
        if !meta.is_file() || meta.len() < shm::PAGE {
            return Err(refused("is no file of a program that counts itself"));
        }
        let header = shared.header()?;
        if header.magic != shm::MAGIC || header.flags & shm::HEADER_AHEAD == 0 {
            return Err(refused("is no file of a program that counts itself"));
        }
        if header.version != shm::VERSION {
            return Err(refused(&format!(
                "was written by a program that another version of thalweg has instrumented (layout {}, this one has {})",
                header.version,
                shm::VERSION
            )));
        }
        match header.state {
            shm::STATE_ATTACHED => Ok(shared),
            _ => Err(refused("its program never began to count")),
        }
    }

    /// The memfd once more, for another process.
    pub fn file(&self) -> Result<File> {
        match self {
            Shared::File { file, .. } => file.try_clone().map_err(file_error),
            Shared::Remote { .. } => Err(Error::Refused(
                "the target's shared memory cannot be opened here".into(),
            )),
        }
    }

    /// `None`: read through the kernel.
    pub fn identity(&self) -> Option<Identity> {
        let Shared::File { file, .. } = self else {
            return None;
        };
        file.metadata().ok().map(|meta| Identity::of_file(&meta))
    }

    /// Forbids all further writing, which the kernel does only when nobody has the memory mapped for it: `Some(true)`.
    /// `None`: cannot be asked.
    pub fn seal(&self) -> Option<bool> {
        use std::os::fd::AsRawFd;
        let Shared::File { file, .. } = self else {
            return None;
        };
        // SAFETY: numbers only.
        let result =
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        match std::io::Error::last_os_error().raw_os_error() {
            _ if result == 0 => Some(true),
            Some(libc::EBUSY) => Some(false),
            _ => None,
        }
    }

    /// With every figure inside its bounds, whatever the target has written there.
    pub fn header(&self) -> Result<shm::Header> {
        let mut header = self.read(0)?;
        bounds::bound(&mut header, self.len());
        Ok(header)
    }

    pub fn set_state(&self, state: u32) -> Result<()> {
        self.write(
            std::mem::offset_of!(shm::Header, state) as u64,
            &state.to_le_bytes(),
        )
    }
}

/// Descriptors of a shared memory of ours: open only until it is mapped.
pub fn descriptors(pid: Pid) -> Vec<i32> {
    let name = format!("/memfd:{}", shm::MEMFD_NAME);
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| {
            std::fs::read_link(entry.path())
                .is_ok_and(|link| link.to_string_lossy().trim_end_matches(" (deleted)") == name)
        })
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// All shared memories of ours that a process has mapped: more than one only if a handler kept an earlier one alive.
pub fn mappings(pid: Pid) -> Result<Vec<Mapping>> {
    Ok(proc::maps(pid)?.into_iter().filter(is_ours).collect())
}

/// The shared memory that a process carries: the attached one if there are several.
pub fn find(pid: Pid) -> Result<Option<(Mapping, Shared, shm::Header)>> {
    let mut found = None;
    for mapping in mappings(pid)? {
        let shared = open(pid, &mapping)?;
        let header = shared.header()?;
        let attached = header.magic == shm::MAGIC && header.state == shm::STATE_ATTACHED;
        if attached || found.is_none() {
            found = Some((mapping, shared, header));
        }
        if attached {
            break;
        }
    }
    Ok(found)
}

/// Names one shared memory, whoever maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    dev: (u32, u32),
    inode: u64,
}

impl Identity {
    pub fn of(mapping: &Mapping) -> Identity {
        Identity {
            dev: mapping.dev,
            inode: mapping.inode,
        }
    }

    /// As the memory map of those who map it shows it.
    fn of_file(meta: &std::fs::Metadata) -> Identity {
        Identity {
            dev: (libc::major(meta.dev()), libc::minor(meta.dev())),
            inode: meta.ino(),
        }
    }

    /// Of a memory that is open here.
    pub(crate) fn of_shared(shared: &Shared) -> Result<Identity> {
        match shared {
            Shared::File { file, .. } => {
                let meta = file.metadata().map_err(file_error)?;
                Ok(Identity::of_file(&meta))
            }
            Shared::Remote { pid, start, .. } => mappings(*pid)?
                .iter()
                .find(|mapping| mapping.start.0 == *start)
                .map(Identity::of)
                .ok_or_else(|| Error::NoLongerAttached { pid: *pid }),
        }
    }
}

/// Every process that maps the shared memory: the target and those of its fork children that have not called exec.
pub fn carriers(identity: Identity) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
        .filter(|&pid| {
            let ours = std::process::id() as i32 == pid.0;
            !ours
                && mappings(pid)
                    .is_ok_and(|found| found.iter().any(|m| Identity::of(m) == identity))
        })
        .collect()
}

/// Whether a process has that shared memory at that address.
pub fn carries(pid: Pid, identity: Identity, start: RemoteAddr) -> bool {
    mappings(pid).is_ok_and(|found| {
        found
            .iter()
            .any(|m| m.start == start && Identity::of(m) == identity)
    })
}

/// A memfd of ours, or the file in which a program that counts itself keeps its region.
pub fn is_ours(mapping: &Mapping) -> bool {
    is_memfd(mapping) || is_region_file(mapping)
}

fn is_region_file(mapping: &Mapping) -> bool {
    let path = mapping.path.as_ref().and_then(|path| path.to_str());
    mapping.perms.shared
        && mapping.offset == 0
        && path.is_some_and(|path| {
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            path.ends_with(shm::REGION_SUFFIX)
        })
}

fn is_memfd(mapping: &Mapping) -> bool {
    let name = format!("/memfd:{}", shm::MEMFD_NAME);
    mapping.perms.shared
        && mapping.offset == 0
        && mapping
            .path
            .as_ref()
            .and_then(|p| p.to_str())
            .is_some_and(|p| {
                p.strip_prefix(name.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
            })
}

/// Opens the shared memory that `mapping` shows. Where the file behind it cannot be opened, or is not beyond doubt ours, the
/// kernel copies for us, from and to what the target itself may read and write.
pub fn open(pid: Pid, mapping: &Mapping) -> Result<Shared> {
    let len = mapping.end.0 - mapping.start.0;
    Ok(match memfd::open(pid, mapping) {
        Some((file, size)) => Shared::File {
            file,
            len: len.min(size),
        },
        None => Shared::Remote {
            pid,
            start: mapping.start.0,
            len,
        },
    })
}
