//! Writes records as Parquet: typed columns in row groups of bounded size.
//!
//! | file | content |
//! |---|---|
//! | `chunk` | one column of a row group: its pages and its description |
//! | `encode` | the encodings of values |
//! | `thrift` | the protocol of descriptions |
//!
//! The schema and the values come from [`columns`], so that schema and values always agree.
//! `docs/meter.md` describes how DuckDB, polars and pyarrow read the column types. steerage has its
//! own Parquet writer, because the crate `parquet` takes longer to build than all of steerage. The
//! script `.ci/parquet` reads Parquet and CSV files with DuckDB, polars and pyarrow, and compares
//! the results.

mod chunk;
mod encode;
#[cfg(test)]
mod read;
mod thrift;

use std::io;

use steerage::WallTime;

use super::columns::{Columns, Number, columns};
use super::record::FlowRecord;
use super::record_ledger::Volume;
use super::record_writer::RecordWriter;
use super::row::Row;
use chunk::{Chunk, Column, Field, Kind, Values};
use thrift::Thrift;

/// The maximum number of rows per row group. The row groups that DuckDB writes have the same size.
/// A reader can read several row groups in parallel, with one thread for each group.
pub(super) const ROWS_MAX: usize = 122_880;

/// The maximum number of rows in memory for all open files together: two row groups, 50 MB.
pub(super) const ROWS_OF_ALL_MAX: usize = 2 * ROWS_MAX;

const MAGIC: &[u8] = b"PAR1";

/// The version of the format. The Parquet file has version 1, because some readers do not support
/// the data pages of version 2.
const VERSION: i32 = 1;

const CREATED_BY: &str = concat!("steerage version ", env!("CARGO_PKG_VERSION"));

const SAMPLE: &str = "steerage.sample";

/// The schema of the file, with a column for each column of a record.
#[derive(Default)]
struct Schema(Vec<Column>);

impl Schema {
    fn add(&mut self, name: &'static str, kind: Kind, is_optional: bool) {
        self.0.push(Column::new(Field { name, kind, is_optional }));
    }
}

impl Columns for Schema {
    fn time(&mut self, name: &'static str, _: impl Fn(&Row<'_>) -> WallTime) {
        self.add(name, Kind::Time, false);
    }

    fn count(&mut self, name: &'static str, _: impl Fn(&Row<'_>) -> u64) {
        self.add(name, Kind::Count, false);
    }

    fn number<N: Number>(&mut self, name: &'static str, _: impl Fn(&Row<'_>) -> Option<N>) {
        self.add(name, Kind::Number { bits: N::BITS as u8 }, true);
    }

    fn word(&mut self, name: &'static str, _: impl Fn(&Row<'_>, &mut Vec<u8>)) {
        self.add(name, Kind::Text, false);
    }

    fn text(&mut self, name: &'static str, _: impl Fn(&Row<'_>, &mut Vec<u8>) -> bool) {
        self.add(name, Kind::Text, true);
    }
}

struct Adding<'a> {
    rows: &'a [Row<'a>],
    columns: std::slice::IterMut<'a, Column>,
}

impl Columns for Adding<'_> {
    fn time(&mut self, _: &'static str, of: impl Fn(&Row<'_>) -> WallTime) {
        if let Some(Column { values: Values::Times(values), .. }) = self.columns.next() {
            // Timestamps in nanoseconds in the Parquet format end in the year 2262.
            values.extend(self.rows.iter().map(|row| i64::try_from(of(row).as_nanos()).unwrap_or(i64::MAX)));
        }
    }

    fn count(&mut self, _: &'static str, of: impl Fn(&Row<'_>) -> u64) {
        if let Some(Column { values: Values::Counts(values), .. }) = self.columns.next() {
            values.extend(self.rows.iter().map(of));
        }
    }

    fn number<N: Number>(&mut self, _: &'static str, of: impl Fn(&Row<'_>) -> Option<N>) {
        if let Some(Column { values: Values::Numbers(values), present, .. }) = self.columns.next() {
            present.extend(self.rows.iter().map(|row| u32::from(of(row).is_some())));
            values.extend(self.rows.iter().filter_map(|row| of(row).map(Number::to_u32)));
        }
    }

    fn word(&mut self, _: &'static str, of: impl Fn(&Row<'_>, &mut Vec<u8>)) {
        if let Some(Column { values: Values::Texts { text, ends }, .. }) = self.columns.next() {
            for row in self.rows {
                of(row, text);
                ends.push(text.len() as u32);
            }
        }
    }

    fn text(&mut self, _: &'static str, of: impl Fn(&Row<'_>, &mut Vec<u8>) -> bool) {
        if let Some(Column { values: Values::Texts { text, ends }, present, .. }) = self.columns.next() {
            for row in self.rows {
                let is_there = of(row, text);
                present.push(is_there.into());
                if is_there {
                    ends.push(text.len() as u32);
                }
            }
        }
    }
}

/// The description of a row group that was written to the file.
struct Group {
    rows: usize,
    chunks: Vec<Chunk>,
}

/// Encodes a Parquet file.
///
/// A Parquet file is unreadable without its footer, which describes the row groups. Rows therefore
/// count as written only when the footer is written, and the footer lists only row groups that are
/// completely in the file.
pub(super) struct Parquet {
    columns: Vec<Column>,
    rows: usize,
    /// The numbers of records, packets and bytes in the open row group. The next field of this
    /// structure has the same three numbers for the row groups that are already in the file.
    open: Volume,
    complete: Volume,
    groups: Vec<Group>,
    /// The position in the file at which the next row group begins.
    at: u64,
    /// True if a row group could not be written. After a row group could not be written, no row
    /// group can follow, because the footer contains the positions of the groups.
    has_failed: bool,
}

impl Parquet {
    pub(super) fn new() -> Self {
        let mut schema = Schema::default();
        columns(&mut schema);
        let (open, complete) = (Volume::NONE, Volume::NONE);
        Self { columns: schema.0, rows: 0, open, complete, groups: Vec::new(), at: 0, has_failed: false }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn add(&mut self, out: &mut RecordWriter, mut records: &[FlowRecord]) -> io::Result<()> {
        while !records.is_empty() {
            let (now, later) = records.split_at(records.len().min(ROWS_MAX - self.rows));
            let rows: Vec<Row<'_>> = now.iter().map(Row::of).collect();
            columns(&mut Adding { rows: &rows, columns: self.columns.iter_mut() });
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
        // The magic number of the format precedes the first row group.
        let mut bytes = if self.at == 0 { MAGIC.to_vec() } else { Vec::new() };
        let chunks = self.columns.iter_mut().map(|column| column.write(self.at, rows, &mut bytes));
        let chunks = chunks.collect::<io::Result<_>>()?;
        out.part(Volume::NONE, &bytes)?;
        out.flush()?;
        self.at += bytes.len() as u64;
        Ok(Group { rows, chunks })
    }

    /// Writes the remaining rows and the footer. `sample` is the sampling rate: one of every
    /// `sample` flows was metered. If a row group could not be written, the footer describes only
    /// the row groups that were written before.
    pub(super) fn end(&mut self, out: &mut RecordWriter, sample: u32) -> io::Result<()> {
        self.end_group(out)?;
        let start = if self.groups.is_empty() { MAGIC } else { &[] };
        let footer = thrift::structure(|to| self.describe(sample, to));
        let length = u32::try_from(footer.len()).map_err(io::Error::other)?;
        out.part(self.complete, &[start, &footer, &length.to_le_bytes(), MAGIC].concat())
    }

    /// Writes the structure `FileMetaData` of the Parquet format.
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
        // This field declares that the values of each column are ordered as usual for the column's
        // type. Without the declaration of the order, the statistics of a column are not valid.
        to.structures(7, &self.columns, |to, _| to.structure(1, |_| {}));
    }
}

#[cfg(test)]
pub(crate) use read::count;

#[cfg(test)]
mod tests;
