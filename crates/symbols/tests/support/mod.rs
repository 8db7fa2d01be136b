//! Builds small programs for the tests of this crate, in a directory that goes away with the test.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(test: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("thalweg-symbols-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Compiles `tests/programs/{source}`; `None` where this machine has no such compiler or
    /// libraries.
    pub fn compile(
        &self,
        compiler: &str,
        source: &str,
        name: &str,
        flags: &[&str],
    ) -> Option<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/programs")
            .join(source);
        let output = self.path(name);
        let status = Command::new(compiler)
            .args(flags)
            .arg(source)
            .arg("-o")
            .arg(&output)
            .output();
        match status {
            Ok(result) if result.status.success() => Some(output),
            Ok(result) => {
                eprintln!(
                    "{compiler} {flags:?}: {}",
                    String::from_utf8_lossy(&result.stderr)
                );
                None
            }
            Err(error) => {
                eprintln!("{compiler}: {error}");
                None
            }
        }
    }

    /// A stripped copy.
    pub fn strip(&self, file: &Path) -> PathBuf {
        let output = file.with_extension("stripped");
        run(Command::new("strip").arg("-o").arg(&output).arg(file));
        output
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn run(command: &mut Command) {
    let result = command.output().unwrap();
    assert!(
        result.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&result.stderr)
    );
}

/// Files of this machine that the tests read; those that are absent are left out.
pub fn machine_files() -> Vec<PathBuf> {
    let files = [
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        "/usr/lib/x86_64-linux-gnu/libm.so.6",
        "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
        "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0",
        "/usr/bin/python3.11",
        "/usr/bin/lua5.4",
        "/usr/bin/sqlite3",
        "/usr/bin/go",
        "/usr/lib/postgresql/15/bin/postgres",
    ];
    let own = std::env::current_exe().unwrap();
    files
        .iter()
        .map(PathBuf::from)
        .filter(|p| p.exists())
        .chain([own])
        .collect()
}
