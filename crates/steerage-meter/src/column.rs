//! A column of values, in the layout of Arrow's columns.
//!
//! An Arrow library can use the buffers unchanged: a bitmap of the rows that have a value (the
//! first row in the lowest bit), and the values. Columns of text also have the positions at which
//! the texts end.

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
    /// UTF-8 text. The text of row `n` begins at position number `n` and ends at position number `n
    /// + 1`.
    Text(Vec<i32>, Vec<u8>),
    /// Byte strings, with positions as in `Text`.
    Bytes(Vec<i32>, Vec<u8>),
}

impl Values {
    fn with_positions(positions: &mut Vec<i32>, bytes: &[u8]) {
        positions.push(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
    }

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

/// A column of a batch: its name, and a value in each row.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    name: &'static str,
    values: Values,
    present: Option<Vec<u8>>,
    rows: usize,
    absent: usize,
}

impl Column {
    /// Makes an empty column of the type of `values`. Rows may have no value if `optional` is true.
    pub fn new(name: &'static str, values: &Values, optional: bool) -> Self {
        Self { name, values: values.fresh(), present: optional.then(Vec::new), rows: 0, absent: 0 }
    }

    /// The name of the column.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the values, with 0 or an empty text in a row without a value.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Returns the bitmap of rows that have a value, or `None` if every row has a value.
    pub fn present(&self) -> Option<&[u8]> {
        self.present.as_deref()
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of bytes of all texts. Arrow's positions can express at most `i32::MAX` bytes.
    pub fn bytes(&self) -> usize {
        match &self.values {
            Values::Text(_, bytes) | Values::Bytes(_, bytes) => bytes.len(),
            _ => 0,
        }
    }

    /// Returns the number of rows without a value.
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

    /// Adds a row with a number, whose upper bits are dropped if the column's numbers are shorter.
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

    /// Adds a row with a floating-point number. Does nothing if the column has another type.
    pub fn push_float(&mut self, number: Option<f64>) {
        if let Values::F64(values) = &mut self.values {
            values.push(number.unwrap_or_default());
            self.add_row(number.is_some());
        }
    }

    /// Adds a row with what `append` appends, or without a value if `append` returns false.
    pub fn push_bytes(&mut self, append: impl FnOnce(&mut Vec<u8>) -> bool) {
        if let Values::Text(positions, bytes) | Values::Bytes(positions, bytes) = &mut self.values {
            let is_present = append(bytes);
            Values::with_positions(positions, bytes);
            self.add_row(is_present);
        }
    }

    /// Moves the rows to a new column, and leaves this column empty.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let empty = Self::new(self.name, &self.values, self.present.is_some());
        std::mem::replace(self, empty)
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
        assert_eq!((taken.bytes(), column.bytes()), (4, 0));
        assert_eq!((column.rows(), column.values()), (0, &Values::Text(vec![0], Vec::new())));
    }
}
