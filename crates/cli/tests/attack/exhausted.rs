//! Targets that have no more of something: an attach takes some of it, and must not take what is not there.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::text::assert_restored;
use crate::support::thalweg::{refuse, succeed};
use std::path::{Path, PathBuf};

fn start(arguments: &[&str]) -> Live {
    Live::ready(&Build::simple("exhausted.c").path, arguments)
}

#[test]
fn a_target_without_a_free_descriptor_is_refused_and_told_how_to_get_one() {
    let mut live = start(&["nofile", "1"]);
    let before = live.text();
    let message = refuse(&["attach", &live.id()]);
    let advice = format!("prlimit --pid {}", live.id());
    assert!(
        message.contains("ulimit -n") && message.contains(&advice),
        "{message}"
    );
    assert_restored(&before, &live.text());
    assert_eq!(live.ask("go"), "9604000 1");
    live.assert_healthy();
}

/// A cgroup of our own, with a limit of memory.
struct Group {
    path: PathBuf,
    limit: &'static str,
}

impl Group {
    fn new() -> Group {
        let name = format!("thalweg-test-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (top, limit) = match v1.join("memory.limit_in_bytes").exists() {
            true => (v1, "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.max"),
        };
        if limit == "memory.max" {
            let _ = std::fs::write(top.join("cgroup.subtree_control"), "+memory");
        }
        let path = top.join(name);
        std::fs::create_dir_all(&path).expect("tests run as root, with a cgroup file system");
        Group { path, limit }
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path.join(file), text)
            .unwrap_or_else(|error| panic!("{file} of {}: {error}", self.path.display()));
    }

    fn used(&self) -> u64 {
        let names = ["memory.usage_in_bytes", "memory.current"];
        let text = names.map(|name| std::fs::read_to_string(self.path.join(name)));
        let text = text.into_iter().find_map(Result::ok);
        let text = text.expect("the group's memory is counted");
        text.trim().parse().expect("bytes")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may still be at those who have just ended.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Before, the kernel killed it for the pages of its stubs.
#[test]
fn a_target_whose_cgroup_is_nearly_full_is_left_alone() {
    let group = Group::new();
    let program = Build::simple("exhausted.c").path;
    let mut command = std::process::Command::new("sh");
    let join = format!("echo $$ > {}/cgroup.procs", group.path.display());
    let script = format!("{join}; exec \"$0\" memory 30");
    let mut live = Live::spawn(command.arg("-c").arg(script).arg(program));
    assert_eq!(live.line(), "ready");
    let before = live.text();
    group.write(group.limit, &(group.used() + (1 << 20)).to_string());
    let message = refuse(&["attach", &live.id()]);
    assert!(
        message.contains("cgroup") && message.contains("would kill it"),
        "{message}"
    );
    assert_restored(&before, &live.text());
    assert_eq!(live.ask("go"), "9604000 30");
    // With some room, but not for as many contexts as by default.
    group.write(group.limit, &(group.used() + (64 << 20)).to_string());
    succeed(&["attach", &live.id()]);
    assert_eq!(live.ask("go"), "9604000 30");
    let status = succeed(&["status", &live.id()]);
    assert!(!status.contains("256.0 MiB"), "{status}");
    succeed(&["detach", &live.id()]);
    live.assert_healthy();
}
