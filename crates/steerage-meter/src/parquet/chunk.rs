//! One column of a row group: a page of values, and also a dictionary if that makes the column
//! shorter.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::super::columns::{self, Cell, Row};
use super::encode::{dictionary, differences, runs, width_of};
use super::thrift::{Thrift, structure};

/// The maximum length of a text in the statistics, all of which a reader reads before the first
/// page.
const STATISTICS_BYTES_MAX: usize = 64;

/// Parquet's numbers for compression, page types, encodings, physical types and repetition.
const GZIP: i32 = 2;
const DATA_PAGE: i32 = 0;
const DICTIONARY_PAGE: i32 = 2;
const PLAIN: i32 = 0;
const RLE: i32 = 3;
const DELTA_BINARY_PACKED: i32 = 5;
const RLE_DICTIONARY: i32 = 8;
const INT32: i32 = 1;
const INT64: i32 = 2;
const BYTE_ARRAY: i32 = 6;
const REQUIRED: i32 = 0;
const OPTIONAL: i32 = 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) is_optional: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Nanoseconds since 1970 in UTC.
    Time,
    Count,
    Number {
        bits: u8,
    },
    Text,
}

impl Field {
    fn physical(&self) -> i32 {
        match self.kind {
            Kind::Time | Kind::Count => INT64,
            Kind::Number { .. } => INT32,
            Kind::Text => BYTE_ARRAY,
        }
    }

    /// Writes Parquet's structure `SchemaElement`.
    pub(super) fn describe(&self, to: &mut Thrift<'_>) {
        to.i32(1, self.physical());
        to.i32(3, if self.is_optional { OPTIONAL } else { REQUIRED });
        to.binary(4, self.name.as_bytes());
        // The older type description `ConvertedType` has no type for nanoseconds.
        match self.kind {
            Kind::Time => {}
            Kind::Count => to.i32(6, 14),
            Kind::Number { bits: 8 } => to.i32(6, 11),
            Kind::Number { bits: 16 } => to.i32(6, 12),
            Kind::Number { .. } => to.i32(6, 13),
            Kind::Text => to.i32(6, 0),
        }
        to.structure(10, |to| match self.kind {
            Kind::Text => to.structure(1, |_| {}),
            Kind::Time => to.structure(8, |to| {
                to.boolean(1, true);
                to.structure(2, |unit| unit.structure(3, |_| {}));
            }),
            Kind::Count => unsigned(64, to),
            Kind::Number { bits } => unsigned(bits, to),
        });
    }
}

fn unsigned(bits: u8, to: &mut Thrift<'_>) {
    to.structure(10, |to| {
        to.byte(1, bits);
        to.boolean(2, false);
    });
}

#[derive(Debug)]
pub(super) struct Column {
    pub(super) field: Field,
    cell: &'static Cell,
    values: Values,
    /// Has 1 for each row with a value, and 0 for each row without. Empty if every row has a value.
    present: Vec<u32>,
}

#[derive(Debug)]
enum Values {
    Times(Vec<i64>),
    Counts(Vec<u64>),
    Numbers(Vec<u32>),
    /// All texts, and the position at which each text ends.
    Texts {
        text: Vec<u8>,
        ends: Vec<u32>,
    },
}

struct Encoded {
    encoding: i32,
    bytes: Vec<u8>,
    dictionary: Option<(Vec<u8>, usize)>,
    range: Option<[Vec<u8>; 2]>,
}

impl Column {
    /// Returns `None` for floating-point numbers, which no column of Parquet files has.
    pub(super) fn of(column: &'static columns::Field) -> Option<Self> {
        let (kind, values) = match column.cell {
            Cell::Time(_) => (Kind::Time, Values::Times(Vec::new())),
            Cell::U8(_) => (Kind::Number { bits: 8 }, Values::Numbers(Vec::new())),
            Cell::U16(_) => (Kind::Number { bits: 16 }, Values::Numbers(Vec::new())),
            Cell::U32(_) => (Kind::Number { bits: 32 }, Values::Numbers(Vec::new())),
            Cell::U64(_) => (Kind::Count, Values::Counts(Vec::new())),
            Cell::F64(_) => return None,
            Cell::Text(_) => (Kind::Text, Values::Texts { text: Vec::new(), ends: Vec::new() }),
        };
        let field = Field { name: column.name, kind, is_optional: column.is_optional };
        Some(Self { field, cell: &column.cell, values, present: Vec::new() })
    }

    pub(super) fn add(&mut self, rows: &[Row<'_>]) {
        let present = &mut self.present;
        let mut note = |is_present: bool| {
            if self.field.is_optional {
                present.push(is_present.into());
            }
        };
        match (self.cell, &mut self.values) {
            (Cell::Time(of), Values::Times(values)) => {
                // Parquet's times in nanoseconds end in the year 2262.
                let time = |nanos: u64| i64::try_from(nanos).unwrap_or(i64::MAX);
                add(rows, |row| of(row).map(time), values, note);
            }
            (Cell::U8(of), Values::Numbers(values)) => add(rows, |row| of(row).map(u32::from), values, note),
            (Cell::U16(of), Values::Numbers(values)) => add(rows, |row| of(row).map(u32::from), values, note),
            (Cell::U32(of), Values::Numbers(values)) => add(rows, of, values, note),
            (Cell::U64(of), Values::Counts(values)) => add(rows, of, values, note),
            (Cell::Text(of), Values::Texts { text, ends }) => {
                for row in rows {
                    let is_present = of(row, text);
                    note(is_present);
                    if is_present {
                        ends.push(text.len() as u32);
                    }
                }
            }
            _ => {}
        }
    }

    /// Appends the pages to `group`, which begins at `start` in the file, and empties the column.
    pub(super) fn write(&mut self, start: u64, rows: usize, group: &mut Vec<u8>) -> io::Result<Chunk> {
        let Encoded { encoding, bytes, dictionary, range } = self.values.encode();
        let mut page = Vec::new();
        let mut absent = 0;
        if self.field.is_optional {
            let mut levels = Vec::new();
            runs(&self.present, 1, &mut levels);
            page.extend_from_slice(&length(levels.len())?.to_le_bytes());
            page.extend_from_slice(&levels);
            absent = self.present.iter().filter(|level| **level == 0).count();
        }
        page.extend_from_slice(&bytes);
        let (begin, mut plain_bytes) = (group.len(), 0);
        let position = |group: &Vec<u8>| start + group.len() as u64;
        let dictionary_at = match dictionary {
            None => None,
            Some((entries, count)) => {
                let at = position(group);
                plain_bytes += write_page(DICTIONARY_PAGE, &entries, group, |to| {
                    to.structure(7, |to| {
                        to.i32(1, count as i32);
                        to.i32(2, PLAIN);
                    });
                })?;
                Some(at)
            }
        };
        let data_at = position(group);
        plain_bytes += write_page(DATA_PAGE, &page, group, |to| {
            to.structure(5, |to| {
                to.i32(1, rows as i32);
                to.i32(2, encoding);
                to.i32(3, RLE);
                to.i32(4, RLE);
            });
        })?;
        self.present.clear();
        let (field, file_bytes) = (self.field, (group.len() - begin) as u64);
        Ok(Chunk { field, encoding, rows, absent, range, dictionary_at, data_at, plain_bytes, file_bytes })
    }
}

fn add<N>(rows: &[Row<'_>], of: impl Fn(&Row<'_>) -> Option<N>, to: &mut Vec<N>, mut note: impl FnMut(bool)) {
    to.reserve(rows.len());
    for row in rows {
        let value = of(row);
        note(value.is_some());
        if let Some(value) = value {
            to.push(value);
        }
    }
}

/// Returns a length as Parquet's 32-bit number: a page must have less than 2 GiB.
fn length(bytes: usize) -> io::Result<i32> {
    i32::try_from(bytes).map_err(|_| io::Error::other("the texts of a row group are too long for Parquet"))
}

fn write_page(kind: i32, bytes: &[u8], group: &mut Vec<u8>, describe: impl FnOnce(&mut Thrift<'_>)) -> io::Result<u64> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    let compressed = encoder.finish()?;
    let (plain, short) = (length(bytes.len())?, length(compressed.len())?);
    let header = structure(|to| {
        to.i32(1, kind);
        to.i32(2, plain);
        to.i32(3, short);
        describe(to);
    });
    group.extend_from_slice(&header);
    group.extend_from_slice(&compressed);
    Ok((header.len() + bytes.len()) as u64)
}

impl Values {
    fn encode(&mut self) -> Encoded {
        match self {
            Self::Times(values) => {
                // Times increase slowly and are rarely equal, so differences are encoded.
                let mut bytes = Vec::new();
                differences(values, &mut bytes);
                let range = range(values.iter(), |time| time.to_le_bytes().to_vec());
                values.clear();
                Encoded { encoding: DELTA_BINARY_PACKED, bytes, dictionary: None, range }
            }
            Self::Counts(values) => encoded(values.drain(..), |count, to| to.extend(count.to_le_bytes())),
            Self::Numbers(values) => encoded(values.drain(..), |number, to| to.extend(number.to_le_bytes())),
            Self::Texts { text, ends } => {
                let starts = std::iter::once(0).chain(ends.iter().copied());
                let texts: Vec<&[u8]> =
                    starts.zip(&*ends).map(|(start, end)| &text[start as usize..*end as usize]).collect();
                let mut encoded = encoded(texts.into_iter(), |text, to| {
                    to.extend((text.len() as u32).to_le_bytes());
                    to.extend_from_slice(text);
                });
                // The statistics of a column have texts without their lengths.
                encoded.range = encoded.range.map(|range| range.map(|text| text[size_of::<u32>()..].to_vec()));
                encoded.range =
                    encoded.range.filter(|range| range.iter().all(|text| text.len() <= STATISTICS_BYTES_MAX));
                text.clear();
                ends.clear();
                encoded
            }
        }
    }
}

/// Writes a dictionary and indices if this is shorter than the values themselves. `plain` appends
/// one value.
fn encoded<T: Copy + Eq + Ord + std::hash::Hash>(
    values: impl ExactSizeIterator<Item = T>,
    plain: impl Fn(T, &mut Vec<u8>),
) -> Encoded {
    let values: Vec<T> = values.collect();
    let each = |values: &[T]| {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| plain(*value, &mut bytes));
        bytes
    };
    let range = range(values.iter(), |value| each(&[*value]));
    match dictionary(values.iter().copied()).filter(|(entries, _)| !entries.is_empty()) {
        None => Encoded { encoding: PLAIN, bytes: each(&values), dictionary: None, range },
        Some((entries, indices)) => {
            // Some readers reject dictionary indices of 0 bits.
            let width = width_of(entries.len() as u64 - 1).max(1);
            let mut bytes = vec![width as u8];
            runs(&indices, width, &mut bytes);
            Encoded { encoding: RLE_DICTIONARY, bytes, dictionary: Some((each(&entries), entries.len())), range }
        }
    }
}

fn range<'a, T: Ord + 'a>(
    values: impl Iterator<Item = &'a T> + Clone,
    bytes: impl Fn(&T) -> Vec<u8>,
) -> Option<[Vec<u8>; 2]> {
    let (least, largest) = (values.clone().min()?, values.max()?);
    Some([bytes(least), bytes(largest)])
}

#[derive(Debug)]
pub(super) struct Chunk {
    field: Field,
    encoding: i32,
    rows: usize,
    absent: usize,
    range: Option<[Vec<u8>; 2]>,
    dictionary_at: Option<u64>,
    data_at: u64,
    pub(super) plain_bytes: u64,
    file_bytes: u64,
}

impl Chunk {
    /// Writes Parquet's structure `ColumnChunk`.
    pub(super) fn describe(&self, to: &mut Thrift<'_>) {
        to.i64(2, self.dictionary_at.unwrap_or(self.data_at));
        to.structure(3, |to| {
            to.i32(1, self.field.physical());
            // `RLE` encodes the presence of values, and `PLAIN` the dictionary.
            let all = [self.encoding, RLE, PLAIN];
            to.numbers(2, if self.dictionary_at.is_some() { &all } else { &all[..2] });
            to.texts(3, &[self.field.name]);
            to.i32(4, GZIP);
            to.i64(5, self.rows as u64);
            to.i64(6, self.plain_bytes);
            to.i64(7, self.file_bytes);
            to.i64(9, self.data_at);
            if let Some(at) = self.dictionary_at {
                to.i64(11, at);
            }
            to.structure(12, |to| {
                to.i64(3, self.absent as u64);
                if let Some([least, largest]) = &self.range {
                    to.binary(5, largest);
                    to.binary(6, least);
                }
            });
        });
    }
}
