//! The objects of a store.
//!
//! ```text
//! thalweg-store.json                                             which schema
//! figures/service=web/date=2026-11-19/host=a/<time>-<id>.parquet    a profile: it is there when this object is
//! calls/..., blocks/...                                          the same folders; written before the figures
//! contexts/service=web/release=1.4/<tree>.parquet                written before the figures that refer to them
//! staging/, compactions/                                         of a compaction that is under way
//! ```

use std::fmt;

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};
use serde::{Deserialize, Serialize};

use crate::labels::Label;
use crate::place::Place;
use crate::schema::{Table, VERSION};

const MARKER: &str = "thalweg-store.json";
const MAX_MARKER_BYTES: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct Marker {
    schema: u32,
}

/// The store does not answer, or refuses: no fault of what was to be stored.
#[derive(Debug)]
pub struct Away(String);

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Away {}

#[derive(Clone, Debug)]
pub struct Store {
    place: Place,
}

impl Store {
    /// One that is there.
    pub async fn open(name: &str) -> anyhow::Result<Store> {
        let store = Store {
            place: Place::open(name, false)?,
        };
        match store.version().await? {
            Some(version) => refuse_later(name, version)?,
            None => bail!("{name} is no store: 'thalweg push FILE --to {name}' makes one"),
        }
        Ok(store)
    }

    /// The same, and where there is nothing one is made.
    pub async fn open_or_create(name: &str) -> anyhow::Result<Store> {
        let store = Store {
            place: Place::open(name, true)?,
        };
        match store.version().await? {
            Some(version) => refuse_later(name, version)?,
            // Two that do so at once write the same.
            None => {
                let text = serde_json::to_vec(&Marker { schema: VERSION })?;
                store.put(&Path::from(MARKER), text).await?;
            }
        }
        Ok(store)
    }

    async fn version(&self) -> anyhow::Result<Option<u32>> {
        let found = match self.place.objects().get(&Path::from(MARKER)).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.told(error)),
        };
        if found.meta.size > MAX_MARKER_BYTES {
            bail!("{}: {MARKER} is damaged", self.name());
        }
        let bytes = found.bytes().await.map_err(|error| self.told(error))?;
        let marker: Marker = serde_json::from_slice(&bytes)
            .with_context(|| format!("{}: {MARKER} is damaged", self.name()))?;
        Ok(Some(marker.schema))
    }

    pub fn name(&self) -> &str {
        self.place.name()
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    pub async fn put(&self, path: &Path, bytes: Vec<u8>) -> anyhow::Result<()> {
        let put = self.place.objects().put(path, bytes.into()).await;
        put.map(drop).map_err(|error| self.told(error))
    }

    pub async fn get(&self, path: &Path) -> anyhow::Result<Bytes> {
        let got = self
            .place
            .objects()
            .get(path)
            .await
            .map_err(|error| self.told(error))?;
        got.bytes().await.map_err(|error| self.told(error))
    }

    pub async fn is_there(&self, path: &Path) -> anyhow::Result<bool> {
        match self.place.objects().head(path).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.told(error)),
        }
    }

    /// What is not there is deleted as well.
    pub async fn delete(&self, path: &Path) -> anyhow::Result<()> {
        match self.place.objects().delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.told(error)),
        }
    }

    /// In the order of their names.
    pub async fn list(&self, folder: &str) -> anyhow::Result<Vec<ObjectMeta>> {
        let folder = Path::from(folder);
        let listed: Result<Vec<ObjectMeta>, _> =
            self.place.objects().list(Some(&folder)).try_collect().await;
        let mut all = listed.map_err(|error| self.told(error))?;
        all.sort_by(|one, other| one.location.cmp(&other.location));
        Ok(all)
    }

    /// What the storage says, with what to do about it. Its own words have no keys in them.
    pub fn told(&self, error: object_store::Error) -> anyhow::Error {
        use object_store::Error;
        let name = self.name();
        match &error {
            Error::Unauthenticated { .. } | Error::PermissionDenied { .. } => {
                anyhow::Error::new(Away(format!(
                    "{name} refuses these credentials: see 'Credentials' in docs/store.md"
                )))
            }
            _ => anyhow::Error::from(error).context(Away(format!("cannot use the store {name}"))),
        }
    }
}

fn refuse_later(name: &str, version: u32) -> anyhow::Result<()> {
    if version > VERSION {
        bail!(
            "{name} has schema {version}, and this version of thalweg knows {VERSION}: use a later one"
        );
    }
    Ok(())
}

/// The folder of a service's and release's contexts.
pub fn contexts_folder(service: &Label, release: &Label) -> String {
    format!("contexts/service={service}/release={release}")
}

/// Where a profile's rows are.
pub fn rows_path(
    table: Table,
    service: &Label,
    host: &Label,
    unix_ns: u64,
    profile: i64,
) -> anyhow::Result<Path> {
    let time = jiff::Timestamp::from_nanosecond(unix_ns.into())
        .context("the profile's time is no time")?;
    let table = table.name();
    let date = time.strftime("%Y-%m-%d");
    let stamp = time.strftime("%Y%m%dT%H%M%SZ");
    Ok(Path::from(format!(
        "{table}/service={service}/date={date}/host={host}/{stamp}-{:016x}.parquet",
        profile as u64
    )))
}

/// `date` of `.../date=2026-11-19/...`.
pub fn partition<'a>(path: &'a str, column: &str) -> Option<&'a str> {
    path.split('/')
        .find_map(|folder| folder.strip_prefix(column)?.strip_prefix('='))
}
