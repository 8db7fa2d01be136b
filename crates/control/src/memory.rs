//! The region as seen from outside: the shared memory that a target carries, mapped here or read through the kernel.

use std::fs::File;
use std::os::fd::AsRawFd;

use thalweg_shm as shm;

use crate::error::{Error, Result};
use crate::proc::{self, Mapping, Pid, RemoteAddr};

/// A copy of one structure of the contract.
pub fn zeroed<T: Contract>() -> T {
    // SAFETY: every contract type consists of integers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// The structures of the contract, all integers.
///
/// # Safety
/// Implemented only for `repr(C)` structures of integers: every bit pattern is a value.
pub unsafe trait Contract: Sized {}
// SAFETY: repr(C) structures of integers and arrays of integers.
unsafe impl Contract for shm::Header {}
// SAFETY: as above.
unsafe impl Contract for shm::SharedSlot {}
// SAFETY: as above.
unsafe impl Contract for shm::PrivateSlot {}
// SAFETY: as above.
unsafe impl Contract for shm::Frame {}
// SAFETY: as above.
unsafe impl Contract for shm::Node {}

pub fn bytes_of<T: Contract>(value: &T) -> &[u8] {
    // SAFETY: contract types are integers throughout; reading them as bytes is defined for the non-padding ones, and
    // the asserts in the contract crate leave no padding inside.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Where the shared memory is read from.
pub enum Shared {
    /// Mapped into this process: works after the target's death too.
    Mapped(Map),
    /// Through the kernel, where the file behind the mapping may not be opened.
    Remote { pid: Pid, start: u64, len: u64 },
}

/// A shared mapping of the memfd in our own address space.
pub struct Map {
    start: *mut u8,
    len: u64,
}

// SAFETY: the mapping is only accessed by copies through raw pointers; it belongs to no thread.
unsafe impl Send for Map {}
// SAFETY: as above; concurrent copies race only with the target, which is accounted for by the readers.
unsafe impl Sync for Map {}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by Map::new and nothing refers to it any more.
        unsafe { libc::munmap(self.start.cast(), self.len as usize) };
    }
}

impl Map {
    pub fn new(file: &File, len: u64) -> Result<Map> {
        // SAFETY: a fresh mapping, placed by the kernel.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::Other(format!(
                "cannot map the target's {} GiB of (mostly untouched) shared memory: {}; is the address space limited (ulimit -v)?",
                len >> 30,
                std::io::Error::last_os_error()
            )));
        }
        Ok(Map { start: start.cast(), len })
    }

    fn check(&self, offset: u64, len: u64) -> Result<*mut u8> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(out_of_bounds(offset, len));
        }
        // SAFETY: within the mapping, as just checked.
        Ok(unsafe { self.start.add(offset as usize) })
    }
}

fn out_of_bounds(offset: u64, len: u64) -> Error {
    Error::Other(format!("the target's data is damaged: {len} bytes at {offset:#x} are outside of it"))
}

impl Shared {
    pub fn read_bytes(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Shared::Mapped(map) => {
                let from = map.check(offset, into.len() as u64)?;
                // SAFETY: checked; the target may write meanwhile, a torn value is corrected or tolerated by the reader.
                unsafe { std::ptr::copy(from, into.as_mut_ptr(), into.len()) };
                Ok(())
            }
            Shared::Remote { pid, start, len } => {
                if offset.checked_add(into.len() as u64).is_none_or(|end| end > *len) {
                    return Err(out_of_bounds(offset, into.len() as u64));
                }
                read_remote(*pid, RemoteAddr(start + offset), into)
            }
        }
    }

    pub fn read<T: Contract>(&self, offset: u64) -> Result<T> {
        let mut value: T = zeroed();
        // SAFETY: contract types are integers: any bytes make a value.
        let bytes = unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut value).cast(), size_of::<T>()) };
        self.read_bytes(offset, bytes)?;
        Ok(value)
    }

    pub fn read_vec(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        const SANE: u64 = 64 << 30;
        if len > SANE {
            return Err(out_of_bounds(offset, len));
        }
        let mut bytes = vec![0; len as usize];
        self.read_bytes(offset, &mut bytes)?;
        Ok(bytes)
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Shared::Mapped(map) => {
                let to = map.check(offset, bytes.len() as u64)?;
                // SAFETY: checked; `bytes` is ours and cannot overlap the mapping.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
                Ok(())
            }
            Shared::Remote { pid, start, .. } => write_remote(*pid, RemoteAddr(start + offset), bytes),
        }
    }

    pub fn header(&self) -> Result<shm::Header> {
        self.read(0)
    }

    pub fn set_state(&self, state: u32) -> Result<()> {
        self.write(std::mem::offset_of!(shm::Header, state) as u64, &state.to_le_bytes())
    }
}

/// Copies from another process's memory without stopping it.
pub fn read_remote(pid: Pid, addr: RemoteAddr, into: &mut [u8]) -> Result<()> {
    use nix::sys::uio::{RemoteIoVec, process_vm_readv};
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let len = rest.len().min(1 << 30);
        let remote = [RemoteIoVec { base: addr.0 as usize + done, len }];
        match process_vm_readv(
            nix::unistd::Pid::from_raw(pid.0),
            &mut [std::io::IoSliceMut::new(&mut rest[..len])],
            &remote,
        ) {
            Ok(n) if n > 0 => done += n,
            Ok(_) => return Err(memory_error(pid, "read", addr, into.len(), nix::Error::EFAULT)),
            Err(error) => return Err(memory_error(pid, "read", addr, into.len(), error)),
        }
    }
    Ok(())
}

pub fn write_remote(pid: Pid, addr: RemoteAddr, bytes: &[u8]) -> Result<()> {
    use nix::sys::uio::{RemoteIoVec, process_vm_writev};
    let remote = [RemoteIoVec { base: addr.0 as usize, len: bytes.len() }];
    match process_vm_writev(nix::unistd::Pid::from_raw(pid.0), &[std::io::IoSlice::new(bytes)], &remote) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(memory_error(pid, "write", addr, bytes.len(), nix::Error::EFAULT)),
        Err(error) => Err(memory_error(pid, "write", addr, bytes.len(), error)),
    }
}

fn memory_error(pid: Pid, verb: &'static str, addr: RemoteAddr, len: usize, error: nix::Error) -> Error {
    Error::Memory { pid, verb, addr, len, source: error.into() }
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
        Identity { dev: mapping.dev, inode: mapping.inode }
    }
}

/// Every process that maps the shared memory: the target and those of its fork children that have not called exec.
pub fn carriers(identity: Identity) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
        .filter(|&pid| {
            let ours = std::process::id() as i32 == pid.0;
            !ours && mappings(pid).is_ok_and(|found| found.iter().any(|m| Identity::of(m) == identity))
        })
        .collect()
}

fn is_ours(mapping: &Mapping) -> bool {
    let name = format!("/memfd:{}", shm::MEMFD_NAME);
    mapping.perms.shared
        && mapping.offset == 0
        && mapping.path.as_ref().and_then(|p| p.to_str()).is_some_and(|p| {
            p.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        })
}

/// Opens the shared memory that `mapping` shows.
pub fn open(pid: Pid, mapping: &Mapping) -> Result<Shared> {
    let len = mapping.end.0 - mapping.start.0;
    // /proc/PID/map_files needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; without them the kernel copies for us.
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start.0, mapping.end.0);
    match File::options().read(true).write(true).open(link) {
        Ok(file) => Ok(Shared::Mapped(Map::new(&file, len)?)),
        Err(_) => Ok(Shared::Remote { pid, start: mapping.start.0, len }),
    }
}
