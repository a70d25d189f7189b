//! Parses a run file. The parsed keys are in the order of the file, with their line numbers.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::error::RunFileError;

/// The maximum size of a run file in bytes. Even a run file with all options and thousands of
/// devices is far below this maximum.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(super) fn text(path: &Path) -> Result<String, RunFileError> {
    let name = path.display().to_string();
    let wrong = |message: String| RunFileError { path: name.clone(), line: None, message };
    let mut text = String::new();
    let file =
        File::open(path).map_err(|error| wrong(format!("cannot open the file: {error}; `ls` shows the files here")))?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| {
        wrong(format!("cannot read the file: {error}; write it in TOML, as `steerage help run-files` explains"))
    })?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(format!("the file is longer than {FILE_BYTES_MAX} bytes: is it the right one?")));
    }
    Ok(text)
}

#[derive(Debug)]
pub(super) struct Key<'t> {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) value: DeValue<'t>,
}

#[derive(Debug)]
pub(super) struct Keys<'t> {
    path: String,
    text: &'t str,
    pub(super) keys: Vec<Key<'t>>,
}

pub(super) fn keys<'t>(path: &Path, text: &'t str) -> Result<Keys<'t>, RunFileError> {
    let path = path.display().to_string();
    match DeTable::parse(text) {
        Ok(table) => Ok(Keys::of(path, text, table.into_inner())),
        Err(error) => {
            let line = error.span().map(|span| line_of(text, span.start));
            let message = error.message().lines().collect::<Vec<_>>().join("; ");
            Err(RunFileError { path, line, message })
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

impl<'t> Keys<'t> {
    fn of(path: String, text: &'t str, table: DeTable<'t>) -> Self {
        let mut keys: Vec<_> = table.into_iter().map(|(key, value)| (key.span().start, key, value)).collect();
        keys.sort_by_key(|(at, ..)| *at);
        let key = |(at, name, value): (usize, toml::Spanned<toml::de::DeString<'t>>, toml::Spanned<DeValue<'t>>)| Key {
            name: name.into_inner().into_owned(),
            line: line_of(text, at),
            value: value.into_inner(),
        };
        Self { path, text, keys: keys.into_iter().map(key).collect() }
    }

    pub(super) fn within(&self, table: &DeTable<'t>) -> Self {
        Self::of(self.path.clone(), self.text, table.clone())
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn get(&self, name: &str) -> Option<&Key<'t>> {
        self.keys.iter().find(|key| key.name == name)
    }

    pub(super) fn line_at(&self, at: usize) -> usize {
        line_of(self.text, at)
    }

    pub(super) fn error(&self, line: Option<usize>, message: String) -> RunFileError {
        RunFileError { path: self.path.clone(), line, message }
    }
}

/// Returns a value of a run file in the form that the command line has, or `None` if the value is
/// neither text nor a number.
pub(super) fn as_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        // TOML allows underscores in numbers, and bases other than 10.
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string()),
        DeValue::Float(number) => number.as_str().parse::<f64>().ok().map(|number| number.to_string()),
        _ => None,
    }
}
