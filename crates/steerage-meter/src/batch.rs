//! Columns of values in memory, in the layout of Arrow's columns.
//!
//! A program that hands columns to an Arrow library passes the buffers of a [`Column`] as they are:
//! a bitmap of the rows that have a value, with the first row in the lowest bit, the values, and for
//! text the position where each row's text ends.

use super::cic;
use super::columns::{Columns, Number, columns};
use super::record::FlowRecord;
use super::row::Row;

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Values {
    /// Nanoseconds since 1970 in UTC.
    Time(Vec<i64>),
    /// Numbers of 8 bits.
    U8(Vec<u8>),
    /// Numbers of 16 bits.
    U16(Vec<u16>),
    /// Numbers of 32 bits.
    U32(Vec<u32>),
    /// Numbers of 64 bits.
    U64(Vec<u64>),
    /// Floating-point numbers of 64 bits.
    F64(Vec<f64>),
    /// UTF-8 text. The text of row `n` lies between the positions `n` and `n + 1`.
    Text(Vec<i32>, Vec<u8>),
    /// Bytes, with positions like those of text.
    Bytes(Vec<i32>, Vec<u8>),
}

impl Values {
    fn with_positions(positions: &mut Vec<i32>, bytes: &[u8]) {
        positions.push(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    }

    /// Empty values of the same type.
    fn fresh(&self) -> Self {
        match self {
            Self::Time(_) => Self::Time(Vec::new()),
            Self::U8(_) => Self::U8(Vec::new()),
            Self::U16(_) => Self::U16(Vec::new()),
            Self::U32(_) => Self::U32(Vec::new()),
            Self::U64(_) => Self::U64(Vec::new()),
            Self::F64(_) => Self::F64(Vec::new()),
            Self::Text(..) => Self::Text(vec![0], Vec::new()),
            Self::Bytes(..) => Self::Bytes(vec![0], Vec::new()),
        }
    }
}

/// A column: its name, and its values in the rows of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    name: &'static str,
    values: Values,
    /// A bit for each row that has a value. `None` if every row of this column has a value.
    present: Option<Vec<u8>>,
    rows: usize,
    absent: usize,
}

impl Column {
    /// An empty column. The content of `values` is ignored, and only its type counts. If `optional`
    /// is set, rows may have no value.
    pub fn new(name: &'static str, values: &Values, optional: bool) -> Self {
        Self { name, values: values.fresh(), present: optional.then(Vec::new), rows: 0, absent: 0 }
    }

    /// The name of the column.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The values. A row without a value has the value 0, or an empty text.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The bitmap of rows that have a value. `None` if all rows have one.
    pub fn present(&self) -> Option<&[u8]> {
        self.present.as_deref()
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of rows without a value.
    pub fn absent(&self) -> usize {
        self.absent
    }

    fn add_row(&mut self, is_present: bool) {
        if let Some(bits) = &mut self.present {
            if self.rows % 8 == 0 {
                bits.push(0);
            }
            if let Some(byte) = bits.last_mut() {
                *byte |= u8::from(is_present) << (self.rows % 8);
            }
            self.absent += usize::from(!is_present);
        }
        self.rows += 1;
    }

    /// Adds a row with a number, which is cut to the type of the column.
    pub fn push_number(&mut self, number: Option<u64>) {
        let value = number.unwrap_or_default();
        match &mut self.values {
            Values::Time(values) => values.push(i64::try_from(value).unwrap_or(i64::MAX)),
            Values::U8(values) => values.push(value as u8),
            Values::U16(values) => values.push(value as u16),
            Values::U32(values) => values.push(value as u32),
            Values::U64(values) => values.push(value),
            Values::F64(values) => values.push(value as f64),
            Values::Text(positions, bytes) | Values::Bytes(positions, bytes) => {
                Values::with_positions(positions, bytes);
            }
        }
        self.add_row(number.is_some());
    }

    /// Adds a row with a floating-point number. Other columns stay as they are.
    pub fn push_float(&mut self, number: Option<f64>) {
        if let Values::F64(values) = &mut self.values {
            values.push(number.unwrap_or_default());
            self.add_row(number.is_some());
        }
    }

    /// Adds a row with the text or bytes that `append` appends. If `append` returns false, the row
    /// has no value.
    pub fn push_bytes(&mut self, append: impl FnOnce(&mut Vec<u8>) -> bool) {
        if let Values::Text(positions, bytes) | Values::Bytes(positions, bytes) = &mut self.values {
            let is_present = append(bytes);
            Values::with_positions(positions, bytes);
            self.add_row(is_present);
        }
    }

    /// Takes the rows, and leaves an empty column.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let empty = Self::new(self.name, &self.values, self.present.is_some());
        std::mem::replace(self, empty)
    }
}

/// No column of flow records has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no column `{name}`: the columns are {}", .known.join(", "))]
pub struct UnknownColumn {
    name: String,
    known: Vec<&'static str>,
}

/// Chosen columns of records, in the given order.
#[derive(Clone, Debug)]
pub struct ColumnBatch {
    columns: Vec<Column>,
}

impl ColumnBatch {
    /// All columns of a record, without rows.
    pub fn all() -> Self {
        let mut all = Adding { rows: &[], columns: Vec::new(), to: To::Schema };
        columns(&mut all);
        Self { columns: all.columns }
    }

    /// The flow statistics of [`MeterOptions::cic`](super::MeterOptions::cic), without rows.
    pub fn cic() -> Self {
        Self { columns: cic::columns() }
    }

    /// All columns of both batches. [`chosen`](Self::chosen) chooses from them.
    #[must_use]
    pub fn and(mut self, more: Self) -> Self {
        self.columns.extend(more.columns);
        self
    }

    /// The columns with these names, without rows.
    ///
    /// # Errors
    /// If a record has no column of a name.
    pub fn of(names: &[impl AsRef<str>]) -> Result<Self, UnknownColumn> {
        Self::all().chosen(names)
    }

    /// An empty batch with these columns.
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns }
    }

    /// The columns of this batch that have these names, in the order of the names.
    ///
    /// # Errors
    /// If no column has one of the names.
    pub fn chosen(&self, names: &[impl AsRef<str>]) -> Result<Self, UnknownColumn> {
        let find = |name: &str| {
            self.columns.iter().find(|column| column.name == name).cloned().ok_or_else(|| {
                let known = self.columns.iter().map(Column::name).collect();
                UnknownColumn { name: name.to_owned(), known }
            })
        };
        let columns = names.iter().map(|name| find(name.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { columns })
    }

    /// The columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The columns, to add rows of another kind than flow records.
    pub fn columns_mut(&mut self) -> &mut [Column] {
        &mut self.columns
    }

    /// Adds a row for each record.
    pub fn add(&mut self, records: &[FlowRecord]) {
        let rows: Vec<Row<'_>> = records.iter().map(Row::of).collect();
        let columns_of_batch = std::mem::take(&mut self.columns);
        let mut adding = Adding { rows: &rows, columns: columns_of_batch, to: To::Rows };
        columns(&mut adding);
        self.columns = adding.columns;
        cic::add(&mut self.columns, records);
    }

    /// Takes the rows, and leaves an empty batch.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self { columns: self.columns.iter_mut().map(Column::take).collect() }
    }
}

#[derive(Clone, Copy)]
enum To {
    Schema,
    Rows,
}

struct Adding<'a> {
    rows: &'a [Row<'a>],
    columns: Vec<Column>,
    to: To,
}

impl Adding<'_> {
    fn add(&mut self, name: &'static str, (values, optional): (Values, bool), push: impl Fn(&mut Column, &Row<'_>)) {
        if let To::Schema = self.to {
            self.columns.push(Column::new(name, &values, optional));
        }
        // A caller may have chosen a column twice.
        for column in self.columns.iter_mut().filter(|column| column.name == name) {
            self.rows.iter().for_each(|row| push(column, row));
        }
    }
}

impl Columns for Adding<'_> {
    fn time(&mut self, name: &'static str, of: impl Fn(&Row<'_>) -> steerage::WallTime) {
        let push = |column: &mut Column, row: &Row<'_>| column.push_number(Some(of(row).as_nanos()));
        self.add(name, (Values::Time(Vec::new()), false), push);
    }

    fn count(&mut self, name: &'static str, of: impl Fn(&Row<'_>) -> u64) {
        self.add(name, (Values::U64(Vec::new()), false), |column, row| column.push_number(Some(of(row))));
    }

    fn number<N: Number>(&mut self, name: &'static str, of: impl Fn(&Row<'_>) -> Option<N>) {
        let values = match N::BITS {
            8 => Values::U8(Vec::new()),
            16 => Values::U16(Vec::new()),
            _ => Values::U32(Vec::new()),
        };
        self.add(name, (values, true), |column, row| column.push_number(of(row).map(|number| number.to_u32().into())));
    }

    fn word(&mut self, name: &'static str, of: impl Fn(&Row<'_>, &mut Vec<u8>)) {
        let push = |column: &mut Column, row: &Row<'_>| {
            column.push_bytes(|text| {
                of(row, text);
                true
            });
        };
        self.add(name, (Values::Text(Vec::new(), Vec::new()), false), push);
    }

    fn text(&mut self, name: &'static str, of: impl Fn(&Row<'_>, &mut Vec<u8>) -> bool) {
        let push = |column: &mut Column, row: &Row<'_>| column.push_bytes(|text| of(row, text));
        self.add(name, (Values::Text(Vec::new(), Vec::new()), true), push);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_a_value_have_no_bit() {
        let mut column = Column::new("number", &Values::U16(Vec::new()), true);
        (0..10).for_each(|row| column.push_number((row != 1 && row != 8).then_some(row)));
        assert_eq!(column.present(), Some(&[0b1111_1101, 0b10][..]));
        assert_eq!((column.rows(), column.absent()), (10, 2));
        assert_eq!(column.values(), &Values::U16(vec![0, 0, 2, 3, 4, 5, 6, 7, 0, 9]));
    }

    #[test]
    fn text_ends_where_the_next_begins() {
        let mut column = Column::new("text", &Values::Text(Vec::new(), Vec::new()), true);
        for text in ["a", "", "bcd"] {
            column.push_bytes(|bytes| {
                bytes.extend_from_slice(text.as_bytes());
                !text.is_empty()
            });
        }
        let taken = column.take();
        assert_eq!(taken.values(), &Values::Text(vec![0, 1, 1, 4], b"abcd".to_vec()));
        assert_eq!((taken.present(), taken.absent()), (Some(&[0b101][..]), 1));
        assert_eq!((column.rows(), column.values()), (0, &Values::Text(vec![0], Vec::new())));
    }

    #[test]
    fn chosen_columns_keep_their_order() {
        let batch = ColumnBatch::of(&["bytes", "first", "source"]).unwrap();
        assert_eq!(batch.columns().iter().map(Column::name).collect::<Vec<_>>(), ["bytes", "first", "source"]);
        let error = ColumnBatch::of(&["sauce"]).unwrap_err().to_string();
        assert!(error.starts_with("there is no column `sauce`: the columns are first, last, kind"), "{error}");
    }
}
