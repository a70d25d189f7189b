//! Writes CSV such that no spreadsheet mistakes a cell for a formula.
//!
//! A spreadsheet evaluates a cell that begins with `=`, `+`, `-` or `@`, even after a tab or a line
//! break, and attackers choose the names in packets. If a cell would begin with such a character,
//! it is written as `\DDD`, its decimal code, like unprintable characters in
//! [`names`](super::names) (RFC 1035, 5.1). In some countries, a semicolon begins a new cell, so
//! the character after a semicolon counts as the first of a cell.

use std::io::{self, Write};

/// No column has negative numbers, so a cell that begins with `-` is text.
#[derive(Debug)]
pub(super) struct Cells<W> {
    to: W,
    is_quoted: bool,
    at_start: bool,
}

impl<W: Write> Cells<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, is_quoted: false, at_start: true }
    }

    pub(super) fn text(&self) -> &W {
        &self.to
    }

    /// Returns true if a byte must be escaped, and records whether the next byte begins a cell.
    fn is_escaped(&mut self, byte: u8) -> bool {
        let at_start = std::mem::replace(&mut self.at_start, false);
        match byte {
            b'"' => {
                // An opening quote is not a part of the cell's text.
                self.at_start = at_start && !self.is_quoted;
                self.is_quoted = !self.is_quoted;
                false
            }
            b',' | b'\n' if !self.is_quoted => {
                self.at_start = true;
                false
            }
            b';' => {
                self.at_start = true;
                false
            }
            b'=' | b'+' | b'-' | b'@' | b'\t' | b'\r' | b'\n' => at_start,
            _ => false,
        }
    }
}

impl<W: Write> Write for Cells<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut plain = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if self.is_escaped(*byte) {
                self.to.write_all(&bytes[plain..at])?;
                write!(self.to, "\\{byte:03}")?;
                plain = at + 1;
            }
        }
        self.to.write_all(&bytes[plain..])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: [&str; 7] = ["=", "+", "-", "@", "\t", "\r", "\n"];

    fn written(rows: &[Vec<String>]) -> Vec<u8> {
        let mut text = Vec::new();
        let mut csv = csv::WriterBuilder::new().has_headers(false).from_writer(Cells::new(&mut text));
        rows.iter().for_each(|row| csv.write_record(row).unwrap());
        csv.flush().unwrap();
        drop(csv);
        text
    }

    fn read(text: &[u8]) -> Vec<Vec<String>> {
        let mut csv = csv::ReaderBuilder::new().has_headers(false).from_reader(text);
        csv.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect()
    }

    fn undone(text: &str) -> String {
        let mut parts = text.split('\\');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + &char::from(part[..3].parse::<u8>().unwrap()).to_string() + &part[3..])
    }

    #[test]
    fn no_cell_of_any_column_begins_a_formula() {
        let columns = read(crate::columns::header().as_bytes()).remove(0);
        assert!(columns.iter().any(|column| column == "http_host"));
        let texts = ["", "1+1", "cmd|' /C calc'!A0", "HYPERLINK(\"http://x\",\"y\")", "a,b", "a;=b", "\"", "\"=a"];
        for nth in 0..columns.len() {
            for text in FIRST.iter().flat_map(|first| texts.map(|text| format!("{first}{text}"))) {
                let mut row = vec!["x".to_owned(); columns.len()];
                row[nth].clone_from(&text);
                let written = written(&[row.clone(), row]);
                for cells in read(&written) {
                    let cell = &cells[nth];
                    let parts = cell.split(';');
                    assert!(parts.clone().all(|part| !FIRST.iter().any(|first| part.starts_with(first))), "{cell}");
                    assert_eq!(undone(cell), text);
                }
            }
        }
    }

    #[test]
    fn other_text_stays_as_it_is() {
        let rows = [
            ["a=b", "h2;http/1.1", "10.0.0.1", "x-y", "\"=\"", "fd00::1", "2026-01-01T00:00:00Z"],
            ["", "", "", "", "", "a\n=b", ""],
        ];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let mut plain = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
        rows.iter().for_each(|row| plain.write_record(row).unwrap());
        assert_eq!(written(&rows), plain.into_inner().unwrap());
    }

    #[test]
    fn bytes_may_come_one_by_one() {
        let text = b"=1,\"=\"\"2\",-\n\"@;\",;+\n";
        let mut whole = Vec::new();
        Cells::new(&mut whole).write_all(text).unwrap();
        let mut parts = Vec::new();
        let mut cells = Cells::new(&mut parts);
        text.iter().for_each(|byte| cells.write_all(&[*byte]).unwrap());
        assert_eq!(whole, parts);
        assert_eq!(whole, b"\\0611,\"\\061\"\"2\",\\045\n\"\\064;\",;\\043\n");
    }
}
