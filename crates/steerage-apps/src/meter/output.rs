//! Where records are written and in which form, and why that failed.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::pattern::FilePattern;
use super::timeouts::{LATE_MAX, nanos};

/// How records are written.
/// [`FlowWriter`](super::FlowWriter) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowFormat {
    /// RFC 4180, with a header line; lines end as those of text files do here.
    Csv,
    /// An object on each line.
    JsonLines,
    /// Messages of IPFIX (RFC 5655).
    Ipfix,
    /// Parquet, if this crate was built with the feature `parquet`.
    Parquet,
}

impl FlowFormat {
    /// By the end of a file's name: `.csv`, or `.jsonl`, `.ndjson` or `.json`, or `.ipfix`, or `.parquet`.
    pub fn of_name(name: &str) -> Option<Self> {
        let (_, suffix) = name.rsplit_once('.')?;
        match suffix {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" | "json" => Some(Self::JsonLines),
            "ipfix" => Some(Self::Ipfix),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// Whether this build can write it.
    pub fn is_built(self) -> bool {
        self != Self::Parquet || cfg!(feature = "parquet")
    }
}

/// Where records go.
/// [`FlowWriter`](super::FlowWriter) has an example.
#[derive(Clone, Debug)]
pub enum FlowsTo {
    /// Standard output.
    Stdout,
    /// A file, or one after the other.
    Files {
        /// Its name.
        name: FilePattern,
        /// One for each period, if it is to be so.
        rotate: Option<Rotation>,
    },
}

/// A file after the other. A record is in the file of the period in which the flow's last packet was.
/// [`FlowWriter`](super::FlowWriter) has an example.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// How long a file's period is. Periods begin at multiples of it since 1970.
    pub period: Duration,
    /// The meters' inactive timeout: for so long after a period, and some more, flows may end that had their last packet in
    /// it. Then its file is complete.
    pub inactive: Duration,
}

impl Rotation {
    /// How long a file stays open after its period. Twice the timeout: flows are not looked at the moment they are over, and
    /// one CPU may be ahead of another.
    pub(super) fn late(&self) -> u64 {
        nanos(self.inactive.saturating_add(LATE_MAX).saturating_mul(2)).saturating_add(nanos(self.period))
    }
}

/// Why records could not be written.
/// [`FlowWriter`](super::FlowWriter) has an example.
#[derive(Debug)]
pub struct ExportError {
    operation: &'static str,
    path: PathBuf,
    cause: io::Error,
    advice: &'static str,
}

impl ExportError {
    pub(super) fn new(operation: &'static str, path: impl Into<PathBuf>, cause: io::Error) -> Self {
        Self { operation, path: path.into(), cause, advice: "name another file or directory" }
    }

    /// The same error with other advice.
    pub(super) fn with_advice(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }

    pub(super) fn is_closed_pipe(&self) -> bool {
        self.cause.kind() == io::ErrorKind::BrokenPipe
    }
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}: {}; {}", self.operation, self.path.display(), self.cause, self.advice)
    }
}

impl std::error::Error for ExportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_by_name() {
        let formats = ["a.csv", "a.b.jsonl", "x.ndjson", "x.json", "csv", "a.txt", "b.ipfix", "c.parquet"]
            .map(FlowFormat::of_name);
        let (csv, json) = (Some(FlowFormat::Csv), Some(FlowFormat::JsonLines));
        assert_eq!(formats, [csv, json, json, json, None, None, Some(FlowFormat::Ipfix), Some(FlowFormat::Parquet)]);
    }
}
