//! The table of contexts as Parquet, for duckdb, pandas, Spark and the like.
//!
//! ```text
//! PAR1 | row group: per column one page | row group ... | what stands where (Thrift) | its length | PAR1
//! page = header (Thrift), then with zstd: which cells are there (runs), the cells that are (plain)
//! ```
//!
//! Written by hand: this much of the format is a page of code, while the library for all of it takes longer to compile
//! than the rest of thalweg together. Equal names stand next to each other often enough for zstd to need no dictionary.

use std::io::{self, Write};

use thalweg_model::Profile;

use crate::table::{Cell, Column, Kind, Row, columns, threads};

const MAGIC: &[u8] = b"PAR1";

/// Rows that a reader takes in at once, and that the writer keeps in memory.
const ROWS_PER_GROUP: usize = 128 * 1024;

/// Numbers that the format gives to what it names.
const OPTIONAL: i64 = 1;
const ENCODING_PLAIN: i64 = 0;
const ENCODING_RUNS: i64 = 3;
const CODEC_ZSTD: i64 = 6;
const DATA_PAGE: i64 = 0;

pub fn write(profile: &Profile, out: impl Write) -> io::Result<()> {
    let mut file = File {
        columns: columns(profile),
        out,
        written: 0,
        groups: Vec::new(),
        rows: 0,
    };
    file.write(MAGIC)?;
    let mut waiting: Vec<Row> = Vec::new();
    for rows in threads(profile) {
        for row in rows {
            waiting.push(row);
            if waiting.len() == ROWS_PER_GROUP {
                file.group(&waiting)?;
                waiting.clear();
            }
        }
    }
    if !waiting.is_empty() {
        file.group(&waiting)?;
    }
    let footer = file.footer(&profile.meta.version);
    file.write(&footer)?;
    file.write(&(footer.len() as u32).to_le_bytes())?;
    file.write(MAGIC)?;
    file.out.flush()
}

struct File<W> {
    out: W,
    columns: Vec<&'static Column>,
    written: u64,
    /// A finished description of each row group.
    groups: Vec<Thrift>,
    rows: u64,
}

impl<W: Write> File<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn group(&mut self, rows: &[Row]) -> io::Result<()> {
        let mut chunks = Vec::new();
        let mut group_bytes = 0;
        for column in self.columns.clone() {
            let body = page(column, rows);
            let packed = zstd::bulk::compress(&body, 3)?;
            let header = page_header(rows.len(), body.len(), packed.len());
            let at = self.written;
            self.write(&header)?;
            self.write(&packed)?;
            let plain_size = (header.len() + body.len()) as i64;
            group_bytes += plain_size;
            let mut chunk = Thrift::default();
            chunk.number(2, at as i64);
            chunk.structure(3, |meta| {
                meta.small(1, physical_type(column.kind));
                meta.small_list(2, &[ENCODING_PLAIN, ENCODING_RUNS]);
                meta.text_list(3, &[column.name]);
                meta.small(4, CODEC_ZSTD);
                meta.number(5, rows.len() as i64);
                meta.number(6, plain_size);
                meta.number(7, (header.len() + packed.len()) as i64);
                meta.number(9, at as i64);
            });
            chunks.push(chunk);
        }
        let mut group = Thrift::default();
        group.structure_list(1, &chunks);
        group.number(2, group_bytes);
        group.number(3, rows.len() as i64);
        self.groups.push(group);
        self.rows += rows.len() as u64;
        Ok(())
    }

    fn footer(&self, version: &str) -> Vec<u8> {
        let mut root = Thrift::default();
        root.text(4, "contexts");
        root.small(5, self.columns.len() as i64);
        let columns = self.columns.iter().map(|column| {
            let mut element = Thrift::default();
            element.small(1, physical_type(column.kind));
            element.small(3, OPTIONAL);
            element.text(4, column.name);
            // Text is UTF-8, numbers have no sign.
            match column.kind {
                Kind::Text => element.small(6, 0),
                Kind::Number => element.small(6, 14),
                Kind::Truth => {}
            }
            element
        });
        let schema: Vec<Thrift> = std::iter::once(root).chain(columns).collect();
        let mut footer = Thrift::default();
        footer.small(1, 1);
        footer.structure_list(2, &schema);
        footer.number(3, self.rows as i64);
        footer.structure_list(4, &self.groups);
        footer.text(6, &format!("thalweg version {version}"));
        footer.finished()
    }
}

fn physical_type(kind: Kind) -> i64 {
    match kind {
        Kind::Truth => 0,
        Kind::Number => 2,
        Kind::Text => 6,
    }
}

fn page_header(rows: usize, plain_size: usize, packed_size: usize) -> Vec<u8> {
    let mut header = Thrift::default();
    header.small(1, DATA_PAGE);
    header.small(2, plain_size as i64);
    header.small(3, packed_size as i64);
    header.structure(5, |data| {
        data.small(1, rows as i64);
        data.small(2, ENCODING_PLAIN);
        data.small(3, ENCODING_RUNS);
        data.small(4, ENCODING_RUNS);
    });
    header.finished()
}

/// Which cells are there, as runs of equal bits, then those that are.
fn page(column: &Column, rows: &[Row]) -> Vec<u8> {
    let mut runs: Vec<(bool, u64)> = Vec::new();
    let mut cells = Vec::new();
    let mut truths = 0;
    for row in rows {
        let cell = (column.cell)(row);
        let there = !matches!(cell, Cell::Number(None) | Cell::Text(None));
        match runs.last_mut() {
            Some((same, length)) if *same == there => *length += 1,
            _ => runs.push((there, 1)),
        }
        match cell {
            Cell::Number(Some(number)) => cells.extend(number.to_le_bytes()),
            Cell::Text(Some(text)) => {
                cells.extend((text.len() as u32).to_le_bytes());
                cells.extend(text.as_bytes());
            }
            Cell::Truth(truth) => {
                if truths % 8 == 0 {
                    cells.push(0);
                }
                let last = cells.len() - 1;
                cells[last] |= u8::from(truth) << (truths % 8);
                truths += 1;
            }
            Cell::Number(None) | Cell::Text(None) => {}
        }
    }
    let mut levels = Vec::new();
    for (there, length) in runs {
        varint(length << 1, &mut levels);
        levels.push(there.into());
    }
    let mut page = (levels.len() as u32).to_le_bytes().to_vec();
    page.append(&mut levels);
    page.append(&mut cells);
    page
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A structure of Thrift's compact protocol: fields in rising order, each with its distance from the one before.
#[derive(Clone, Debug, Default)]
struct Thrift {
    bytes: Vec<u8>,
    last_field: u8,
}

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

impl Thrift {
    fn field(&mut self, field: u8, kind: u8) {
        self.bytes.push((field - self.last_field) << 4 | kind);
        self.last_field = field;
    }

    /// Signed numbers alternate: 0, -1, 1, -2 ...
    fn zigzag(&mut self, value: i64) {
        varint((value << 1 ^ value >> 63) as u64, &mut self.bytes);
    }

    fn small(&mut self, field: u8, value: i64) {
        self.field(field, I32);
        self.zigzag(value);
    }

    fn number(&mut self, field: u8, value: i64) {
        self.field(field, I64);
        self.zigzag(value);
    }

    fn text(&mut self, field: u8, text: &str) {
        self.field(field, BINARY);
        self.bare_text(text);
    }

    fn bare_text(&mut self, text: &str) {
        varint(text.len() as u64, &mut self.bytes);
        self.bytes.extend(text.as_bytes());
    }

    fn structure(&mut self, field: u8, fill: impl FnOnce(&mut Thrift)) {
        self.field(field, STRUCT);
        let mut inner = Thrift::default();
        fill(&mut inner);
        self.bytes.extend(inner.finished());
    }

    fn list(&mut self, field: u8, kind: u8, length: usize) {
        self.field(field, LIST);
        match length {
            0..15 => self.bytes.push((length as u8) << 4 | kind),
            _ => {
                self.bytes.push(0xf0 | kind);
                varint(length as u64, &mut self.bytes);
            }
        }
    }

    fn small_list(&mut self, field: u8, values: &[i64]) {
        self.list(field, I32, values.len());
        values.iter().for_each(|&value| self.zigzag(value));
    }

    fn text_list(&mut self, field: u8, texts: &[&str]) {
        self.list(field, BINARY, texts.len());
        texts.iter().for_each(|text| self.bare_text(text));
    }

    fn structure_list(&mut self, field: u8, structures: &[Thrift]) {
        self.list(field, STRUCT, structures.len());
        for structure in structures {
            self.bytes.extend(structure.clone().finished());
        }
    }

    fn finished(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}
