//! Where stubs go: within reach of a 32-bit displacement of all the code and data of the modules that they serve.

use crate::proc::Mapping;

/// What must reach one another: one or more modules and a region of stubs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Indices of modules.
    pub members: Vec<usize>,
    pub low: u64,
    pub high: u64,
    pub stub_bytes: u64,
}

/// A displacement reaches 2 GiB; some of it is kept back for the stubs' own extent and rounding.
const REACH: u64 = (2 << 30) - (64 << 20);
const PAGE: u64 = 4096;
/// Distance kept from other mappings, so that neither they nor we are in the way of growth.
const MARGIN: u64 = 1 << 20;
/// The main thread's stack and the heap grow: distance kept from their growing ends.
const GROWTH: u64 = 256 << 20;

/// Puts modules together that can share a region; `extents` are (low, high, stub bytes), any order.
pub fn clusters(extents: &[(u64, u64, u64)]) -> Vec<Cluster> {
    let mut order: Vec<usize> = (0..extents.len()).filter(|&i| extents[i].2 > 0).collect();
    order.sort_by_key(|&i| extents[i].0);
    let mut clusters: Vec<Cluster> = Vec::new();
    for index in order {
        let (low, high, bytes) = extents[index];
        match clusters.last_mut() {
            Some(last) if high.max(last.high) - last.low + last.stub_bytes + bytes < REACH / 2 => {
                last.members.push(index);
                last.high = last.high.max(high);
                last.stub_bytes += bytes;
            }
            _ => clusters.push(Cluster {
                members: vec![index],
                low,
                high,
                stub_bytes: bytes,
            }),
        }
    }
    clusters
}

/// The address for `len` bytes that is nearest to `[low, high)`, in reach of all of it, and free.
pub fn find_gap(maps: &[Mapping], low: u64, high: u64, len: u64) -> Option<u64> {
    let floor = high.saturating_sub(REACH).max(0x10000);
    let ceiling = low.saturating_add(REACH).min(0x7fff_ffff_0000);
    let mut best: Option<(u64, u64)> = None;
    let mut previous_end = 0x10000;
    let mut previous_grows = false;
    let end = [None];
    for mapping in maps.iter().map(Some).chain(end) {
        let is = |m: &Mapping, name: &str| m.path.as_ref().is_some_and(|p| p.as_os_str() == name);
        let (start, stop) = mapping.map_or((ceiling, ceiling), |m| (m.start.0, m.end.0));
        let keep_low = if previous_grows { GROWTH } else { MARGIN };
        let keep_high = if mapping.is_some_and(|m| is(m, "[stack]")) {
            GROWTH
        } else {
            MARGIN
        };
        let from = (previous_end + keep_low).max(floor);
        let to = start.saturating_sub(keep_high).min(ceiling);
        if to > from && to - from >= len {
            let at = if to <= low {
                (to - len) & !0xfff
            } else {
                (from + 0xfff) & !0xfff
            };
            let distance = if at < low {
                low - at
            } else {
                at.saturating_sub(high)
            };
            if at >= from && at + len <= to && best.is_none_or(|(nearest, _)| distance < nearest) {
                best = Some((distance, at));
            }
        }
        if stop > previous_end {
            previous_end = stop;
            // The heap begins behind the executable's data, at a random distance, and may not exist yet.
            previous_grows = mapping.is_some_and(|m| {
                is(m, "[heap]") || (m.perms.write && m.end.0 < 1 << 47 && is_low(m))
            });
        }
    }
    best.map(|(_, at)| at)
}

/// The lowest address in `[first, last]` with `len` free bytes.
pub fn find_between(maps: &[Mapping], first: u64, last: u64, len: u64) -> Option<u64> {
    let mut at = first.checked_add(PAGE - 1)? & !(PAGE - 1);
    for mapping in maps {
        if mapping.end.0 + PAGE <= at {
            continue;
        }
        if mapping.start.0 >= at + len + PAGE {
            break;
        }
        at = (mapping.end.0 + PAGE) & !(PAGE - 1);
    }
    (at <= last).then_some(at)
}

/// Whether stubs in `[start, start + len)` and all of `[low, high)` reach each other.
pub fn reaches(start: u64, len: u64, low: u64, high: u64) -> bool {
    high.max(start + len) - low.min(start) < REACH
}

/// A place for the data region, far from everything: the kernel's own choice would be right where the stubs are to go.
pub fn find_space(maps: &[Mapping], len: u64) -> Option<u64> {
    const END: u64 = 0x7fff_0000_0000;
    let mut highest = 0x1_0000_0000;
    let mut widest = (0, 0);
    // [vsyscall] lies beyond what a program can map.
    let taken = maps
        .iter()
        .map(|m| (m.start.0, m.end.0))
        .filter(|&(start, _)| start < END)
        .chain([(END, END)]);
    for (start, end) in taken {
        widest = widest.max((start.saturating_sub(highest), highest));
        highest = highest.max(end);
    }
    let (room, from) = widest;
    (room > len * 2).then(|| (from + (room - len) / 2) & !0xfff)
}

/// In the part of the address space where executables lie, as opposed to the mmap area.
fn is_low(mapping: &Mapping) -> bool {
    mapping.end.0 < 0x7000_0000_0000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::{Perms, RemoteAddr};

    fn mapping(start: u64, end: u64, path: &str, write: bool) -> Mapping {
        Mapping {
            start: RemoteAddr(start),
            end: RemoteAddr(end),
            perms: Perms {
                read: true,
                write,
                exec: false,
                shared: false,
            },
            offset: 0,
            dev: (0, 0),
            inode: 0,
            path: Some(path.into()),
        }
    }

    #[test]
    fn libraries_share_a_region_and_the_executable_has_its_own() {
        let found = clusters(&[
            (0x7f00_0000_0000, 0x7f00_0020_0000, 1 << 20),
            (0x5555_5555_0000, 0x5555_5556_0000, 4096),
            (0x7f00_0100_0000, 0x7f00_0110_0000, 1 << 20),
            (0x7f00_0200_0000, 0x7f00_0210_0000, 0),
        ]);
        let members: Vec<_> = found.iter().map(|c| c.members.clone()).collect();
        assert_eq!(members, [vec![1], vec![0, 2]]);
    }

    #[test]
    fn the_data_region_is_in_the_middle_of_the_widest_gap() {
        let maps = [
            mapping(0x5555_5555_0000, 0x5555_5556_0000, "/bin/x", false),
            mapping(0x7f00_0000_0000, 0x7f00_0010_0000, "/lib/y", false),
            mapping(
                0xffff_ffff_ff60_0000,
                0xffff_ffff_ff60_1000,
                "[vsyscall]",
                false,
            ),
        ];
        let at = find_space(&maps, 128 << 30).unwrap();
        assert!(
            at > 1 << 40 && at + (128 << 30) < 0x5555_5555_0000 - (1 << 40),
            "{at:#x}"
        );
        assert_eq!(find_space(&maps, 1 << 46), None);
    }

    #[test]
    fn a_gap_is_free_in_reach_and_away_from_what_grows() {
        let maps = [
            mapping(0x400000, 0x401000, "/bin/x", false),
            mapping(0x404000, 0x405000, "/bin/x", true),
            mapping(0x1000000, 0x1021000, "[heap]", true),
            mapping(0x7fff_0000_0000, 0x7fff_0002_0000, "[stack]", true),
        ];
        let small = find_gap(&maps, 0x400000, 0x405000, 0x10000).unwrap();
        assert!(
            small >= 0x10000 && small + 0x10000 <= 0x400000,
            "{small:#x}"
        );
        let at = find_gap(&maps, 0x400000, 0x405000, 0x800000).unwrap();
        assert!(
            at >= 0x1021000 + GROWTH && at + 0x800000 < 0x400000 + (2 << 30),
            "more than fits below the executable goes beyond its heap: {at:#x}"
        );
        let pie = [mapping(0x5555_5555_0000, 0x5555_5556_0000, "/bin/x", true)];
        let at = find_gap(&pie, 0x5555_5555_0000, 0x5555_5556_0000, 0x10000).unwrap();
        assert!(
            at < 0x5555_5555_0000,
            "below a position-independent executable, not where its heap will grow: {at:#x}"
        );
    }
}
