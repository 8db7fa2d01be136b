//! Rows as the bytes of one Parquet object, and back.

use std::sync::Arc;

use anyhow::{Context, bail};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::schema::{Table, VERSION};

/// In the footer of every file.
const VERSION_KEY: &str = "thalweg.schema";
/// Half a dozen profiles of 20,000 contexts: what a reader takes or leaves as a whole.
const ROWS_PER_GROUP: usize = 128 * 1024;
/// Pages have statistics of their own.
const ROWS_PER_PAGE: usize = 20_000;

/// Columns in which hardly two values are equal: a dictionary would be a second copy of them.
const SCATTERED: &[&str] = &["path", "parent", "entry_unix_ns", "total_ns"];
/// Columns that rise.
const RISING: &[&str] = &["node", "call", "start"];

fn properties(table: Table) -> anyhow::Result<WriterProperties> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_max_row_group_row_count(Some(ROWS_PER_GROUP))
        .set_data_page_row_count_limit(ROWS_PER_PAGE)
        .set_write_batch_size(8 * 1024)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_created_by(format!("thalweg-fleet {}", env!("CARGO_PKG_VERSION")))
        .set_key_value_metadata(Some(vec![KeyValue::new(
            VERSION_KEY.to_owned(),
            VERSION.to_string(),
        )]));
    for field in table.schema().fields() {
        let column = ColumnPath::from(field.name().as_str());
        if RISING.contains(&field.name().as_str()) {
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
        } else if SCATTERED.contains(&field.name().as_str()) {
            properties = properties.set_column_dictionary_enabled(column, false);
        }
    }
    Ok(properties.build())
}

/// Batches go in one after the other; only one row group is kept in memory.
pub struct Writer(ArrowWriter<Vec<u8>>);

impl Writer {
    pub fn new(table: Table) -> anyhow::Result<Writer> {
        Ok(Writer(ArrowWriter::try_new(
            Vec::new(),
            table.schema(),
            Some(properties(table)?),
        )?))
    }

    pub fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        Ok(self.0.write(batch)?)
    }

    pub fn finish(self) -> anyhow::Result<Vec<u8>> {
        Ok(self.0.into_inner()?)
    }
}

pub fn encode(table: Table, batch: &RecordBatch) -> anyhow::Result<Vec<u8>> {
    let mut writer = Writer::new(table)?;
    writer.write(batch)?;
    writer.finish()
}

/// The rows of one object, of which only these columns are read; all if there are none. What is no Parquet, of a later
/// version or has other columns than the table is refused.
pub fn decode(
    table: Table,
    bytes: Bytes,
    columns: &[&str],
) -> anyhow::Result<ParquetRecordBatchReader> {
    let builder =
        ParquetRecordBatchReaderBuilder::try_new(bytes).context("it is no whole Parquet file")?;
    let pairs = builder.metadata().file_metadata().key_value_metadata();
    let version = pairs
        .and_then(|all| all.iter().find(|pair| pair.key == VERSION_KEY))
        .and_then(|pair| pair.value.as_deref());
    match version.and_then(|text| text.parse::<u32>().ok()) {
        Some(found) if found <= VERSION => {}
        Some(found) => {
            bail!("it has schema {found}, and this version knows {VERSION}: use a later thalweg")
        }
        None => bail!("thalweg has not written it: its footer has no {VERSION_KEY}"),
    }
    check(table, builder.schema())?;
    let mask = match columns {
        [] => ProjectionMask::all(),
        some => ProjectionMask::columns(builder.parquet_schema(), some.iter().copied()),
    };
    Ok(builder
        .with_projection(mask)
        .with_batch_size(64 * 1024)
        .build()?)
}

/// Every column of the table is there with its type. Files of later versions may have more.
pub fn check(table: Table, found: &SchemaRef) -> anyhow::Result<()> {
    for field in table.schema().fields() {
        let Ok(other) = found.field_with_name(field.name()) else {
            bail!("it has no column {}", field.name());
        };
        if other.data_type() != field.data_type() {
            bail!(
                "its column {} is {}, not {}",
                field.name(),
                other.data_type(),
                field.data_type()
            );
        }
    }
    Ok(())
}

/// A batch with the table's columns in the table's order.
pub fn in_order(table: Table, batch: &RecordBatch) -> anyhow::Result<RecordBatch> {
    let schema = table.schema();
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let column = batch
            .column_by_name(field.name())
            .with_context(|| format!("it has no column {}", field.name()))?;
        columns.push(Arc::clone(column));
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}
