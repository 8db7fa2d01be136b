//! How much memory a process may still take before the kernel kills something in its cgroup.

use std::path::{Path, PathBuf};

use super::Pid;

/// Of the cgroup, among a process's and all above it, that has least left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRoom {
    pub limit: u64,
    /// What file pages take of it can be had back.
    pub left: u64,
}

/// Where one version of cgroups keeps its figures.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// In `memory.stat`.
    reclaimable: [&'static str; 2],
}

const V2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

/// Version 1 says so where there is no limit, or a little less.
const NO_LIMIT: u64 = 1 << 62;

/// `None`: no limit is known.
pub fn memory_room(pid: Pid) -> Option<MemoryRoom> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let room = |controller: &str, names: &Names| {
        let path = path_of(&groups, controller)?;
        let (top, own) = directory(&mounts, controller, path)?;
        least_room(&top, &own, names)
    };
    // Both versions may be mounted; only one of them has the memory.
    let rooms = [room("", &V2), room("memory", &V1)];
    rooms.into_iter().flatten().min_by_key(|room| room.left)
}

/// The path in the hierarchy of a controller; version 2 has none of its own.
fn path_of<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers
            .split(',')
            .any(|one| one == controller)
            .then_some(path)
    })
}

/// Where that hierarchy is mounted here, and the directory of `path` in it.
fn directory(mounts: &str, controller: &str, path: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, top) = (mount.next()?, PathBuf::from(mount.next()?));
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1)?);
        let fits = match controller {
            "" => kind == "cgroup2",
            _ => kind == "cgroup" && options.split(',').any(|one| one == controller),
        };
        let below = path.strip_prefix(root).unwrap_or(path);
        let own = top.join(below.trim_start_matches('/'));
        // One that is not mounted here is that of its container at best.
        let own = match own.is_dir() {
            true => own,
            false => top.clone(),
        };
        fits.then_some((top, own))
    })
}

fn least_room(top: &Path, own: &Path, names: &Names) -> Option<MemoryRoom> {
    let groups = own.ancestors().take_while(|group| group.starts_with(top));
    let rooms = groups.filter_map(|group| room_of(group, names));
    rooms.min_by_key(|room| room.left)
}

fn room_of(group: &Path, names: &Names) -> Option<MemoryRoom> {
    let number = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(group.join(name)).ok()?;
        text.trim().parse().ok()
    };
    let limit = number(names.limit).filter(|limit| *limit < NO_LIMIT)?;
    let usage = number(names.usage)?;
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let figures = stat.lines().filter_map(|line| line.split_once(' '));
    let reclaimable = figures.filter(|(name, _)| names.reclaimable.contains(name));
    let reclaimable: u64 = reclaimable
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .fold(0, u64::saturating_add);
    let taken = usage.saturating_sub(reclaimable);
    Some(MemoryRoom {
        limit,
        left: limit.saturating_sub(taken),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        25 1 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n\
        26 25 0:23 /box /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        27 25 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_hierarchy_that_has_the_controller_is_found() {
        let groups = "4:cpu,memory:/box/app\n0::/app\n";
        assert_eq!(path_of(groups, "memory"), Some("/box/app"));
        assert_eq!(path_of(groups, ""), Some("/app"));
        let (top, _) = directory(MOUNTS, "memory", "/box/app").unwrap();
        assert_eq!(top, Path::new("/sys/fs/cgroup/memory"));
        let (top, _) = directory(MOUNTS, "", "/app").unwrap();
        assert_eq!(top, Path::new("/sys/fs/cgroup/unified"));
        assert_eq!(directory(MOUNTS, "pids", "/"), None);
    }

    #[test]
    fn the_group_with_least_left_counts_and_file_pages_can_be_had_back() {
        let top = std::env::temp_dir().join(format!("thalweg-cgroup-{}", std::process::id()));
        let own = top.join("a/b");
        std::fs::create_dir_all(&own).unwrap();
        let put = |group: &Path, limit: &str, usage: &str, stat: &str| {
            for (name, text) in [
                ("memory.max", limit),
                ("memory.current", usage),
                ("memory.stat", stat),
            ] {
                std::fs::write(group.join(name), text).unwrap();
            }
        };
        put(&own, "max\n", "900\n", "");
        assert_eq!(least_room(&top, &own, &V2), None);
        put(
            &top.join("a"),
            "1000\n",
            "900\n",
            "anon 5\ninactive_file 30\nactive_file 20\n",
        );
        put(&own, "800\n", "100\n", "");
        let room = least_room(&top, &own, &V2);
        std::fs::remove_dir_all(&top).unwrap();
        assert_eq!(
            room,
            Some(MemoryRoom {
                limit: 1000,
                left: 150
            })
        );
    }
}
