//! The engine, with a store's tables.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::Context as _;
use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{DataFrame, SQLOptions, SessionConfig, SessionContext};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use url::Url;

use crate::fleet::Selection;
use crate::labels::Label;

use crate::overlay::{Cost, Overlay};
use crate::schema::Table;
use crate::store::{Store, partition};
use crate::{object, panics, udf};

/// What a question may take before it writes to a temporary directory.
pub const DEFAULT_MEMORY: usize = 1 << 30;

const ADDRESS: &str = "thalweg://store";

pub struct Session {
    store: Store,
    engine: SessionContext,
    cost: Arc<Cost>,
    paths: udf::KnownPaths,
    objects: Arc<Overlay>,
}

impl Session {
    pub async fn open(store: &str) -> anyhow::Result<Session> {
        let store = Store::open(store).await?;
        let overlay = Overlay::over(&store).await?;
        let cost = overlay.cost();
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let mut config = SessionConfig::new()
            .with_target_partitions(processors)
            .with_information_schema(true);
        let options = config.options_mut();
        options.execution.parquet.pushdown_filters = true;
        options.execution.parquet.reorder_filters = true;
        options.execution.collect_statistics = false;
        options.catalog.create_default_catalog_and_schema = true;
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(FairSpillPool::new(DEFAULT_MEMORY)))
            .build_arc()?;
        let engine = SessionContext::new_with_config_rt(config, runtime);
        let objects = Arc::new(overlay);
        engine.register_object_store(&Url::parse(ADDRESS)?, objects.clone());
        let paths = udf::register(&engine);
        let session = Session {
            store,
            engine,
            cost,
            paths,
            objects,
        };
        for table in Table::ALL {
            session.register(table)?;
        }
        session.views().await?;
        Ok(session)
    }

    /// `name` is `figures`, or `stored_calls` for what is seen through a view.
    fn register(&self, table: Table) -> anyhow::Result<()> {
        let name = table.name();
        let url = ListingTableUrl::parse(format!("{ADDRESS}/{name}/"))?;
        let partitions = table
            .partitions()
            .iter()
            .map(|column| ((*column).to_owned(), DataType::Utf8));
        let options = ListingOptions::new(Arc::new(ParquetFormat::default()))
            .with_file_extension(".parquet")
            .with_table_partition_cols(partitions.collect());
        let config = ListingTableConfig::new(url)
            .with_listing_options(options)
            .with_schema(table.schema());
        let shown = match table {
            Table::Calls | Table::Blocks => format!("stored_{name}"),
            _ => name.to_owned(),
        };
        self.engine
            .register_table(shown, Arc::new(ListingTable::try_new(config)?))?;
        Ok(())
    }

    /// What a push that was killed has left of calls and blocks is no profile's yet.
    async fn views(&self) -> anyhow::Result<()> {
        for name in ["calls", "blocks"] {
            let sql = format!(
                "create view {name} as select * from stored_{name} s where exists \
                 (select 1 from figures f where f.profile = s.profile and f.service = s.service and f.host = s.host and f.date = s.date)"
            );
            self.engine.sql(&sql).await?;
        }
        self.engine
            .sql(
                "create view profiles as select service, date, host, release, profile, min(time) as time, \
                 max(duration_ns) as duration_ns, min(command) as command, min(recorder) as recorder, \
                 bool_and(timed) as timed, min(notes) as notes, sum(calls) as calls, \
                 bool_or(calls_at_least) as calls_at_least, sum(self_ns) as self_ns, count(*) as contexts \
                 from figures group by service, date, host, release, profile",
            )
            .await?;
        Ok(())
    }

    /// Those that have profiles among the selected, by the names of folders alone.
    pub async fn hosts(&self, selection: &Selection) -> anyhow::Result<Vec<Label>> {
        let folder = match &selection.service {
            Some(service) => format!("figures/service={service}"),
            None => "figures".to_owned(),
        };
        let dates = |date: &str| {
            let day = |time: jiff::Timestamp| time.strftime("%Y-%m-%d").to_string();
            selection.since.is_none_or(|since| date >= &*day(since))
                && selection.until.is_none_or(|until| date <= &*day(until))
        };
        let mut hosts = BTreeSet::new();
        let objects: Vec<ObjectMeta> = self
            .objects
            .list(Some(&Path::from(folder)))
            .try_collect()
            .await
            .map_err(|e| self.store.told(e))?;
        for object in objects {
            let path = object.location.as_ref();
            let (date, host) = (partition(path, "date"), partition(path, "host"));
            if let (Some(date), Some(host)) = (date, host)
                && dates(date)
                && let Ok(host) = host.parse::<Label>()
                && (selection.hosts.is_empty() || selection.hosts.contains(&host))
            {
                hosts.insert(host);
            }
        }
        Ok(hosts.into_iter().collect())
    }

    pub fn reads(&self) -> (u64, u64) {
        (
            self.cost.reads.load(Ordering::Relaxed),
            self.cost.bytes.load(Ordering::Relaxed),
        )
    }

    /// A question, and nothing that changes something: no tables are made, no files outside of the store are read.
    pub async fn ask(&self, sql: &str) -> anyhow::Result<DataFrame> {
        let only_questions = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false);
        if udf::is_used(sql) {
            udf::load(&self.engine, &self.paths).await?;
        }
        Ok(self.engine.sql_with_options(sql, only_questions).await?)
    }

    /// All rows of an answer.
    pub async fn rows(&self, sql: &str) -> anyhow::Result<Vec<RecordBatch>> {
        let asked = self.ask(sql).await?;
        self.collect(asked).await
    }

    /// The library of the file format panics at some of what is none: in a task of its own.
    pub async fn collect(&self, asked: DataFrame) -> anyhow::Result<Vec<RecordBatch>> {
        match tokio::spawn(asked.collect()).await {
            Ok(Ok(rows)) => self.checked().await.map(|()| rows),
            Ok(Err(error)) => Err(self.explained(error.into()).await),
            Err(panicked) => Err(self.explained(panicked.into()).await),
        }
    }

    /// After an answer: whether it is whole.
    pub async fn checked(&self) -> anyhow::Result<()> {
        match panics::any() {
            true => Err(self.explained(anyhow::anyhow!("the engine panicked")).await),
            false => Ok(()),
        }
    }

    /// An engine does not say which file it could not read.
    pub async fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        let text = format!("{error:#}");
        let is_of_files = [
            "Parquet",
            "parquet",
            "Arrow",
            "cast",
            "Object Store",
            "panicked",
            "damaged",
            "nullable",
        ]
        .iter()
        .any(|word| text.contains(word));
        if !is_of_files {
            return error;
        }
        match damaged(&self.store).await {
            Ok(damaged) if !damaged.is_empty() => {
                let lines: Vec<String> = damaged
                    .iter()
                    .map(|(path, why)| format!("{path}: {why}"))
                    .collect();
                anyhow::anyhow!(
                    "{} has files that are damaged, or not thalweg's: delete them, or put them elsewhere\n{}",
                    self.store.name(),
                    lines.join("\n")
                )
            }
            _ => error,
        }
    }
}

/// Files that cannot be read, each with the reason.
pub async fn damaged(store: &Store) -> anyhow::Result<Vec<(String, String)>> {
    let mut damaged = Vec::new();
    for table in Table::ALL {
        for object in store.list(table.name()).await? {
            if object.location.extension() != Some("parquet") {
                continue;
            }
            let bytes = store.get(&object.location).await?;
            let read = move || -> anyhow::Result<()> {
                for batch in object::decode(table, bytes, &[])? {
                    batch.context("it is damaged")?;
                }
                Ok(())
            };
            // The library of the format panics at some of what is no Parquet.
            let why = match tokio::task::spawn_blocking(read).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "it is damaged".to_owned(),
            };
            damaged.push((object.location.to_string(), why));
        }
    }
    Ok(damaged)
}
