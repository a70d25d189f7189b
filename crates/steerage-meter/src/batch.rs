use super::cic_columns;
use super::column::{Column, Values};
use super::columns::{Columns, Number, columns};
use super::record::FlowRecord;
use super::row::Row;

/// The error for an unknown column name.
#[derive(Debug, thiserror::Error)]
#[error("there is no column `{name}`: the columns are {}", .known.join(", "))]
pub struct UnknownColumn {
    name: String,
    known: Vec<&'static str>,
}

const JOINED: &str = "joined";

/// A batch of records, with columns in the caller's choice and order.
#[derive(Clone, Debug)]
pub struct ColumnBatch {
    columns: Vec<Column>,
}

impl ColumnBatch {
    /// Creates an empty batch with all columns of a record.
    pub fn all() -> Self {
        let mut all = Adding { rows: &[], columns: Vec::new(), to: To::Schema };
        columns(&mut all);
        Self { columns: all.columns }
    }

    /// Creates an empty batch of the flow statistics of
    /// [`MeterOptions::cic`](super::MeterOptions::cic).
    pub fn cic() -> Self {
        Self { columns: cic_columns::columns() }
    }

    /// Creates an empty batch with the column `joined` ([`FlowRecord::joined`]).
    pub fn joined() -> Self {
        Self { columns: vec![Column::new(JOINED, &Values::U32(Vec::new()), false)] }
    }

    /// Returns a batch with the columns of both batches, from which a caller can
    /// [choose](Self::chosen).
    #[must_use]
    pub fn and(mut self, more: Self) -> Self {
        self.columns.extend(more.columns);
        self
    }

    /// Creates an empty batch with the columns that have these names.
    ///
    /// # Errors
    /// Returns an error if flow records have no column with one of the names.
    pub fn of(names: &[impl AsRef<str>]) -> Result<Self, UnknownColumn> {
        Self::all().chosen(names)
    }

    /// Creates an empty batch with these columns.
    pub fn new(columns: Vec<Column>) -> Self {
        Self { columns }
    }

    /// Returns the columns with these names, in the order of the names.
    ///
    /// # Errors
    /// Returns an error if this batch has no column with one of the names.
    pub fn chosen(&self, names: &[impl AsRef<str>]) -> Result<Self, UnknownColumn> {
        let find = |name: &str| {
            self.columns.iter().find(|column| column.name() == name).cloned().ok_or_else(|| {
                let known = self.columns.iter().map(Column::name).collect();
                UnknownColumn { name: name.to_owned(), known }
            })
        };
        let columns = names.iter().map(|name| find(name.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { columns })
    }

    /// Returns the columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the columns, so that the caller can add rows that are not flow records.
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
        cic_columns::add(&mut self.columns, records);
        for column in self.columns.iter_mut().filter(|column| column.name() == JOINED) {
            records.iter().for_each(|record| column.push_number(Some(record.joined().into())));
        }
    }

    /// Moves the rows to a new batch, and leaves this batch empty.
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
        // A caller may choose a column twice.
        for column in self.columns.iter_mut().filter(|column| column.name() == name) {
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
    fn chosen_columns_keep_their_order() {
        let batch = ColumnBatch::of(&["bytes", "first", "source"]).unwrap();
        assert_eq!(batch.columns().iter().map(Column::name).collect::<Vec<_>>(), ["bytes", "first", "source"]);
        let error = ColumnBatch::of(&["sauce"]).unwrap_err().to_string();
        assert!(error.starts_with("there is no column `sauce`: the columns are first, last, kind"), "{error}");
    }
}
