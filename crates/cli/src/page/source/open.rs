//! Opens a file whose name comes out of a profile, or refuses to: the name may be chosen by the one who is profiled, and the
//! viewer may be root.
//!
//! ```text
//! /usr/src/app/main.c      each directory is opened in the one before it, none by a whole path
//!  |                       a link among them is followed only if root or the viewer made it
//!                  `----   the file itself is opened without following a link, and without waiting for anybody
//! ```
//!
//! It is read only if it is a regular file, of a sane size, and one that the viewer could have read himself.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::Mode;

/// As many as the kernel follows itself.
const MAX_LINKS: u32 = 40;

/// Whose eyes see the page.
#[derive(Clone, Copy, Debug)]
pub struct Viewer {
    uid: u32,
    gid: u32,
    /// The kernel asks nobody's permission for us.
    is_privileged: bool,
}

impl Viewer {
    /// Who runs this, or had it run by sudo.
    pub fn current() -> Viewer {
        let is_privileged = nix::unistd::Uid::effective().is_root();
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        let by_sudo = Option::zip(number("SUDO_UID"), number("SUDO_GID"));
        let own = (
            nix::unistd::Uid::effective().as_raw(),
            nix::unistd::Gid::effective().as_raw(),
        );
        let (uid, gid) = by_sudo.filter(|_| is_privileged).unwrap_or(own);
        Viewer {
            uid,
            gid,
            is_privileged,
        }
    }

    /// Whether root or the viewer made it.
    fn trusts(&self, about: &Metadata) -> bool {
        about.uid() == 0 || about.uid() == self.uid
    }

    /// Whether the viewer has this right by the permission bits; `right`: 4 to read, 1 to search. Root has it where others
    /// have it, and for what is root's own: a page shows nobody's private files but the viewer's.
    fn has(&self, right: u32, about: &Metadata) -> bool {
        let shift = match about {
            about if about.uid() == self.uid => 6,
            about if about.gid() == self.gid => 3,
            _ => 0,
        };
        about.mode() >> shift & right != 0
    }

    fn may_search(&self, directory: &Metadata) -> bool {
        !self.is_privileged || self.uid == 0 || self.has(1, directory)
    }

    fn may_read(&self, file: &Metadata) -> bool {
        !self.is_privileged || self.has(4, file)
    }
}

/// All of the file's bytes; `None` where there is no such file for this viewer.
pub fn read(path: &Path, largest: u64, viewer: Viewer) -> Option<Vec<u8>> {
    let file = opened(path, viewer)?;
    let about = file.metadata().ok()?;
    if !about.is_file() || about.len() > largest || !viewer.may_read(&about) {
        return None;
    }
    let mut bytes = Vec::new();
    // No more than its size: files of the kernel's, which have none, are not read.
    file.take(about.len()).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn opened(path: &Path, viewer: Viewer) -> Option<File> {
    let mut at = root()?;
    let mut rest: VecDeque<OsString> = components(path).collect();
    let mut links = 0;
    loop {
        let name = rest.pop_front()?;
        if rest.is_empty() {
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
            let file = openat(&at, &*name, flags | OFlag::O_CLOEXEC, Mode::empty());
            return file.ok().map(File::from);
        }
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let next = File::from(openat(&at, &*name, flags, Mode::empty()).ok()?);
        let about = next.metadata().ok()?;
        if about.is_dir() && viewer.may_search(&about) {
            at = next;
        } else if about.is_symlink() && viewer.trusts(&about) && links < MAX_LINKS {
            links += 1;
            let target = readlinkat(&next, "").ok()?;
            let target = Path::new(&target);
            if target.is_absolute() {
                at = root()?;
            }
            rest = components(target).chain(rest).collect();
        } else {
            return None;
        }
    }
}

fn root() -> Option<File> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    open("/", flags, Mode::empty()).ok().map(File::from)
}

/// The names on the way, without what leads nowhere.
fn components(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    const MAX_SOURCE_BYTES: u64 = 1 << 20;

    fn is_root() -> bool {
        nix::unistd::Uid::effective().is_root()
    }

    fn shown(path: &Path) -> bool {
        read(path, MAX_SOURCE_BYTES, Viewer::current()).is_some()
    }

    #[test]
    fn only_regular_files_are_read_and_none_through_a_link() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("plain.c");
        fs::write(&file, "int main;\n").unwrap();
        assert!(shown(&file));
        let link = scratch.path().join("link.c");
        symlink(&file, &link).unwrap();
        assert!(!shown(&link), "the last name is never followed");
        // A reader of this one would wait for a writer.
        let pipe = scratch.path().join("pipe.c");
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o644)).unwrap();
        assert!(!shown(&pipe));
        assert!(!shown(scratch.path()));
        assert!(!shown(Path::new("/dev/zero")) && !shown(Path::new("/")));
        let kernels = read(
            Path::new("/proc/self/status"),
            MAX_SOURCE_BYTES,
            Viewer::current(),
        );
        assert!(kernels.is_none_or(|bytes| bytes.is_empty()));
        fs::write(&file, vec![b'x'; MAX_SOURCE_BYTES as usize + 1]).unwrap();
        assert!(!shown(&file), "too large");
    }

    #[test]
    fn links_on_the_way_are_followed_if_root_or_the_viewer_made_them() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().join("real/deep");
        fs::create_dir_all(&real).unwrap();
        fs::write(real.join("a.c"), "a\n").unwrap();
        let link = scratch.path().join("link");
        symlink(&real, &link).unwrap();
        assert!(shown(&link.join("a.c")));
        assert!(shown(&link.join("../deep/./a.c")));
        symlink("round", scratch.path().join("round")).unwrap();
        assert!(!shown(&scratch.path().join("round/a.c")));
        if is_root() {
            let flag = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
            let somebody = Some(nix::unistd::Uid::from_raw(12345));
            let here = nix::fcntl::AT_FDCWD;
            nix::unistd::fchownat(here, &link, somebody, None, flag).unwrap();
            assert!(!shown(&link.join("a.c")), "somebody else's link");
        }
    }

    #[test]
    fn root_shows_nobody_a_file_that_he_could_not_read() {
        if !is_root() {
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = scratch.path().join("private.c");
        fs::write(&file, "secret\n").unwrap();
        let set = |owner: u32, mode: u32| {
            chown(&file, Some(owner), Some(owner)).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        };
        let sees = |uid: u32| {
            let viewer = Viewer {
                uid,
                gid: uid,
                is_privileged: true,
            };
            read(&file, MAX_SOURCE_BYTES, viewer).is_some()
        };
        set(0, 0o600);
        assert!(sees(0) && !sees(1000), "root's own");
        set(1000, 0o600);
        assert!(sees(1000) && !sees(0) && !sees(1001));
        set(1000, 0o644);
        assert!(sees(1000) && sees(0) && sees(1001));
        // Nor one in a directory that he may not enter.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(sees(0) && !sees(1001));
    }
}
