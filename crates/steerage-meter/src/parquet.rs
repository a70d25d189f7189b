//! Writes records as Parquet: typed columns in row groups of bounded size.
//!
//! The schema and the values come from [`columns`], so that schema and values always agree.
//! `docs/meter.md` says how DuckDB, polars and pyarrow read the types.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::{ColumnPath, SchemaDescriptor, Type};
use steerage::WallTime;

use super::columns::{Columns, Number, columns};
use super::record::FlowRecord;
use super::record_ledger::Volume;
use super::record_writer::RecordWriter;
use super::row::Row;

/// The maximum number of rows per group. DuckDB's own groups have the same size, and a reader can
/// use one thread per group.
pub(super) const ROWS_MAX: usize = 122_880;

/// The maximum number of rows in memory for all open files together: two groups, 50 MB.
pub(super) const ROWS_OF_ALL_MAX: usize = 2 * ROWS_MAX;

const MAGIC: &[u8] = b"PAR1";

const CREATED_BY: &str = concat!("steerage version ", env!("CARGO_PKG_VERSION"));

const SAMPLE: &str = "steerage.sample";

const ABSENT: i16 = 0;
const PRESENT: i16 = 1;

#[derive(Default)]
struct Schema {
    fields: Vec<Arc<Type>>,
    error: Option<ParquetError>,
}

impl Schema {
    fn add(&mut self, name: &str, physical: Physical, logical: LogicalType, repetition: Repetition) {
        let field = Type::primitive_type_builder(name, physical);
        match field.with_logical_type(Some(logical)).with_repetition(repetition).build() {
            Ok(field) => self.fields.push(Arc::new(field)),
            Err(error) => self.error = Some(error),
        }
    }

    fn of_rows() -> Result<Type, ParquetError> {
        let mut schema = Self::default();
        columns(&mut schema);
        match schema.error {
            Some(error) => Err(error),
            None => Type::group_type_builder("flows").with_fields(schema.fields).build(),
        }
    }
}

impl Columns for Schema {
    fn time(&mut self, name: &'static str, _: impl Fn(&Row<'_>) -> WallTime) {
        let logical = LogicalType::timestamp(true, TimeUnit::NANOS);
        self.add(name, Physical::INT64, logical, Repetition::REQUIRED);
    }

    fn count(&mut self, name: &'static str, _: impl Fn(&Row<'_>) -> u64) {
        let logical = LogicalType::integer(64, false);
        self.add(name, Physical::INT64, logical, Repetition::REQUIRED);
    }

    fn number<N: Number>(&mut self, name: &'static str, _: impl Fn(&Row<'_>) -> Option<N>) {
        let logical = LogicalType::integer(N::BITS as i8, false);
        self.add(name, Physical::INT32, logical, Repetition::OPTIONAL);
    }

    fn word(&mut self, name: &'static str, _: impl Fn(&Row<'_>, &mut Vec<u8>)) {
        self.add(name, Physical::BYTE_ARRAY, LogicalType::String, Repetition::REQUIRED);
    }

    fn text(&mut self, name: &'static str, _: impl Fn(&Row<'_>, &mut Vec<u8>) -> bool) {
        self.add(name, Physical::BYTE_ARRAY, LogicalType::String, Repetition::OPTIONAL);
    }
}

#[derive(Debug)]
struct Column {
    values: Values,
    /// The definition level of each row. Empty if each row has a value.
    levels: Vec<i16>,
}

#[derive(Debug)]
enum Values {
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Text(Vec<u8>, Vec<u32>),
}

impl Column {
    fn of(field: &Type) -> Self {
        let values = match field.get_physical_type() {
            Physical::INT32 => Values::Int32(Vec::new()),
            Physical::INT64 => Values::Int64(Vec::new()),
            _ => Values::Text(Vec::new(), Vec::new()),
        };
        Self { values, levels: Vec::new() }
    }

    fn write(&mut self, to: &mut SerializedColumnWriter<'_>) -> Result<(), ParquetError> {
        let levels = (!self.levels.is_empty()).then_some(&self.levels[..]);
        match &mut self.values {
            Values::Int32(values) => {
                to.typed::<Int32Type>().write_batch(values, levels, None)?;
                values.clear();
            }
            Values::Int64(values) => {
                to.typed::<Int64Type>().write_batch(values, levels, None)?;
                values.clear();
            }
            Values::Text(text, ends) => {
                let text = Bytes::from(std::mem::take(text));
                let mut start = 0;
                let value = |end: &u32| {
                    let value = text.slice(start..*end as usize);
                    start = *end as usize;
                    ByteArray::from(value)
                };
                let values: Vec<ByteArray> = ends.iter().map(value).collect();
                to.typed::<ByteArrayType>().write_batch(&values, levels, None)?;
                ends.clear();
            }
        }
        self.levels.clear();
        Ok(())
    }
}

struct Adding<'a> {
    rows: &'a [Row<'a>],
    columns: std::slice::IterMut<'a, Column>,
}

impl Columns for Adding<'_> {
    fn time(&mut self, _: &'static str, of: impl Fn(&Row<'_>) -> WallTime) {
        if let Some(Column { values: Values::Int64(values), .. }) = self.columns.next() {
            // Nanoseconds in Parquet end in the year 2262.
            values.extend(self.rows.iter().map(|row| i64::try_from(of(row).as_nanos()).unwrap_or(i64::MAX)));
        }
    }

    fn count(&mut self, _: &'static str, of: impl Fn(&Row<'_>) -> u64) {
        if let Some(Column { values: Values::Int64(values), .. }) = self.columns.next() {
            values.extend(self.rows.iter().map(|row| of(row) as i64));
        }
    }

    fn number<N: Number>(&mut self, _: &'static str, of: impl Fn(&Row<'_>) -> Option<N>) {
        if let Some(Column { values: Values::Int32(values), levels }) = self.columns.next() {
            levels.extend(self.rows.iter().map(|row| if of(row).is_some() { PRESENT } else { ABSENT }));
            values.extend(self.rows.iter().filter_map(|row| of(row).map(|number| number.to_u32() as i32)));
        }
    }

    fn word(&mut self, _: &'static str, of: impl Fn(&Row<'_>, &mut Vec<u8>)) {
        if let Some(Column { values: Values::Text(text, ends), .. }) = self.columns.next() {
            for row in self.rows {
                of(row, text);
                ends.push(text.len() as u32);
            }
        }
    }

    fn text(&mut self, _: &'static str, of: impl Fn(&Row<'_>, &mut Vec<u8>) -> bool) {
        if let Some(Column { values: Values::Text(text, ends), levels }) = self.columns.next() {
            for row in self.rows {
                let is_there = of(row, text);
                levels.push(if is_there { PRESENT } else { ABSENT });
                if is_there {
                    ends.push(text.len() as u32);
                }
            }
        }
    }
}

/// Encodes a Parquet file.
///
/// A file is unreadable without its footer, which describes the groups. Rows therefore count as
/// written when the footer is written, and the footer lists only groups that are completely in the
/// file.
pub(super) struct Parquet {
    /// The Parquet encoder, which writes to memory. Each complete group is copied from memory to
    /// the file.
    writer: SerializedFileWriter<Vec<u8>>,
    columns: Vec<Column>,
    rows: usize,
    /// The volume of the records in the open group, and of the records in groups that are in the
    /// file.
    open: Volume,
    complete: Volume,
    groups: usize,
    /// Whether a group could not be written. No further group can follow, because the footer
    /// contains the positions of groups.
    has_failed: bool,
}

impl Parquet {
    pub(super) fn new() -> io::Result<Self> {
        let schema = Schema::of_rows().map_err(broken)?;
        let columns = schema.get_fields().iter().map(|field| Column::of(field)).collect();
        let mut properties = WriterProperties::builder()
            .set_created_by(CREATED_BY.to_owned())
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_max_row_group_row_count(Some(ROWS_MAX));
        // Times rarely repeat, and increase slowly.
        for name in ["first", "last"] {
            let column = ColumnPath::from(name);
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
        }
        let writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties.build()));
        let (open, complete) = (Volume::NONE, Volume::NONE);
        Ok(Self { writer: writer.map_err(broken)?, columns, rows: 0, open, complete, groups: 0, has_failed: false })
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
        let open = std::mem::take(&mut self.open);
        if std::mem::take(&mut self.rows) == 0 || self.has_failed {
            return Ok(());
        }
        let written = self.write_group(out);
        self.has_failed = written.is_err();
        written?;
        self.complete.add(open);
        self.groups += 1;
        Ok(())
    }

    fn write_group(&mut self, out: &mut RecordWriter) -> io::Result<()> {
        self.encode_group().map_err(broken)?;
        self.writer.flush()?;
        let group = std::mem::take(self.writer.inner_mut());
        out.part(Volume::NONE, &group)?;
        out.flush()
    }

    fn encode_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        for column in &mut self.columns {
            if let Some(mut writer) = group.next_column()? {
                column.write(&mut writer)?;
                writer.close()?;
            }
        }
        group.close().map(drop)
    }

    /// Writes the remaining rows and the footer. `sample` means that one flow of this many was
    /// metered. If a group could not be written, the footer describes only the groups before it.
    pub(super) fn end(&mut self, out: &mut RecordWriter, sample: u32) -> io::Result<()> {
        self.end_group(out)?;
        // The first group begins with the magic number of Parquet. A file without groups needs the
        // magic number too.
        let start = if self.groups == 0 { MAGIC } else { &[] };
        let footer = self.footer(sample).map_err(broken)?;
        out.part(self.complete, &[start, &footer].concat())
    }

    fn footer(&self, sample: u32) -> Result<Vec<u8>, ParquetError> {
        let sample = (sample > 1).then(|| vec![KeyValue::new(SAMPLE.to_owned(), format!("1:{sample}"))]);
        let groups = self.writer.flushed_row_groups()[..self.groups].to_vec();
        let schema = SchemaDescriptor::new(self.writer.schema_descr().root_schema_ptr());
        let file = FileMetaData::new(
            self.writer.properties().writer_version().as_num(),
            groups.iter().map(RowGroupMetaData::num_rows).sum(),
            Some(CREATED_BY.to_owned()),
            sample,
            Arc::new(schema),
            None,
        );
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, &ParquetMetaData::new(file, groups)).finish()?;
        Ok(footer)
    }
}

fn broken(error: ParquetError) -> io::Error {
    io::Error::other(error)
}

#[cfg(test)]
mod tests;
