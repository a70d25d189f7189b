//! The destination and the format of flow records, and the error if a write fails.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use steerage_guard::file::FilePattern;

use super::timeouts::{LATE_MAX, nanos};

/// The format of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowFormat {
    /// CSV (RFC 4180) with a header line. Unlike in the RFC, lines end with a line feed only.
    Csv,
    /// One JSON object per line.
    JsonLines,
    /// IPFIX messages (RFC 5655).
    Ipfix,
    /// Parquet.
    Parquet,
}

impl FlowFormat {
    /// Returns the format for a file name: `.csv`, `.ipfix` or `.parquet`, and `.jsonl`, `.ndjson`
    /// or `.json` for JSON lines.
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
}

/// The destination of records.
#[derive(Clone, Debug)]
pub enum FlowsTo {
    /// Standard output.
    Stdout,
    /// A file, or a sequence of files.
    Files {
        /// The file name, or the pattern for file names that contain times.
        name: FilePattern,
        /// With rotation, a new file is written for each period.
        rotate: Option<Rotation>,
    },
}

/// Rotation: one file per period. A record goes to the file of the period in which the flow's last
/// packet arrived.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// The length of a period. Each period begins at a multiple of this length since 1970.
    pub period: Duration,
    /// The inactive timeout of the meters. A flow's record may end after the period of the flow's
    /// last packet: later by the inactive timeout and a little more. Therefore the file of a period
    /// is completed some time after the period.
    pub inactive: Duration,
}

impl Rotation {
    /// Returns how long a file stays open after its period: twice the sum of the inactive timeout
    /// and [`LATE_MAX`], plus the length of one period. The file of a period stays open after the
    /// period for two reasons: flows are not checked exactly when they time out, and one CPU may be
    /// ahead of another CPU.
    pub(super) fn late(&self) -> u64 {
        nanos(self.inactive.saturating_add(LATE_MAX).saturating_mul(2)).saturating_add(nanos(self.period))
    }
}

/// The error if flows could not be written to a file or sent to a collector.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot {operation} {}: {cause}{}{}{advice}",
    .path.display(),
    written(.parts),
    if .advice.is_empty() { "" } else { "; " }
)]
pub struct ExportError {
    operation: &'static str,
    path: PathBuf,
    #[source]
    cause: io::Error,
    advice: &'static str,
    /// The files that contain the records that were written.
    parts: Vec<PathBuf>,
}

/// Returns the part of the error message that lists the files with the written records.
fn written(parts: &[PathBuf]) -> String {
    let and = match parts {
        [] => return String::new(),
        [_] => String::new(),
        [_, second] => format!(" and {}", second.display()),
        [_, more @ ..] => format!(" and {} other files whose names end in .part", more.len()),
    };
    format!("; what was written is in {}{and}", parts[0].display())
}

impl ExportError {
    pub(super) fn new(operation: &'static str, path: impl Into<PathBuf>, cause: io::Error) -> Self {
        let (path, advice, parts) = (path.into(), "name another file or directory", Vec::new());
        Self { operation, path, cause, advice, parts }
    }

    pub(super) fn with_advice(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }

    pub(super) fn with_parts(self, parts: Vec<PathBuf>) -> Self {
        Self { parts, ..self }
    }

    pub(super) fn is_closed_pipe(&self) -> bool {
        self.cause.kind() == io::ErrorKind::BrokenPipe
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
