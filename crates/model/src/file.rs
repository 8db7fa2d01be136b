//! A profile under a name on disk: there entirely, or not at all.
//!
//! The bytes go to a temporary file beside the final one, are synced, and get the final name as the last act. A full
//! disk, an error or a panic on the way leaves whatever had the final name before.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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
    /// A file to be renamed into place.
    Beside {
        file: File,
        temporary: Temporary,
        final_path: PathBuf,
    },
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
            Place::Beside {
                file,
                temporary,
                final_path,
            } => write(file)
                .and_then(|()| file.sync_all())
                .and_then(|()| temporary.rename_to(final_path)),
        };
        written.map_err(|source| FileError::Write {
            path: self.path,
            source,
        })
    }
}

fn open_place(path: &Path) -> io::Result<Place> {
    match fs::metadata(path) {
        Ok(existing) if existing.is_dir() => {
            return Err(io::Error::new(
                io::ErrorKind::IsADirectory,
                "it is a directory: give the name of a file in it",
            ));
        }
        Ok(existing) if !existing.is_file() => {
            return OpenOptions::new().write(true).open(path).map(Place::Stream);
        }
        Ok(_) => {
            // A file that may not be written must not be replaced either, though a rename could.
            OpenOptions::new().write(true).open(path)?;
        }
        Err(_) => {}
    }
    // Through a symbolic link, so that the link stays one.
    let final_path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (temporary, file) = Temporary::create_beside(&final_path)?;
    Ok(Place::Beside {
        file,
        temporary,
        final_path,
    })
}

/// A file that vanishes unless it is renamed.
#[derive(Debug)]
struct Temporary {
    path: Option<PathBuf>,
}

impl Temporary {
    fn create_beside(final_path: &Path) -> io::Result<(Temporary, File)> {
        let name = final_path.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "it is not the name of a file")
        })?;
        let mut attempt = 0;
        loop {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{attempt}.tmp", std::process::id()));
            let path = final_path.with_file_name(hidden);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((Temporary { path: Some(path) }, file)),
                // Ours of another thread, or left by a killed run that had our process id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn rename_to(&mut self, final_path: &Path) -> io::Result<()> {
        if let Some(path) = &self.path {
            fs::rename(path, final_path)?;
            self.path = None;
        }
        // The content is safe either way; this makes the name survive a power cut, where the system can.
        let directory = match final_path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let _ = File::open(directory).and_then(|directory| directory.sync_all());
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}
