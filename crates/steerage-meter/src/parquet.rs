//! Writes records as Parquet: typed columns in row groups of bounded size.
//!
//! | file | content |
//! |---|---|
//! | `chunk` | one column of a row group: its pages and its description |
//! | `encode` | the encodings of values |
//! | `thrift` | the protocol of descriptions |
//!
//! `docs/meter.md` describes how DuckDB, polars and pyarrow read the types. The crate `parquet`
//! takes longer to build than all of steerage, so steerage does not use it. The script
//! `.ci/parquet` compares Parquet and CSV files with these readers.

mod chunk;
mod encode;
#[cfg(test)]
mod read;
mod thrift;

use std::io;

use super::columns::{FLOW, Row};
use super::record::FlowRecord;
use super::record_ledger::Volume;
use super::record_writer::RecordWriter;
use chunk::{Chunk, Column, Field};
use thrift::Thrift;

/// The maximum number of rows in a row group, as in files that DuckDB writes. A reader can read row
/// groups in parallel.
pub(super) const ROWS_MAX: usize = 122_880;

/// The maximum number of rows in memory of all open files together: two row groups, 50 MB.
pub(super) const ROWS_OF_ALL_MAX: usize = 2 * ROWS_MAX;

const MAGIC: &[u8] = b"PAR1";

/// The version of the Parquet format. Some readers do not support the data pages of version 2.
const VERSION: i32 = 1;

const CREATED_BY: &str = concat!("steerage version ", env!("CARGO_PKG_VERSION"));

const SAMPLE: &str = "steerage.sample";

struct Group {
    rows: usize,
    chunks: Vec<Chunk>,
}

/// A file is unreadable without its footer, so rows count as written only when the footer is
/// written. The footer lists only row groups that are completely in the file.
pub(super) struct Parquet {
    columns: Vec<Column>,
    rows: usize,
    open: Volume,
    complete: Volume,
    groups: Vec<Group>,
    at: u64,
    /// After a failed write, no row group can follow, because the footer must state the positions
    /// of row groups.
    has_failed: bool,
}

impl Parquet {
    pub(super) fn new() -> Self {
        let columns = FLOW.iter().filter_map(Column::of).collect();
        let (open, complete) = (Volume::NONE, Volume::NONE);
        Self { columns, rows: 0, open, complete, groups: Vec::new(), at: 0, has_failed: false }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn add(&mut self, out: &mut RecordWriter, mut records: &[FlowRecord]) -> io::Result<()> {
        while !records.is_empty() {
            let (now, later) = records.split_at(records.len().min(ROWS_MAX - self.rows));
            let rows: Vec<Row<'_>> = now.iter().map(Row::of).collect();
            self.columns.iter_mut().for_each(|column| column.add(&rows));
            self.rows += rows.len();
            self.open.add(Volume::of(now));
            if self.rows == ROWS_MAX {
                self.end_group(out)?;
            }
            records = later;
        }
        Ok(())
    }

    pub(super) fn end_group(&mut self, out: &mut RecordWriter) -> io::Result<()> {
        let (rows, open) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.open));
        if rows == 0 || self.has_failed {
            return Ok(());
        }
        let written = self.write_group(out, rows);
        self.has_failed = written.is_err();
        self.groups.push(written?);
        self.complete.add(open);
        Ok(())
    }

    fn write_group(&mut self, out: &mut RecordWriter, rows: usize) -> io::Result<Group> {
        let mut bytes = if self.at == 0 { MAGIC.to_vec() } else { Vec::new() };
        let chunks = self.columns.iter_mut().map(|column| column.write(self.at, rows, &mut bytes));
        let chunks = chunks.collect::<io::Result<_>>()?;
        out.part(Volume::NONE, &bytes)?;
        out.flush()?;
        self.at += bytes.len() as u64;
        Ok(Group { rows, chunks })
    }

    /// Writes the remaining rows and the footer. One of every `sample` flows was metered.
    pub(super) fn end(&mut self, out: &mut RecordWriter, sample: u32) -> io::Result<()> {
        self.end_group(out)?;
        let start = if self.groups.is_empty() { MAGIC } else { &[] };
        let footer = thrift::structure(|to| self.describe(sample, to));
        let length = u32::try_from(footer.len()).map_err(io::Error::other)?;
        out.part(self.complete, &[start, &footer, &length.to_le_bytes(), MAGIC].concat())
    }

    /// Writes Parquet's structure `FileMetaData`.
    fn describe(&self, sample: u32, to: &mut Thrift<'_>) {
        let fields: Vec<Option<&Field>> =
            std::iter::once(None).chain(self.columns.iter().map(|column| Some(&column.field))).collect();
        to.i32(1, VERSION);
        to.structures(2, &fields, |to, field| match field {
            Some(field) => field.describe(to),
            None => {
                to.binary(4, b"flows");
                to.i32(5, self.columns.len() as i32);
            }
        });
        to.i64(3, self.groups.iter().map(|group| group.rows as u64).sum());
        to.structures(4, &self.groups, |to, group| {
            to.structures(1, &group.chunks, |to, chunk| chunk.describe(to));
            to.i64(2, group.chunks.iter().map(|chunk| chunk.plain_bytes).sum());
            to.i64(3, group.rows as u64);
        });
        if sample > 1 {
            to.structures(5, &[format!("1:{sample}")], |to, sample| {
                to.binary(1, SAMPLE.as_bytes());
                to.binary(2, sample.as_bytes());
            });
        }
        to.binary(6, CREATED_BY.as_bytes());
        // Declares the usual order of values. Without this declaration, the statistics are not
        // valid.
        to.structures(7, &self.columns, |to, _| to.structure(1, |_| {}));
    }
}

#[cfg(test)]
pub(crate) use read::count;

#[cfg(test)]
mod tests;
