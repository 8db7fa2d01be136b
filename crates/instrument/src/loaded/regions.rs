//! Where the stubs of loaded modules go: what is left of the regions of the attach, then regions of their own.

use std::mem::offset_of;

use thalweg_abi as shm;

use crate::agent;
use crate::error::{Error, Result};
use crate::memory::Shared;
use crate::place;
use crate::prepare::{self, Build, page_up};
use crate::proc::{Mapping, Pid, RemoteAddr};
use crate::survey::Surveyed;
use crate::tracee::Stopped;

/// Stubs of loaded modules are put together in mappings of this size.
const REGION: u64 = 16 << 20;

/// All mappings for stubs, of all processes.
pub(super) struct Regions {
    all: Vec<Region>,
    /// Entries of `Header::code` in use.
    noted: usize,
}

/// A mapping for stubs, in one process.
struct Region {
    pid: Pid,
    start: u64,
    len: u64,
    used: u64,
    /// In the header; before it is mapped.
    noted: bool,
    mapped: bool,
}

impl Regions {
    pub(super) fn at_attach(build: &Build, pid: Pid) -> Regions {
        let regions = build.code.iter().map(|region| Region {
            pid,
            start: region.start,
            len: region.len,
            used: region.used,
            noted: true,
            mapped: true,
        });
        Regions {
            all: regions.collect(),
            noted: build.code.len(),
        }
    }

    /// Whether stubs in the region at `start` will do for a module of the process that has `maps`.
    pub(super) fn serves(&self, start: u64, surveyed: &Surveyed, maps: &[Mapping]) -> bool {
        let region = self.all.iter().find(|r| r.start == start);
        region.is_some_and(|r| r.is_in(maps) && r.reaches(surveyed))
    }

    /// A region in reach of the module and an address in it.
    pub(super) fn room(
        &mut self,
        pid: Pid,
        surveyed: &Surveyed,
        bytes: u64,
        maps: &[Mapping],
    ) -> Result<(u64, u64)> {
        let fits = |r: &&mut Region| {
            let there = r.is_in(maps) || (r.pid == pid && !r.mapped);
            there && r.len - r.used >= bytes && r.reaches(surveyed)
        };
        if let Some(region) = self.all.iter_mut().find(fits) {
            let at = region.start + region.used;
            region.used += bytes;
            return Ok((region.start, at));
        }
        let unnoted = self.all.iter().filter(|r| !r.noted).count();
        if self.noted + unnoted >= shm::MAX_CODE_REGIONS {
            return Err(Error::NoRoom("no room for more stubs".into()));
        }
        let head = page_up(agent::IMAGE.len() as u64);
        let len = REGION.max(head + bytes);
        let mut taken = maps.to_vec();
        let planned = self.all.iter().filter(|r| r.pid == pid);
        taken.extend(planned.map(|r| prepare::reserved(r.start, r.len)));
        taken.sort_by_key(|m| m.start);
        let start = place::find_gap(&taken, surveyed.low, surveyed.high, len)
            .ok_or_else(|| Error::NoRoom("no room for stubs within reach".into()))?;
        self.all.push(Region {
            pid,
            start,
            len,
            used: head + bytes,
            noted: false,
            mapped: false,
        });
        Ok((start, start + head))
    }

    /// Writes into the header what will be mapped.
    pub(super) fn note(&mut self, shared: &Shared) -> Result<()> {
        for region in self.all.iter_mut().filter(|r| !r.noted) {
            let mut bytes = region.start.to_le_bytes().to_vec();
            bytes.extend(region.len.to_le_bytes());
            let place = offset_of!(shm::Header, code) + self.noted * size_of::<shm::CodeRegion>();
            shared.write(place as u64, &bytes)?;
            self.noted += 1;
            region.noted = true;
        }
        Ok(())
    }

    /// Maps what the stopped process needs; `base` is where its data region lies.
    pub(super) fn map(&mut self, stopped: &mut Stopped, base: u64) -> Result<()> {
        let pid = stopped.pid();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let waiting = |r: &&mut Region| r.pid == pid && !r.mapped;
        for region in self.all.iter_mut().filter(waiting) {
            let at = RemoteAddr(region.start);
            stopped.mmap(at, region.len, protection, flags, -1, 0)?;
            stopped.madvise(at, region.len, libc::MADV_DONTDUMP)?;
            stopped.write(at, &agent::image_for(base))?;
            region.mapped = true;
        }
        Ok(())
    }
}

impl Region {
    /// Fork children have those that were mapped before.
    fn is_in(&self, maps: &[Mapping]) -> bool {
        self.mapped
            && maps.iter().any(|m| {
                m.start.0 == self.start
                    && m.end.0 == self.start + self.len
                    && m.perms.exec
                    && m.path.is_none()
            })
    }

    fn reaches(&self, surveyed: &Surveyed) -> bool {
        place::reaches(self.start, self.len, surveyed.low, surveyed.high)
    }
}
