//! Answers: a table for eyes, CSV, JSON lines or Parquet for tools.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::ValueEnum;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use thalweg_model::OutputFile;

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Table,
    Csv,
    /// One object a line
    Json,
    Parquet,
}

/// How an answer is shown.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct OutputArgs {
    /// How the answer is written
    #[arg(long, short, value_enum, default_value_t)]
    pub format: Format,

    /// Where to; standard output when not given
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl OutputArgs {
    pub fn write(&self, schema: &SchemaRef, rows: &[RecordBatch]) -> anyhow::Result<()> {
        if self.format == Format::Parquet && self.output.is_none() && io::stdout().is_terminal() {
            bail!("this format is binary and would garble the terminal: name a file with -o");
        }
        let bytes = match self.format {
            Format::Table => table(schema, rows)?.into_bytes(),
            Format::Csv => csv(schema, rows)?.into_bytes(),
            Format::Json => json(schema, rows)?.into_bytes(),
            Format::Parquet => parquet(schema, rows)?,
        };
        match &self.output {
            Some(path) => OutputFile::create(path)?.save_bytes(&bytes)?,
            None => io::stdout()
                .write_all(&bytes)
                .context("cannot write to standard output")?,
        }
        Ok(())
    }
}

fn is_number(kind: &DataType) -> bool {
    kind.is_numeric()
}

/// Each cell as text; `None` is null.
fn cells(batch: &RecordBatch) -> anyhow::Result<Vec<Vec<Option<String>>>> {
    let options = FormatOptions::default();
    let columns: Result<Vec<ArrayFormatter>, _> = batch
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column, &options))
        .collect();
    let columns = columns?;
    let mut rows = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        let mut cells = Vec::with_capacity(columns.len());
        for (column, array) in columns.iter().zip(batch.columns()) {
            let is_there = array.is_valid(row);
            cells.push(match is_there {
                true => Some(column.value(row).try_to_string()?),
                false => None,
            });
        }
        rows.push(cells);
    }
    Ok(rows)
}

/// Names come from targets: what would command the terminal is written out.
fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if c.is_control() {
                c.escape_default().collect::<Vec<_>>()
            } else {
                vec![c]
            }
        })
        .collect()
}

/// The same for a message of several lines.
pub fn printable_lines(text: &str) -> String {
    text.lines().map(printable).collect::<Vec<_>>().join("\n")
}

fn table(schema: &SchemaRef, rows: &[RecordBatch]) -> anyhow::Result<String> {
    const MAX_CELL_CHARS: usize = 80;
    let mut lines = vec![
        schema
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect::<Vec<_>>(),
    ];
    for batch in rows {
        for row in cells(batch)? {
            let short = row.into_iter().map(|cell| {
                let cell = printable(&cell.unwrap_or_default());
                match cell.char_indices().nth(MAX_CELL_CHARS) {
                    Some((end, _)) => format!("{}…", &cell[..end]),
                    None => cell,
                }
            });
            lines.push(short.collect());
        }
    }
    let numbers: Vec<bool> = schema
        .fields()
        .iter()
        .map(|field| is_number(field.data_type()))
        .collect();
    let widths: Vec<usize> = (0..numbers.len())
        .map(|column| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in lines {
        let mut shown = String::new();
        for ((cell, &width), &number) in line.iter().zip(&widths).zip(&numbers) {
            let padding = " ".repeat(width - cell.chars().count());
            let (before, after) = if number {
                (&*padding, "")
            } else {
                ("", &*padding)
            };
            shown.push_str(&format!("{before}{cell}{after}  "));
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    Ok(text)
}

fn csv(schema: &SchemaRef, rows: &[RecordBatch]) -> anyhow::Result<String> {
    let quoted = |cell: &str| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    };
    let names: Vec<String> = schema
        .fields()
        .iter()
        .map(|field| quoted(field.name()))
        .collect();
    let mut text = names.join(",") + "\n";
    for batch in rows {
        for row in cells(batch)? {
            let row: Vec<String> = row
                .iter()
                .map(|cell| quoted(cell.as_deref().unwrap_or_default()))
                .collect();
            text.push_str(&row.join(","));
            text.push('\n');
        }
    }
    Ok(text)
}

fn json(schema: &SchemaRef, rows: &[RecordBatch]) -> anyhow::Result<String> {
    let mut text = String::new();
    for batch in rows {
        for (number, row) in cells(batch)?.into_iter().enumerate() {
            let mut object = serde_json::Map::new();
            for ((field, cell), column) in schema.fields().iter().zip(row).zip(batch.columns()) {
                let value = match (cell, field.data_type()) {
                    (None, _) => Value::Null,
                    (Some(cell), DataType::Boolean) => Value::Bool(cell == "true"),
                    (Some(_), DataType::Float64) => {
                        column.as_primitive::<Float64Type>().value(number).into()
                    }
                    (Some(cell), kind) if kind.is_integer() => {
                        serde_json::from_str(&cell).unwrap_or(Value::String(cell))
                    }
                    (Some(cell), _) => Value::String(cell),
                };
                object.insert(field.name().clone(), value);
            }
            text.push_str(&Value::Object(object).to_string());
            text.push('\n');
        }
    }
    Ok(text)
}

fn parquet(schema: &SchemaRef, rows: &[RecordBatch]) -> anyhow::Result<Vec<u8>> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties))?;
    for batch in rows {
        writer.write(batch)?;
    }
    Ok(writer.into_inner()?)
}
