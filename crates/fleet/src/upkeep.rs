//! `thalweg store`: looking after one.
//!
//! A compaction makes one object of a host's and day's many, and is exact at each moment, for our own questions:
//!
//! ```text
//! staging/<id>      the rows of all, in one object           nobody reads it
//! compactions/<id>  what replaces what                       from here on questions read the staged object
//! objects deleted   those that it replaces                   questions do not see them any more
//! final object      a copy of the staged one                 questions read the staged one still
//! record deleted, staged object deleted                      questions read the final one
//! ```
//!
//! A compaction that was killed is finished by the next one. Engines that know nothing of records see, between the third
//! step and the fourth, fewer profiles: never half of one, and never one twice.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail};
use jiff::Timestamp;
use object_store::ObjectMeta;
use object_store::path::Path;
use xxhash_rust::xxh3::Xxh3;

use crate::fleet::parse_duration;
use crate::hooks;
use crate::object::{self, Writer};
use crate::overlay::{RECORDS, Record, records};
use crate::schema::Table;
use crate::session::damaged;
use crate::store::{Store, partition};

const STAGING: &str = "staging";
/// By then whoever wrote it has written the record as well, or was killed.
const SECONDS_STAGED: i64 = 24 * 3600;
/// What a compaction makes is no larger by much: readers take an object's footer as a whole.
const MAX_OBJECT_BYTES: u64 = 256 << 20;

/// Look after a store
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Command {
    /// Make few large files of many small ones, a host and day each; finish what was killed
    Compact {
        store: String,

        /// Only days that ended so long ago: profiles of later ones may still come
        #[arg(long, value_name = "TIME", default_value = "1d", value_parser = parse_age)]
        older_than: std::time::Duration,
    },
    /// Delete the profiles of days that ended so long ago
    Expire {
        store: String,

        #[arg(long, value_name = "TIME", value_parser = parse_age)]
        older_than: std::time::Duration,
    },
    /// Read everything, and name what is damaged
    Check { store: String },
}

fn parse_age(text: &str) -> Result<std::time::Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Compact { store, older_than } => {
            compact(&Store::open(&store).await?, older_than).await
        }
        Command::Expire { store, older_than } => {
            expire(&Store::open(&store).await?, older_than).await
        }
        Command::Check { store } => check(&Store::open(&store).await?).await,
    }
}

/// Folders of days from this one on are left alone.
fn first_day_kept(older_than: std::time::Duration) -> anyhow::Result<String> {
    let ago = jiff::SignedDuration::try_from(older_than).context("that is too long ago")?;
    let limit = Timestamp::now()
        .checked_sub(ago)
        .context("that is too long ago")?;
    Ok(limit.strftime("%Y-%m-%d").to_string())
}

/// Tables whose rows are in folders of days.
const BY_DAY: [Table; 3] = [Table::Calls, Table::Blocks, Table::Figures];

fn is_before(object: &ObjectMeta, day: &str) -> bool {
    partition(object.location.as_ref(), "date").is_some_and(|date| date < day)
}

async fn compact(store: &Store, older_than: std::time::Duration) -> anyhow::Result<ExitCode> {
    for (path, record) in records(store).await? {
        finish(store, &path, &record).await?;
    }
    // Left by one that was killed before its record was written, or after it was deleted.
    let now = Timestamp::now().as_second();
    for object in store.list(STAGING).await? {
        if now - object.last_modified.timestamp() > SECONDS_STAGED {
            store.delete(&object.location).await?;
        }
    }
    let day = first_day_kept(older_than)?;
    let (mut before, mut after) = (0, 0);
    for table in BY_DAY {
        let mut folders: BTreeMap<String, Vec<ObjectMeta>> = BTreeMap::new();
        for object in store.list(table.name()).await? {
            let is_rows = object.location.extension() == Some("parquet");
            if is_rows && is_before(&object, &day) {
                let path = object.location.as_ref();
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                folders.entry(folder.to_owned()).or_default().push(object);
            }
        }
        for (folder, objects) in folders {
            for group in groups(objects) {
                before += group.len();
                after += 1;
                replace(store, table, &folder, &group).await?;
            }
        }
    }
    tell!("{}: {before} files became {after}", store.name());
    Ok(ExitCode::SUCCESS)
}

/// Those that fit into one object, if there are several.
fn groups(objects: Vec<ObjectMeta>) -> Vec<Vec<ObjectMeta>> {
    let mut groups: Vec<Vec<ObjectMeta>> = vec![Vec::new()];
    let mut bytes = 0u64;
    for object in objects {
        bytes = bytes.saturating_add(object.size);
        if bytes > MAX_OBJECT_BYTES {
            groups.push(Vec::new());
            bytes = object.size;
        }
        if let Some(group) = groups.last_mut() {
            group.push(object);
        }
    }
    groups.retain(|group| group.len() > 1);
    groups
}

async fn replace(
    store: &Store,
    table: Table,
    folder: &str,
    group: &[ObjectMeta],
) -> anyhow::Result<()> {
    let mut writer = Writer::new(table)?;
    let mut hash = Xxh3::new();
    for one in group {
        let path = &one.location;
        hash.update(path.as_ref().as_bytes());
        let bytes = store.get(path).await?;
        let damaged = || format!("{}/{path} is not compacted", store.name());
        for batch in object::decode(table, bytes, &[]).with_context(damaged)? {
            let rows =
                object::in_order(table, &batch.with_context(damaged)?).with_context(damaged)?;
            writer.write(&rows)?;
        }
    }
    let id = format!("{:016x}", hash.digest());
    let first = group
        .first()
        .and_then(|one| one.location.filename())
        .unwrap_or_default();
    let stamp = first.split_once('-').map_or("", |(stamp, _)| stamp);
    let record = Record {
        object: format!("{folder}/{stamp}-compacted-{id}.parquet"),
        staged: format!("{STAGING}/{id}.parquet"),
        replaces: group.iter().map(|one| one.location.to_string()).collect(),
    };
    let staged = Path::from(record.staged.clone());
    store.put(&staged, writer.finish()?).await?;
    hooks::after_put(&staged);
    let path = Path::from(format!("{RECORDS}/{id}.json"));
    store.put(&path, serde_json::to_vec(&record)?).await?;
    hooks::after_put(&path);
    finish(store, &path, &record).await
}

/// From the record on. Each step may have been done before.
async fn finish(store: &Store, path: &Path, record: &Record) -> anyhow::Result<()> {
    let is_rows = |name: &str| {
        BY_DAY
            .iter()
            .any(|table| name.starts_with(&format!("{}/", table.name())))
    };
    if !record.staged.starts_with(STAGING)
        || !is_rows(&record.object)
        || !record.replaces.iter().all(|name| is_rows(name))
    {
        bail!(
            "{}/{path} is no record of a compaction: delete it",
            store.name()
        );
    }
    let staged = Path::from(record.staged.clone());
    let bytes = store.get(&staged).await?;
    for one in &record.replaces {
        let one = Path::from(one.clone());
        store.delete(&one).await?;
        hooks::after_put(&one);
    }
    let object = Path::from(record.object.clone());
    store.put(&object, bytes.to_vec()).await?;
    hooks::after_put(&object);
    store.delete(path).await?;
    hooks::after_put(path);
    store.delete(&staged).await
}

/// Figures go first: calls and blocks without them are no profile's.
async fn expire(store: &Store, older_than: std::time::Duration) -> anyhow::Result<ExitCode> {
    for (path, record) in records(store).await? {
        finish(store, &path, &record).await?;
    }
    let day = first_day_kept(older_than)?;
    let (mut files, mut bytes) = (0u64, 0u64);
    for table in BY_DAY.into_iter().rev() {
        for object in store.list(table.name()).await? {
            if is_before(&object, &day) {
                store.delete(&object.location).await?;
                files += 1;
                bytes += object.size;
            }
        }
    }
    tell!(
        "{}: {files} files of {bytes} bytes are deleted, of days before {day}",
        store.name()
    );
    Ok(ExitCode::SUCCESS)
}

async fn check(store: &Store) -> anyhow::Result<ExitCode> {
    let damaged = damaged(store).await?;
    if damaged.is_empty() {
        tell!("{}: every file can be read", store.name());
        return Ok(ExitCode::SUCCESS);
    }
    let lines: Vec<String> = damaged
        .iter()
        .map(|(path, why)| format!("{path}: {why}"))
        .collect();
    bail!(
        "{} has files that are damaged, or not thalweg's: delete them, or put them elsewhere\n{}",
        store.name(),
        lines.join("\n")
    )
}
