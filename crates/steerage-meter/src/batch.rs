use super::cic_columns::CIC;
use super::column::Column;
use super::columns::{FLOW, Field, JOINED, Row};
use super::record::FlowRecord;

/// The error for an unknown column name.
#[derive(Debug, thiserror::Error)]
#[error("there is no column `{name}`: the columns are {}", .known.join(", "))]
pub struct UnknownColumn {
    name: String,
    known: Vec<&'static str>,
}

/// A batch of records, with columns in the caller's choice and order.
#[derive(Clone, Debug)]
pub struct ColumnBatch {
    columns: Vec<Column>,
}

impl ColumnBatch {
    /// Creates an empty batch with all columns of a record.
    pub fn all() -> Self {
        Self { columns: FLOW.iter().map(Field::column).collect() }
    }

    /// Creates an empty batch of the flow statistics of
    /// [`MeterOptions::cic`](super::MeterOptions::cic).
    pub fn cic() -> Self {
        Self { columns: CIC.iter().map(Field::column).collect() }
    }

    /// Creates an empty batch with the column `joined` ([`FlowRecord::joined`]).
    pub fn joined() -> Self {
        Self { columns: vec![JOINED.column()] }
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

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, Column::rows)
    }

    /// The number of bytes of all texts in all columns.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(Column::bytes).sum()
    }

    /// Adds a row for each record.
    pub fn add(&mut self, records: &[FlowRecord]) {
        let rows: Vec<Row<'_>> = records.iter().map(Row::of).collect();
        for column in &mut self.columns {
            if let Some(field) = field(column.name()) {
                field.add(&rows, column);
            }
        }
    }

    /// Moves the rows to a new batch, and leaves this batch empty.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self { columns: self.columns.iter_mut().map(Column::take).collect() }
    }
}

/// Returns the column of records with this name.
fn field(name: &str) -> Option<&'static Field> {
    FLOW.iter().chain(&CIC).chain([&JOINED]).find(|field| field.name == name)
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
