//! A store as questions see it: objects that a compaction is about to replace are one already.
//!
//! ```text
//! compactions/<id>.json    {object, staged, replaces}: as long as it is there, readers see `staged` under the name `object`
//!                          and none of `replaces`
//! ```
//!
//! Reads are counted: a question can say what it cost.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use serde::{Deserialize, Serialize};

use crate::store::Store;

pub const RECORDS: &str = "compactions";
/// Names of objects of 100,000 profiles.
const MAX_RECORD_BYTES: u64 = 32 << 20;

/// What one compaction does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub object: String,
    pub staged: String,
    pub replaces: Vec<String>,
}

/// Those under way, with where each is written down.
pub async fn records(store: &Store) -> anyhow::Result<Vec<(Path, Record)>> {
    let mut records = Vec::new();
    for object in store.list(RECORDS).await? {
        if object.size > MAX_RECORD_BYTES {
            anyhow::bail!(
                "{}/{} is too large for a compaction's record",
                store.name(),
                object.location
            );
        }
        let bytes = store.get(&object.location).await?;
        let record = serde_json::from_slice(&bytes).map_err(|_| {
            anyhow::anyhow!(
                "{}/{} is damaged: delete it, and compact again",
                store.name(),
                object.location
            )
        })?;
        records.push((object.location, record));
    }
    Ok(records)
}

#[derive(Debug, Default)]
pub struct Cost {
    pub reads: AtomicU64,
    pub bytes: AtomicU64,
}

#[derive(Debug)]
pub struct Overlay {
    inner: Arc<dyn ObjectStore>,
    hidden: HashSet<Path>,
    /// By the name under which it is seen.
    staged: HashMap<Path, Path>,
    cost: Arc<Cost>,
}

impl Overlay {
    pub async fn over(store: &Store) -> anyhow::Result<Overlay> {
        let mut overlay = Overlay {
            inner: store.place().objects().clone(),
            hidden: HashSet::new(),
            staged: HashMap::new(),
            cost: Arc::default(),
        };
        for (_, record) in records(store).await? {
            let object = Path::from(record.object);
            overlay
                .hidden
                .extend(record.replaces.into_iter().map(Path::from));
            overlay.hidden.insert(object.clone());
            overlay.staged.insert(object, Path::from(record.staged));
        }
        Ok(overlay)
    }

    pub fn cost(&self) -> Arc<Cost> {
        self.cost.clone()
    }

    fn place<'a>(&'a self, path: &'a Path) -> &'a Path {
        self.staged.get(path).unwrap_or(path)
    }
}

impl fmt::Display for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.inner.fmt(f)
    }
}

fn read_only() -> object_store::Error {
    object_store::Error::NotImplemented {
        operation: "write".to_owned(),
        implementer: "a question".to_owned(),
    }
}

#[async_trait]
impl ObjectStore for Overlay {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only())
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        let got = self.inner.get_opts(self.place(location), options).await?;
        if !head {
            self.cost.reads.fetch_add(1, Ordering::Relaxed);
            self.cost
                .bytes
                .fetch_add(got.range.end - got.range.start, Ordering::Relaxed);
        }
        Ok(got)
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        let got = self.inner.get_ranges(self.place(location), ranges).await?;
        self.cost.reads.fetch_add(1, Ordering::Relaxed);
        let bytes: usize = got.iter().map(bytes::Bytes::len).sum();
        self.cost.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(got)
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        futures::stream::once(async { Err(read_only()) }).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let hidden = self.hidden.clone();
        let there = self
            .inner
            .list(prefix)
            .try_filter(move |meta| std::future::ready(!hidden.contains(&meta.location)));
        // The engine would take an empty file for one without rows.
        let there = there.and_then(|meta| {
            let is_empty = meta.size == 0 && meta.location.extension() == Some("parquet");
            std::future::ready(match is_empty {
                true => Err(object_store::Error::Generic {
                    store: "thalweg",
                    source: format!("{} is damaged: it is empty", meta.location).into(),
                }),
                false => Ok(meta),
            })
        });
        let prefix = prefix.cloned();
        let is_below = move |path: &Path| {
            prefix
                .as_ref()
                .is_none_or(|prefix| path.prefix_matches(prefix))
        };
        let staged: Vec<(Path, Path)> = self
            .staged
            .iter()
            .filter(|(object, _)| is_below(object))
            .map(|(o, s)| (o.clone(), s.clone()))
            .collect();
        let inner = self.inner.clone();
        let staged = futures::stream::iter(staged).then(move |(object, staged)| {
            let inner = inner.clone();
            async move {
                let options = GetOptions {
                    head: true,
                    ..GetOptions::default()
                };
                let meta = inner.get_opts(&staged, options).await?.meta;
                Ok(ObjectMeta {
                    location: object,
                    ..meta
                })
            }
        });
        there.chain(staged).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        listed
            .objects
            .retain(|meta| !self.hidden.contains(&meta.location));
        let folder = prefix.cloned().unwrap_or_default();
        for (object, staged) in &self.staged {
            let Some(mut rest) = object.prefix_match(&folder) else {
                continue;
            };
            let Some(first) = rest.next() else {
                continue;
            };
            if rest.next().is_none() {
                let options = GetOptions {
                    head: true,
                    ..GetOptions::default()
                };
                let meta = self.inner.get_opts(staged, options).await?.meta;
                listed.objects.push(ObjectMeta {
                    location: object.clone(),
                    ..meta
                });
            } else {
                let below = folder.clone().join(first);
                if !listed.common_prefixes.contains(&below) {
                    listed.common_prefixes.push(below);
                }
            }
        }
        Ok(listed)
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only())
    }
}
