//! The table of contexts as comma-separated values (RFC 4180), with a line of column names first.

use std::borrow::Cow;
use std::io::{self, Write};

use thalweg_model::Profile;

use crate::table::{Cell, columns, threads};

pub fn write(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    let columns = columns(profile);
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    writeln!(out, "{}", names.join(","))?;
    for rows in threads(profile) {
        for row in &rows {
            for (index, column) in columns.iter().enumerate() {
                if index > 0 {
                    out.write_all(b",")?;
                }
                match (column.cell)(row) {
                    Cell::Number(Some(number)) => write!(out, "{number}")?,
                    Cell::Text(Some(text)) => out.write_all(quoted(text).as_bytes())?,
                    Cell::Truth(truth) => write!(out, "{truth}")?,
                    Cell::Number(None) | Cell::Text(None) => {}
                }
            }
            out.write_all(b"\n")?;
        }
    }
    out.flush()
}

fn quoted(text: &str) -> Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        Cow::Owned(format!("\"{}\"", text.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(text)
    }
}
