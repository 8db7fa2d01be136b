//! `thalweg cache`: what is kept of files that were analysed, and away with it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use serde::Serialize;
use thalweg_instrument::cache::{self, Directory};

use crate::report::{bytes, count};

/// Show or clear what is kept of analysed files, by which the next recording begins sooner
///
/// It lies in $XDG_CACHE_HOME/thalweg, or in ~/.cache/thalweg. With THALWEG_CACHE=off nothing is kept or used.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Remove everything
    #[arg(long)]
    pub clear: bool,

    /// Print one JSON object instead of text
    #[arg(long, conflicts_with = "clear")]
    pub json: bool,
}

/// Lets this run use the cache, unless the user does not want it.
pub fn enable() {
    let is_off = std::env::var_os("THALWEG_CACHE").is_some_and(|value| value == "off");
    if let Some(place) = cache::place().filter(|_| !is_off) {
        cache::enable(place);
    }
}

#[derive(Serialize)]
struct Shown {
    directory: PathBuf,
    bytes: u64,
    limit: u64,
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    /// The file that was analysed.
    file: PathBuf,
    bytes: u64,
    used_unix_seconds: u64,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(place) = cache::place() else {
        anyhow::bail!("there is no cache: neither XDG_CACHE_HOME nor HOME is an absolute path");
    };
    let directory = Directory::open(&place);
    if directory.is_none() && std::fs::symlink_metadata(&place).is_ok() {
        anyhow::bail!(
            "{} is not used: it has to be a directory of your own that nobody else may write to",
            place.display()
        );
    }
    let mut out = std::io::stdout().lock();
    if args.clear {
        let (files, size) = directory.map_or((0, 0), |directory| directory.clear());
        writeln!(
            out,
            "removed {} files, {}",
            count(files as u64),
            bytes(size)
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let shown = shown(place, directory.as_ref());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &shown)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{}: {} files analysed, {} of {}",
        shown.directory.display(),
        count(shown.entries.len() as u64),
        bytes(shown.bytes),
        bytes(shown.limit)
    )?;
    for entry in &shown.entries {
        writeln!(out, "{:>12}  {}", bytes(entry.bytes), entry.file.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn described(directory: &Directory, entry: cache::Entry) -> Entry {
    let head = directory.read_head(&entry.name, HEAD_BYTES);
    let used = entry.used.duration_since(UNIX_EPOCH);
    Entry {
        file: head
            .and_then(|head| cache::path_of(&head))
            .unwrap_or_else(|| entry.name.into()),
        bytes: entry.bytes,
        used_unix_seconds: used.map_or(0, |used| used.as_secs()),
    }
}

/// Enough for the path of the file.
const HEAD_BYTES: u64 = 8192;

fn shown(place: PathBuf, directory: Option<&Directory>) -> Shown {
    let entries: Vec<Entry> = directory.map_or_else(Vec::new, |directory| {
        let mut files: Vec<Entry> = Vec::new();
        for entry in directory.entries() {
            let entry = described(directory, entry);
            // A file may have several: under other filters, and of its lines. The one that was used last comes first.
            match files.iter_mut().find(|known| known.file == entry.file) {
                Some(known) => known.bytes += entry.bytes,
                None => files.push(entry),
            }
        }
        files
    });
    Shown {
        directory: place,
        bytes: entries.iter().map(|entry| entry.bytes).sum(),
        limit: cache::LIMIT,
        entries,
    }
}
