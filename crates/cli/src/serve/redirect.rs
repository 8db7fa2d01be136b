//! The way by which the address gets to the browser: a private file that leads on to it. On a command line every user of the
//! machine could read the secret that is in it.
//!
//! ```text
//! xdg-open /run/user/1000/thalweg-x7f2/page.html  ->  browser  ->  http://127.0.0.1:PORT/?token=...
//!          0700                   0600
//! ```

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

/// How long a browser may take to start.
pub const LIFETIME: Duration = Duration::from_secs(120);

/// The file, which is gone when this is.
pub struct Redirect {
    folder: TempDir,
}

impl Redirect {
    pub fn to(address: &str) -> io::Result<Redirect> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|name| !name.is_empty());
        let folders = [runtime, Some(OsString::from(std::env::temp_dir()))];
        let mut result = Err(io::Error::from(io::ErrorKind::NotFound));
        for folder in folders.into_iter().flatten() {
            let private = std::fs::Permissions::from_mode(0o700);
            let mut builder = tempfile::Builder::new();
            builder.prefix("thalweg-").permissions(private);
            result = builder.tempdir_in(folder);
            if result.is_ok() {
                break;
            }
        }
        let redirect = Redirect { folder: result? };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(redirect.path())?;
        // The address is made of letters, digits and `:/?=.` alone.
        write!(
            file,
            "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
             <meta http-equiv=\"refresh\" content=\"0; url={address}\">\n<title>thalweg</title>\n"
        )?;
        Ok(redirect)
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("page.html")
    }
}
