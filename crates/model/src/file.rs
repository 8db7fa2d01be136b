//! A profile under a name on disk: there entirely, or not at all.
//!
//! The bytes go to a file without a name (`O_TMPFILE`), or where the file system has none, to a
//! temporary one beside the final one. They get the final name as the last act, and are synced
//! before where they replace a file. A full disk, an error or a panic on the way leaves whatever
//! had the final name before; a kill leaves nothing.
//!
//! The place is the name that was given, in the folder that it was given with: nothing is ever
//! written through a symbolic link that somebody puts there. A link that is there already is
//! followed if the kernel follows it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{geteuid, linkat};

use crate::container;
use crate::error::{FileError, ReadError};
use crate::profile::Profile;

pub fn read_file(path: impl AsRef<Path>) -> Result<Profile, FileError> {
    let path = path.as_ref();
    File::open(path)
        .map_err(ReadError::Io)
        .and_then(|mut file| container::read(&mut file))
        .map_err(|source| FileError::Read {
            path: path.to_owned(),
            source,
        })
}

pub fn write_file(path: impl AsRef<Path>, profile: &Profile) -> Result<(), FileError> {
    OutputFile::create(path)?.save(profile)
}

/// A place where a profile will be written, proven writable: to be made before a target is touched.
///
/// Dropped without [`OutputFile::save`], it leaves nothing behind.
#[derive(Debug)]
pub struct OutputFile {
    /// As the user gave it, for messages.
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A file that gets its name at the end.
    Beside(Beside),
    /// A pipe, terminal or device: it has no content that a rename could keep whole.
    Stream(File),
}

impl OutputFile {
    pub fn create(path: impl AsRef<Path>) -> Result<OutputFile, FileError> {
        let path = path.as_ref().to_owned();
        match open_place(&path) {
            Ok(place) => Ok(OutputFile { path, place }),
            Err(source) => Err(FileError::Write { path, source }),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes all bytes of a profile and gives them the final name.
    pub fn save(self, profile: &Profile) -> Result<(), FileError> {
        let path = self.path.clone();
        match container::write(profile) {
            Ok(bytes) => self.save_bytes(&bytes),
            Err(source) => Err(FileError::Inconsistent { path, source }),
        }
    }

    /// The same for any content, such as an export.
    pub fn save_bytes(self, bytes: &[u8]) -> Result<(), FileError> {
        self.save_with(|file| file.write_all(bytes))
    }

    /// The same for content that is produced as it is written.
    pub fn save_with(
        mut self,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), FileError> {
        let written = match &mut self.place {
            Place::Stream(file) => write(file),
            Place::Beside(beside) => write(&mut beside.file).and_then(|()| beside.finish()),
        };
        written.map_err(|source| FileError::Write {
            path: self.path,
            source,
        })
    }
}

fn open_place(path: &Path) -> io::Result<Place> {
    let existing = match fs::symlink_metadata(path) {
        Ok(existing) => existing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Place::Beside(Beside::for_path(path)?));
        }
        Err(error) => return Err(error),
    };
    let is_link = existing.is_symlink();
    if existing.is_dir() {
        return Err(directory());
    }
    if is_link && is_planted(path, &existing)? {
        return Err(unfollowed(&io::Error::from_raw_os_error(libc::EACCES)));
    }
    // Links are followed by the kernel, or not at all. A file that may not be written must not be
    // replaced either, though a rename could.
    let nofollow = if is_link { 0 } else { libc::O_NOFOLLOW };
    let opened = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOCTTY | nofollow)
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if is_link => return Err(unfollowed(&error)),
        Err(error) => return Err(error),
    };
    let meta = file.metadata()?;
    if !meta.is_file() || meta.nlink() == 0 {
        return Ok(Place::Stream(file));
    }
    let end = match is_link {
        // Where it led to: the link stays one.
        true => fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?,
        false => path.to_owned(),
    };
    Ok(Place::Beside(Beside::for_path(&end)?))
}

/// The kernel's own rule (fs.protected_symlinks), also where that is off: in a folder such as /tmp
/// only one's own links are followed, and those of the folder's owner.
fn is_planted(path: &Path, link: &fs::Metadata) -> io::Result<bool> {
    const STICKY_FOR_ALL: u32 = 0o1002;
    let folder = fs::metadata(parent_of(path))?;
    let is_public = folder.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL;
    let is_trusted = [geteuid().as_raw(), folder.uid()].contains(&link.uid());
    Ok(is_public && !is_trusted)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn directory() -> io::Error {
    io::Error::new(
        io::ErrorKind::IsADirectory,
        "it is a directory: give the name of a file in it",
    )
}

fn unfollowed(error: &io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::EISDIR) {
        return directory();
    }
    io::Error::new(
        error.kind(),
        format!(
            "it is a symbolic link that cannot be followed ({error}): remove it, or give another name"
        ),
    )
}

/// A file that gets its name as the last act. All of it happens in one folder, which stays the same
/// whatever becomes of its path.
#[derive(Debug)]
struct Beside {
    folder: File,
    name: OsString,
    file: File,
    /// The name that it has until then. `None`: it has none, and is gone with this process.
    temporary: Option<PathBuf>,
}

impl Beside {
    fn for_path(path: &Path) -> io::Result<Beside> {
        let name = path.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "it is not the name of a file")
        })?;
        let folder = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(parent_of(path))?;
        let unnamed = OpenOptions::new()
            .write(true)
            .mode(0o666)
            .custom_flags(libc::O_TMPFILE)
            .open(inside(&folder, OsStr::new(".")));
        let (file, temporary) = match unnamed {
            Ok(file) => (file, None),
            // Not every file system has files without names.
            Err(error) if has_no_unnamed(&error) => {
                let create =
                    |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
                let (path, file) = with_free_name(&folder, name, create)?;
                (file, Some(path))
            }
            Err(error) => return Err(error),
        };
        Ok(Beside {
            name: name.to_owned(),
            folder,
            file,
            temporary,
        })
    }

    /// Only what replaces a file is waited for: after a power cut either is there as a whole. Where
    /// there was none nothing is lost but a profile of the last half minute, and the disk would be
    /// waited for by every short command.
    fn finish(&mut self) -> io::Result<()> {
        let wanted = inside(&self.folder, &self.name);
        if self.temporary.is_none() {
            match link(&self.file, &wanted) {
                Ok(()) => return Ok(()),
                // Only a rename replaces.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            let name = |path: &Path| link(&self.file, path);
            self.temporary = Some(with_free_name(&self.folder, &self.name, name)?.0);
        }
        self.file.sync_all()?;
        if let Some(path) = &self.temporary {
            fs::rename(path, &wanted)?;
            self.temporary = None;
        }
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(path) = &self.temporary {
            let _ = fs::remove_file(path);
        }
    }
}

/// A name in a folder that is open, however the folder is called by now.
fn inside(folder: &File, name: &OsStr) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name)
}

fn has_no_unnamed(error: &io::Error) -> bool {
    const NONE: [i32; 4] = [libc::EOPNOTSUPP, libc::EISDIR, libc::EINVAL, libc::ENOENT];
    error
        .raw_os_error()
        .is_some_and(|code| NONE.contains(&code))
}

/// Makes something under a hidden name beside `name` that nothing has.
fn with_free_name<T>(
    folder: &File,
    name: &OsStr,
    make: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    let mut attempt = 0;
    loop {
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{attempt}.tmp", std::process::id()));
        let path = inside(folder, &hidden);
        match make(&path) {
            Ok(made) => return Ok((path, made)),
            // Ours of another thread, or left by a killed run that had our process id.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Gives a file without a name one that nothing has.
fn link(file: &File, path: &Path) -> io::Result<()> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let follow = AtFlags::AT_SYMLINK_FOLLOW;
    linkat(AT_FDCWD, own.as_str(), AT_FDCWD, path, follow).map_err(io::Error::from)
}
