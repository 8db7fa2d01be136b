//! `thalweg push`: a profile into a store.
//!
//! ```text
//! contexts that are new -> calls -> blocks -> figures      the last one makes the profile visible
//! ```
//!
//! Every object's name follows from what is in it, and none is changed: a push that was killed is pushed again, twice is once,
//! and two at the same time do not meet.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, bail};
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int32Type, Int64Type};
use futures::StreamExt;
use object_store::path::Path;
use thalweg_analysis::{Patterns, Pipeline, RuntimeFrames};
use thalweg_model::Profile;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::contexts::{Context, Contexts, PathHash, Place};
use crate::labels::Label;
use crate::object;
use crate::rows::{self, Head};
use crate::schema::Table;
use crate::store::{Store, contexts_folder, rows_path};

/// Larger files are no profiles of ours.
const MAX_PROFILE_BYTES: u64 = 2 << 30;
/// Of contexts that others have stored; those beyond are stored once more.
const MAX_KNOWN_BYTES: u64 = 64 << 20;
const READS_AT_ONCE: usize = 8;

/// Put profiles into a store
///
/// A profile is in the store as a whole or not at all. The same one again changes nothing.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The profiles
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// A directory, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or a collector's https:// address
    #[arg(long, value_name = "STORE")]
    pub to: String,

    #[command(flatten)]
    pub labels: LabelArgs,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

/// What the profile is of.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct LabelArgs {
    /// What it is a part of [default: the name of the program]
    #[arg(long, value_name = "NAME")]
    pub service: Option<Label>,

    /// Where it ran [default: this host's name]
    #[arg(long, value_name = "NAME")]
    pub host: Option<Label>,

    /// Which version of the service [default: the beginning of the program's build-id]
    #[arg(long, value_name = "NAME")]
    pub release: Option<Label>,
}

impl LabelArgs {
    pub fn labels(&self, profile: &Profile) -> anyhow::Result<Labels> {
        let program = program(profile);
        let host = match &self.host {
            Some(host) => host.clone(),
            None => Label::from_any(
                std::fs::read_to_string("/proc/sys/kernel/hostname")
                    .context("cannot read the host's name: --host gives one")?
                    .trim(),
            ),
        };
        Ok(Labels {
            service: self
                .service
                .clone()
                .unwrap_or_else(|| Label::from_any(program)),
            host,
            release: self
                .release
                .clone()
                .unwrap_or_else(|| release(profile, program)),
        })
    }
}

#[derive(Clone, Debug)]
pub struct Labels {
    pub service: Label,
    pub host: Label,
    pub release: Label,
}

fn program(profile: &Profile) -> &str {
    let command = profile
        .processes
        .first()
        .and_then(|process| process.command.first());
    command.map_or("unknown", |path| path.rsplit('/').next().unwrap_or(path))
}

fn release(profile: &Profile, program: &str) -> Label {
    const SHOWN_HEX_DIGITS: usize = 12;
    let own = profile.modules.iter().find(|module| module.name == program);
    let build_id = own
        .or(profile.modules.first())
        .map_or("", |module| &module.build_id);
    match build_id.get(..SHOWN_HEX_DIGITS).unwrap_or(build_id) {
        "" => Label::from_any("unknown"),
        short => Label::from_any(short),
    }
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let target = Target::open(&args.to).await?;
    for file in &args.files {
        let name = file.display();
        let size = std::fs::metadata(file)
            .with_context(|| format!("cannot read {name}"))?
            .len();
        if size > MAX_PROFILE_BYTES {
            bail!("{name} is too large for a profile");
        }
        let bytes = std::fs::read(file).with_context(|| format!("cannot read {name}"))?;
        let began = Instant::now();
        let pushed = target
            .push(&bytes, &args.labels)
            .await
            .with_context(|| format!("{name} is not pushed"))?;
        if !args.quiet {
            pushed.tell(&args.to, began);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Of a process that did nothing.
#[derive(Debug)]
pub struct NoCalls;

impl fmt::Display for NoCalls {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("it has no calls")
    }
}

impl std::error::Error for NoCalls {}

/// Where profiles go.
pub enum Target {
    Store(Store),
}

impl Target {
    pub async fn open(name: &str) -> anyhow::Result<Target> {
        Store::open_or_create(name).await.map(Target::Store)
    }

    /// One that must be there.
    pub async fn open_known(name: &str) -> anyhow::Result<Target> {
        Store::open(name).await.map(Target::Store)
    }

    pub async fn push(&self, bytes: &[u8], labels: &LabelArgs) -> anyhow::Result<Pushed> {
        match self {
            Target::Store(store) => push(store, bytes, labels).await,
        }
    }
}

/// What a push has written.
#[derive(Clone, Debug)]
pub struct Pushed {
    labels: Labels,
    rows: usize,
    new_contexts: usize,
    bytes: usize,
    was_there: bool,
}

impl Pushed {
    fn tell(&self, to: &str, began: Instant) {
        let Labels {
            service,
            host,
            release,
        } = &self.labels;
        let took = began.elapsed().as_millis();
        if self.was_there {
            tell!("{to}: {service} {release} on {host} was there already");
            return;
        }
        tell!(
            "{to}: {service} {release} on {host}: {} rows, {} new contexts, {} bytes, {took} ms",
            self.rows,
            self.new_contexts,
            self.bytes
        );
    }
}

/// `bytes`: of a profile's file.
pub async fn push(store: &Store, bytes: &[u8], labels: &LabelArgs) -> anyhow::Result<Pushed> {
    let recorded = thalweg_model::read(&mut &*bytes)?;
    let labels = labels.labels(&recorded)?;
    let unix_ns = recorded.meta.created_unix_ns;
    let id = xxh3_64(bytes) as i64;
    let head = Head {
        profile: id,
        release: labels.release.clone(),
    };
    let path = |table| rows_path(table, &labels.service, &labels.host, unix_ns, id);
    let mut pushed = Pushed {
        labels: labels.clone(),
        rows: 0,
        new_contexts: 0,
        bytes: 0,
        was_there: store.is_there(&path(Table::Figures)?).await?,
    };
    if pushed.was_there {
        return Ok(pushed);
    }
    let profile = figures_of(recorded)?;
    let contexts = Contexts::of(&profile)?;
    let mut written = Vec::new();
    let (places, new) = placed(store, &labels, &contexts).await?;
    if let Some((tree, new)) = &new {
        let rows = rows::contexts(&profile, new, *tree)?;
        let folder = contexts_folder(&labels.service, &labels.release);
        let path = Path::from(format!("{folder}/{:016x}.parquet", *tree as u64));
        pushed.new_contexts = new.len();
        written.push((path, object::encode(Table::Contexts, &rows)?));
    }
    for (table, rows) in [
        (Table::Calls, rows::calls(&profile, &head)?),
        (Table::Blocks, rows::blocks(&profile, &head)?),
    ] {
        if let Some(rows) = rows {
            written.push((path(table)?, object::encode(table, &rows)?));
        }
    }
    let figures = rows::figures(&profile, &contexts, &places, &head)?;
    if figures.num_rows() == 0 {
        bail!(NoCalls);
    }
    pushed.rows = figures.num_rows();
    written.push((
        path(Table::Figures)?,
        object::encode(Table::Figures, &figures)?,
    ));
    // In this order: what comes later refers to what comes before.
    for (path, bytes) in written {
        pushed.bytes += bytes.len();
        store.put(&path, bytes).await?;
        crate::hooks::after_put(&path);
    }
    Ok(pushed)
}

/// As exports have them: call sites are rolled up, runtimes are shown.
fn figures_of(recorded: Profile) -> anyhow::Result<Profile> {
    let pipeline = Pipeline {
        patterns: Patterns {
            runtime_frames: RuntimeFrames::Shown,
            ..Patterns::default()
        },
        ..Pipeline::default()
    };
    Ok(pipeline.run(recorded)?)
}

type Tree = (i64, Vec<Context>);

/// Where each context is, and the tree of those that no object has yet.
async fn placed(
    store: &Store,
    labels: &Labels,
    contexts: &Contexts,
) -> anyhow::Result<(Vec<Place>, Option<Tree>)> {
    let known = known(store, labels).await?;
    let new: Vec<Context> = contexts
        .all
        .iter()
        .filter(|context| !known.contains_key(&context.path))
        .copied()
        .collect();
    let mut hash = Xxh3::new();
    for label in [&labels.service, &labels.release] {
        hash.update(label.as_str().as_bytes());
        hash.update(&[0]);
    }
    for context in &new {
        hash.update(&context.path.0.to_le_bytes());
    }
    let tree = hash.digest() as i64;
    let mut node = 0;
    let mut places = Vec::with_capacity(contexts.all.len());
    for context in &contexts.all {
        let place = known.get(&context.path).copied().unwrap_or_else(|| {
            node += 1;
            Place {
                tree,
                node: node - 1,
            }
        });
        places.push(place);
    }
    Ok((places, (!new.is_empty()).then_some((tree, new))))
}

/// The contexts that the store has of this service and release. A file that is damaged has none: what it should have is stored
/// once more.
async fn known(store: &Store, labels: &Labels) -> anyhow::Result<HashMap<PathHash, Place>> {
    let mut left = MAX_KNOWN_BYTES;
    let mut objects = store
        .list(&contexts_folder(&labels.service, &labels.release))
        .await?;
    objects.retain(|object| object.location.extension() == Some("parquet"));
    // The largest first: they spare most.
    objects.sort_by_key(|object| std::cmp::Reverse(object.size));
    objects.retain(|object| {
        let fits = object.size <= left;
        left -= if fits { object.size } else { 0 };
        fits
    });
    let reads = objects
        .iter()
        .map(async |object| Ok((object.location.clone(), store.get(&object.location).await?)));
    let read: Vec<anyhow::Result<(Path, bytes::Bytes)>> = futures::stream::iter(reads)
        .buffered(READS_AT_ONCE)
        .collect()
        .await;
    let mut known = HashMap::new();
    for object in read {
        let (path, bytes) = object?;
        match places(bytes) {
            Ok(places) => known.extend(places),
            Err(error) => tell!("{}/{path} is passed over: {error:#}", store.name()),
        }
    }
    Ok(known)
}

fn places(bytes: bytes::Bytes) -> anyhow::Result<Vec<(PathHash, Place)>> {
    let mut places = Vec::new();
    for batch in object::decode(Table::Contexts, bytes, &["tree", "node", "path"])? {
        let batch: RecordBatch = batch?;
        let numbers = |name: &str| {
            batch
                .column_by_name(name)
                .map(|column| column.as_primitive::<Int64Type>().values())
        };
        let (Some(trees), Some(paths)) = (numbers("tree"), numbers("path")) else {
            bail!("it has not all columns");
        };
        let nodes = batch
            .column_by_name("node")
            .context("it has no numbers")?
            .as_primitive::<Int32Type>()
            .values();
        for ((&tree, &path), &node) in trees.iter().zip(paths).zip(nodes) {
            places.push((PathHash(path), Place { tree, node }));
        }
    }
    Ok(places)
}
