//! The memory of a process that runs on.

use crate::error::{Error, Result};
use crate::proc::{Pid, RemoteAddr};

/// Copies from another process's memory without stopping it.
pub fn read_remote(pid: Pid, addr: RemoteAddr, into: &mut [u8]) -> Result<()> {
    use nix::sys::uio::{RemoteIoVec, process_vm_readv};
    let mut done = 0;
    while done < into.len() {
        let rest = &mut into[done..];
        let len = rest.len().min(1 << 30);
        let remote = [RemoteIoVec {
            base: addr.0 as usize + done,
            len,
        }];
        match process_vm_readv(
            nix::unistd::Pid::from_raw(pid.0),
            &mut [std::io::IoSliceMut::new(&mut rest[..len])],
            &remote,
        ) {
            Ok(n) if n > 0 => done += n,
            Ok(_) => {
                return Err(memory_error(
                    pid,
                    "read",
                    addr,
                    into.len(),
                    nix::Error::EFAULT,
                ));
            }
            Err(error) => return Err(memory_error(pid, "read", addr, into.len(), error)),
        }
    }
    Ok(())
}

pub fn write_remote(pid: Pid, addr: RemoteAddr, bytes: &[u8]) -> Result<()> {
    use nix::sys::uio::{RemoteIoVec, process_vm_writev};
    let remote = [RemoteIoVec {
        base: addr.0 as usize,
        len: bytes.len(),
    }];
    match process_vm_writev(
        nix::unistd::Pid::from_raw(pid.0),
        &[std::io::IoSlice::new(bytes)],
        &remote,
    ) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(memory_error(
            pid,
            "write",
            addr,
            bytes.len(),
            nix::Error::EFAULT,
        )),
        Err(error) => Err(memory_error(pid, "write", addr, bytes.len(), error)),
    }
}

fn memory_error(
    pid: Pid,
    verb: &'static str,
    addr: RemoteAddr,
    len: usize,
    error: nix::Error,
) -> Error {
    Error::Memory {
        pid,
        verb,
        addr,
        len,
        source: error.into(),
    }
}
