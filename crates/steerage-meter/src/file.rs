//! A file of flow records, which gets its final name when it is complete.

use std::io;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::SystemTime;

use steerage_guard::file;
use steerage_guard::path::PathError;

use super::cells::Cells;
use super::columns::header;
use super::disk::Disk;
use super::ipfix::{Encoder, Statistics};
use super::output::{ExportError, FlowFormat};
use super::parquet::Parquet;
use super::record::FlowRecord;
use super::record_ledger::{Unwritten, Volume};
use super::record_writer::RecordWriter;
use super::writer_state::WriterState;

const DOMAIN: u32 = 1;
const MESSAGE_BYTES: usize = 16 << 10;

pub(super) const STDOUT: &str = "standard output";

pub(super) struct FlowFile {
    out: RecordWriter,
    format: Format,
    path: Option<PathBuf>,
    has_ended: bool,
}

enum Format {
    Csv,
    JsonLines,
    Ipfix { encoder: Box<Encoder>, statistics: Statistics },
    Parquet(Box<Parquet>),
}

impl Format {
    fn new(format: FlowFormat) -> Self {
        match format {
            FlowFormat::Csv => Self::Csv,
            FlowFormat::JsonLines => Self::JsonLines,
            FlowFormat::Ipfix => Self::Ipfix {
                encoder: Box::new(Encoder::new(DOMAIN, true, MESSAGE_BYTES)),
                statistics: Statistics::default(),
            },
            FlowFormat::Parquet => Self::Parquet(Box::new(Parquet::new())),
        }
    }
}

/// A missing directory is not created: flows in a mistyped directory would not be found.
fn cannot_write(path: &Path, cause: io::Error) -> ExportError {
    let kind = cause.kind();
    let advice = match (cause.get_ref().and_then(|inner| inner.downcast_ref::<PathError>()), kind) {
        (Some(PathError::Descriptor(_)), _) => "write - for standard output",
        (Some(_), _) => "",
        (None, io::ErrorKind::NotFound) => "make the directory with mkdir -p, or name another directory",
        (None, io::ErrorKind::StorageFull) => "make room on the disk, or name a file on another one",
        (None, _) => return ExportError::new("write flows to", path, cause),
    };
    ExportError::new("write flows to", path, cause).with_advice(advice)
}

impl FlowFile {
    pub(super) fn stdout(format: FlowFormat, state: &Arc<WriterState>) -> Result<Self, ExportError> {
        let make = || Self::new(Disk::stdout(state)?, format, None, state);
        make().map_err(|cause| ExportError::new("write flows to", STDOUT, cause))
    }

    pub(super) fn create(
        path: PathBuf,
        dated: bool,
        format: FlowFormat,
        state: &Arc<WriterState>,
    ) -> Result<Self, ExportError> {
        let make = || Self::new(Disk::create(&path, dated)?, format, Some(path.clone()), state);
        make().map_err(|cause| cannot_write(&path, cause))
    }

    /// Checks before the run that files can be created in the directory.
    pub(super) fn check_directory(name: &str) -> Result<(), ExportError> {
        file::probe(Path::new(name)).map_err(|cause| cannot_write(Path::new(name), cause))
    }

    pub(super) fn new(
        disk: Disk,
        format: FlowFormat,
        path: Option<PathBuf>,
        state: &Arc<WriterState>,
    ) -> io::Result<Self> {
        let mut out = RecordWriter::new(disk, state.ledger().take(Volume::NONE));
        let format = Format::new(format);
        if matches!(format, Format::Csv) {
            out.part(Volume::NONE, header().as_bytes())?;
        }
        Ok(Self { out, format, path, has_ended: false })
    }

    /// `unwritten` must count exactly the records in `records`.
    pub(super) fn write(&mut self, records: &[FlowRecord], unwritten: Unwritten) -> Result<(), ExportError> {
        self.out.take(unwritten);
        let result = match &mut self.format {
            Format::Csv => as_csv(&mut self.out, records),
            Format::JsonLines => as_json(&mut self.out, records),
            Format::Ipfix { encoder, statistics } => as_ipfix(&mut self.out, encoder, statistics, records),
            Format::Parquet(parquet) => parquet.add(&mut self.out, records),
        };
        // Standard output is flushed at once, because the reader of a pipe must not wait.
        let flushed = result.and_then(|()| if self.path.is_none() { self.out.flush() } else { Ok(()) });
        flushed.map_err(|cause| self.error(cause))
    }

    pub(super) fn rows(&self) -> usize {
        if let Format::Parquet(parquet) = &self.format { parquet.rows() } else { 0 }
    }

    pub(super) fn write_rows(&mut self) -> Result<(), ExportError> {
        let Format::Parquet(parquet) = &mut self.format else { return Ok(()) };
        parquet.end_group(&mut self.out).map_err(|cause| self.error(cause))
    }

    /// Completes and renames the file. `sample` is the sampling rate: one of every `sample` flows.
    pub(super) fn finish(&mut self, sample: u32) -> Result<(), ExportError> {
        self.end(sample).map_err(|cause| self.error(cause))?;
        let Some(path) = &self.path else { return Ok(()) };
        self.out.finish().map_err(|cause| ExportError::new("give flows the name", path, cause))
    }

    /// Completes a file with records after its output has failed. The file keeps its temporary
    /// name, which `leave` returns.
    pub(super) fn leave(mut self, sample: u32) -> Option<PathBuf> {
        // For Parquet, the second attempt writes the footer, which makes earlier row groups
        // readable.
        if !self.has_ended && self.end(sample).is_err() {
            let _ = self.end(sample);
        }
        let is_kept = self.path.is_some() && self.out.records() > 0;
        is_kept.then(|| self.out.disk().part().to_owned())
    }

    fn end(&mut self, sample: u32) -> io::Result<()> {
        match &mut self.format {
            Format::Csv | Format::JsonLines => {}
            Format::Ipfix { encoder, statistics } if !self.out.has_failed() => {
                encoder.encode_statistics(&Statistics { sample, ..*statistics }, SystemTime::now());
                self.out.part(Volume::NONE, encoder.message())?;
            }
            // An IPFIX file gets no statistics, because they would also count messages that are not
            // in the file.
            Format::Ipfix { .. } => {}
            Format::Parquet(parquet) => parquet.end(&mut self.out, sample)?,
        }
        self.out.flush()?;
        self.has_ended = true;
        Ok(())
    }

    fn error(&self, cause: io::Error) -> ExportError {
        cannot_write(self.path.as_deref().unwrap_or(Path::new(STDOUT)), cause)
    }
}

fn as_csv(out: &mut RecordWriter, records: &[FlowRecord]) -> io::Result<()> {
    let mut csv = csv::WriterBuilder::new().has_headers(false).from_writer(Cells::new(Vec::new()));
    for record in records {
        let start = csv.get_ref().text().len();
        csv.serialize(record).map_err(io::Error::from)?;
        csv.flush()?;
        out.part(Volume::of(slice::from_ref(record)), &csv.get_ref().text()[start..])?;
    }
    Ok(())
}

fn as_json(out: &mut RecordWriter, records: &[FlowRecord]) -> io::Result<()> {
    let mut line = Vec::new();
    for record in records {
        line.clear();
        serde_json::to_writer(&mut line, record)?;
        line.push(b'\n');
        out.part(Volume::of(slice::from_ref(record)), &line)?;
    }
    Ok(())
}

fn as_ipfix(
    out: &mut RecordWriter,
    encoder: &mut Encoder,
    statistics: &mut Statistics,
    mut records: &[FlowRecord],
) -> io::Result<()> {
    while !records.is_empty() {
        let (now, later) = records.split_at(encoder.encode(records, SystemTime::now()));
        out.part(Volume::of(now), encoder.message())?;
        statistics.messages += 1;
        statistics.bytes += encoder.message().len() as u64;
        statistics.records += u64::from(encoder.data_records());
        encoder.sent();
        records = later;
    }
    Ok(())
}
