//! A file of records. It gets its name when it is complete.

use std::fs::File;
use std::io::{self, BufWriter, Stdout, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use steerage::BucketId;
use steerage_guard::file::{self, NewFile, Readers};
use steerage_guard::path::PathError;

use super::cells::Cells;
use super::flow::{Flow, FlowEnd, Seen};
use super::ipfix::{Encoder, Statistics};
use super::key::Key;
use super::output::{ExportError, FlowFormat};
#[cfg(feature = "parquet")]
use super::parquet::Parquet;
use super::record::FlowRecord;
use super::writer_state::WriterState;

/// The size of the write buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// The observation domain of an IPFIX file, and the maximum size of its messages.
const DOMAIN: u32 = 1;
const MESSAGE_BYTES: usize = 16 << 10;

/// The name of standard output in messages.
pub(super) const STDOUT: &str = "standard output";

pub(super) struct FlowFile {
    out: Out,
    format: Format,
    /// The new file and its final name. `None` for standard output.
    named: Option<(NewFile, PathBuf)>,
}

/// The format, with the state of its encoder.
enum Format {
    Csv,
    JsonLines,
    Ipfix {
        encoder: Box<Encoder>,
        statistics: Statistics,
    },
    #[cfg(feature = "parquet")]
    Parquet(Box<Parquet>),
}

impl Format {
    fn new(format: FlowFormat) -> io::Result<Self> {
        Ok(match format {
            FlowFormat::Csv => Self::Csv,
            FlowFormat::JsonLines => Self::JsonLines,
            FlowFormat::Ipfix => Self::Ipfix {
                encoder: Box::new(Encoder::new(DOMAIN, true, MESSAGE_BYTES)),
                statistics: Statistics::default(),
            },
            #[cfg(feature = "parquet")]
            FlowFormat::Parquet => Self::Parquet(Box::new(Parquet::new()?)),
            #[cfg(not(feature = "parquet"))]
            FlowFormat::Parquet => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without Parquet"));
            }
        })
    }
}

enum Out {
    File(BufWriter<File>),
    Stdout(BufWriter<Watched>),
}

/// The maximum size of one write to a pipe. Small writes show the progress when a slow reader takes
/// some bytes. A pipe takes this size completely or not at all (PIPE_BUF).
const PIECE_BYTES: usize = 4096;

/// Standard output. It notes in the writer state when bytes are taken.
struct Watched {
    out: Stdout,
    shared: Arc<WriterState>,
}

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(&bytes[..bytes.len().min(PIECE_BYTES)]);
        self.shared.note_taken();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(out) => out.write(bytes),
            Self::Stdout(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(out) => out.flush(),
            Self::Stdout(out) => out.flush(),
        }
    }
}

/// Builds the error. A missing directory is an error, because a silently created directory would
/// hide the flows if its name was mistyped.
fn cannot_write(path: &Path, cause: io::Error) -> ExportError {
    let is_missing = cause.kind() == io::ErrorKind::NotFound;
    let advice = match cause.get_ref().and_then(|inner| inner.downcast_ref::<PathError>()) {
        Some(PathError::Descriptor(_)) => "write - for standard output",
        // The message contains the advice.
        Some(_) => "",
        None if is_missing => "make the directory with mkdir -p, or name another directory",
        None => return ExportError::new("write flows to", path, cause),
    };
    ExportError::new("write flows to", path, cause).with_advice(advice)
}

impl FlowFile {
    pub(super) fn stdout(format: FlowFormat, shared: &Arc<WriterState>) -> Result<Self, ExportError> {
        let watched = Watched { out: io::stdout(), shared: Arc::clone(shared) };
        let out = Out::Stdout(BufWriter::with_capacity(BUFFER_BYTES, watched));
        let format = Format::new(format).map_err(|cause| ExportError::new("write flows to", STDOUT, cause))?;
        Self { out, format, named: None }.begin()
    }

    /// Creates the file under a temporary name. With `dated`, missing directories are created,
    /// because their names are times.
    pub(super) fn create(path: PathBuf, dated: bool, format: FlowFormat) -> Result<Self, ExportError> {
        let make = || -> io::Result<(NewFile, File, Format)> {
            let state = Format::new(format)?;
            let mut new = if dated {
                NewFile::create_with_directories(&path, Readers::Group)?
            } else {
                NewFile::create(&path, Readers::Group)?
            };
            // If writing fails, the records so far are kept. A Parquet file is unreadable without
            // its footer, which describes the contents.
            if format != FlowFormat::Parquet {
                new = new.kept();
            }
            let file = new.file().try_clone()?;
            Ok((new, file, state))
        };
        let (new, file, format) = make().map_err(|cause| cannot_write(&path, cause))?;
        let out = Out::File(BufWriter::with_capacity(BUFFER_BYTES, file));
        Self { out, format, named: Some((new, path)) }.begin()
    }

    /// Checks whether files can be created in the directory of a name with times in it. The check
    /// before the run prevents a failure during the run.
    pub(super) fn check_directory(name: &str) -> Result<(), ExportError> {
        file::probe(Path::new(name)).map_err(|cause| cannot_write(Path::new(name), cause))
    }

    fn begin(mut self) -> Result<Self, ExportError> {
        if matches!(self.format, Format::Csv) {
            let header = header().map_err(|cause| self.error("write flows to", cause))?;
            self.out.write_all(&header).map_err(|cause| self.error("write flows to", cause))?;
        }
        Ok(self)
    }

    pub(super) fn write(&mut self, records: &[FlowRecord]) -> Result<(), ExportError> {
        let result = match &mut self.format {
            Format::Csv => as_csv(&mut self.out, records),
            Format::JsonLines => as_json(&mut self.out, records),
            Format::Ipfix { encoder, statistics } => as_ipfix(&mut self.out, encoder, statistics, records),
            #[cfg(feature = "parquet")]
            Format::Parquet(parquet) => parquet.add(&mut self.out, records),
        };
        // Standard output is flushed at once for the reader of a pipe.
        let flushed = result.and_then(|()| if self.named.is_none() { self.out.flush() } else { Ok(()) });
        flushed.map_err(|cause| self.error("write flows to", cause))
    }

    /// The number of records in memory. They are written together as a row group.
    #[cfg(feature = "parquet")]
    pub(super) fn rows(&self) -> usize {
        if let Format::Parquet(parquet) = &self.format { parquet.rows() } else { 0 }
    }

    /// Writes the records in memory.
    #[cfg(feature = "parquet")]
    pub(super) fn write_rows(&mut self) -> Result<(), ExportError> {
        let Format::Parquet(parquet) = &mut self.format else { return Ok(()) };
        parquet.end_group(&mut self.out).map_err(|cause| self.error("write flows to", cause))
    }

    /// Completes the file and gives it its name. `sample` says that one flow of so many was
    /// metered.
    pub(super) fn finish(mut self, sample: u32) -> Result<(), ExportError> {
        let ended = match std::mem::replace(&mut self.format, Format::Csv) {
            Format::Csv | Format::JsonLines => Ok(()),
            Format::Ipfix { mut encoder, statistics } => {
                encoder.encode_statistics(&Statistics { sample, ..statistics }, SystemTime::now());
                self.out.write_all(encoder.message())
            }
            #[cfg(feature = "parquet")]
            Format::Parquet(parquet) => parquet.finish(&mut self.out, sample),
        };
        ended.and_then(|()| self.out.flush()).map_err(|cause| self.error("write flows to", cause))?;
        let Some((new, path)) = self.named.take() else { return Ok(()) };
        let part = new.part().to_string_lossy().into_owned();
        let named = new.finish().map(drop);
        named.map_err(|cause| {
            let cause = io::Error::new(cause.kind(), format!("{cause}; they are in {part} beside it"));
            ExportError::new("give flows the name", path, cause)
        })
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> ExportError {
        ExportError::new(operation, self.named.as_ref().map_or(Path::new(STDOUT), |(_, path)| path), cause)
    }
}

fn as_csv(out: &mut impl Write, records: &[FlowRecord]) -> io::Result<()> {
    let mut csv = csv::WriterBuilder::new().has_headers(false).from_writer(Cells::new(out));
    records.iter().try_for_each(|record| csv.serialize(record)).map_err(io::Error::from)?;
    csv.flush()
}

fn as_json(out: &mut impl Write, records: &[FlowRecord]) -> io::Result<()> {
    for record in records {
        serde_json::to_writer(&mut *out, record)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Writes IPFIX messages one after the other (RFC 5655).
fn as_ipfix(
    out: &mut impl Write,
    encoder: &mut Encoder,
    statistics: &mut Statistics,
    mut records: &[FlowRecord],
) -> io::Result<()> {
    while !records.is_empty() {
        let count = encoder.encode(records, SystemTime::now());
        out.write_all(encoder.message())?;
        statistics.messages += 1;
        statistics.bytes += encoder.message().len() as u64;
        statistics.records += u64::from(encoder.data_records());
        encoder.sent();
        records = &records[count..];
    }
    Ok(())
}

/// The header line: the names of a record's columns in CSV.
pub(super) fn header() -> io::Result<Vec<u8>> {
    let flow = Flow::begin(&Seen::of(Key::other()), BucketId { group: 0, bucket: 0 });
    let mut csv = csv::Writer::from_writer(Vec::new());
    csv.serialize(FlowRecord::new(flow, FlowEnd::Forced)).map_err(io::Error::from)?;
    let mut text = csv.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
    let end = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| at + 1);
    text.truncate(end);
    Ok(text)
}
