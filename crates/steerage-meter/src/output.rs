use std::io;
use std::path::PathBuf;
use std::time::Duration;

use steerage_guard::file::FilePattern;

use super::timeouts::{LATE_MAX, nanos};

/// The format in which records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowFormat {
    /// CSV (RFC 4180) with a header line. The lines of CSV end with a line feed only, unlike in the
    /// RFC.
    Csv,
    /// One JSON object per line.
    JsonLines,
    /// IPFIX messages (RFC 5655).
    Ipfix,
    /// Parquet.
    Parquet,
}

impl FlowFormat {
    /// Returns the format for a file name with the suffix `.csv`, `.ipfix`, `.parquet`, `.jsonl`,
    /// `.ndjson` or `.json`.
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
        /// The file name, or a pattern with times.
        name: FilePattern,
        /// If set, each period has a new file.
        rotate: Option<Rotation>,
    },
}

/// Rotation: one file per period. A record goes to the file of the period in which the flow's last
/// packet arrived.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// The length of a period. Periods begin at multiples of this length since 1970.
    pub period: Duration,
    /// The inactive timeout of the meters: a record may end this long after its last packet.
    pub inactive: Duration,
}

impl Rotation {
    /// Returns how long a file stays open after its period: flows are checked some time after they
    /// have timed out, and one CPU may be ahead of another.
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
    parts: Vec<PathBuf>,
}

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
