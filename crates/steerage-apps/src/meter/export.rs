//! Records on their way out: from the CPUs by one bounded queue to a thread that writes them.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::file::FlowFile;
use super::pattern::FilePattern;
use super::record::FlowRecord;
use super::timeouts::nanos;

/// Records that are handed over at a time: 34 KiB, and one hand-over costs each record next to nothing.
pub(super) const RECORDS_AT_A_TIME: usize = 256;

/// Hand-overs that wait for the writer: 4096 records. At a million records a second that is room for it to be away for 4 ms.
const WAITING_MAX: usize = 16;

/// How records are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowFormat {
    /// RFC 4180, with a header line; lines end as those of text files do here.
    Csv,
    /// An object on each line.
    JsonLines,
}

impl FlowFormat {
    /// By the end of a file's name: `.csv`, or `.jsonl`, `.ndjson` or `.json`.
    pub fn of_name(name: &str) -> Option<Self> {
        let (_, suffix) = name.rsplit_once('.')?;
        match suffix {
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" | "json" => Some(Self::JsonLines),
            _ => None,
        }
    }
}

/// Where records go.
#[derive(Clone, Debug)]
pub enum FlowsTo {
    /// Standard output.
    Stdout,
    /// A file or, with a period, one for each.
    Files {
        /// Its name.
        name: FilePattern,
        /// How long a file's period is. Periods begin at multiples of it since 1970.
        rotate: Option<Duration>,
    },
}

/// Why records could not be written.
#[derive(Debug)]
pub struct ExportError {
    operation: &'static str,
    path: PathBuf,
    cause: io::Error,
    advice: &'static str,
}

impl ExportError {
    pub(super) fn new(operation: &'static str, path: impl Into<PathBuf>, cause: io::Error) -> Self {
        Self { operation, path: path.into(), cause, advice: "let it be another file or directory" }
    }

    fn is_closed_pipe(&self) -> bool {
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

enum Message {
    /// Records, and what time it was when they ended.
    Ended(Vec<FlowRecord>, u64),
    /// There will be no more.
    End,
}

/// Where a meter leaves its records.
#[derive(Clone, Debug)]
pub struct Exporter {
    to: SyncSender<Message>,
    waits: bool,
}

impl Exporter {
    /// Hands records over. Returns how many were lost: where the source cannot wait, what finds no room.
    pub(super) fn send(&self, records: Vec<FlowRecord>, now: u64) -> u64 {
        let count = records.len() as u64;
        let message = Message::Ended(records, now);
        if self.waits {
            // Nobody takes them only after the writer failed, and then the whole run does.
            return if self.to.send(message).is_ok() { 0 } else { count };
        }
        match self.to.try_send(message) {
            Ok(()) => 0,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => count,
        }
    }
}

/// The thread that writes.
#[derive(Debug)]
pub struct FlowWriter {
    to: SyncSender<Message>,
    thread: JoinHandle<Result<(), ExportError>>,
}

impl FlowWriter {
    /// Starts it. What can be found out at once is: a file without a time in its name is made now. `on_failure` is called
    /// from that thread if it has to give up, so that whoever runs the meters can stop.
    ///
    /// # Errors
    /// If the file or its directory cannot be used.
    pub fn start(
        to: FlowsTo,
        format: FlowFormat,
        on_failure: impl FnOnce() + Send + 'static,
    ) -> Result<Self, ExportError> {
        let mut sink = Sink::new(to, format)?;
        let (sender, messages) = mpsc::sync_channel(WAITING_MAX);
        let write = move || {
            let result = sink.write_all(&messages);
            if result.is_err() {
                on_failure();
            }
            // Dropped last, so that whoever finds nobody there knows that the failure was told.
            drop(messages);
            match result {
                // Whoever read has seen enough.
                Err(error) if error.is_closed_pipe() => Ok(()),
                other => other,
            }
        };
        let thread = thread::Builder::new()
            .name("flows".to_owned())
            .spawn(write)
            .map_err(|cause| ExportError::new("start a thread to write flows to", "a file", cause))?;
        Ok(Self { to: sender, thread })
    }

    /// For the meters. One that `waits` stops its CPU while the writer is behind: right for a source that can wait, of which
    /// no record may be lost. Else records are lost, and counted.
    pub fn exporter(&self, waits: bool) -> Exporter {
        Exporter { to: self.to.clone(), waits }
    }

    /// Writes these as well, and ends.
    ///
    /// # Errors
    /// If anything could not be written.
    pub fn finish(self, rest: Vec<FlowRecord>) -> Result<(), ExportError> {
        let end = rest.iter().map(|record| record.last().as_nanos()).max().unwrap_or(0);
        // If nobody takes them, the thread says why.
        let _ = self.to.send(Message::Ended(rest, end));
        let _ = self.to.send(Message::End);
        match self.thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// What the thread writes to.
struct Sink {
    to: FlowsTo,
    format: FlowFormat,
    file: Option<FlowFile>,
    /// When the present file's period ends.
    until: u64,
    /// Names of files that are complete.
    written: HashSet<PathBuf>,
}

impl Sink {
    fn new(to: FlowsTo, format: FlowFormat) -> Result<Self, ExportError> {
        let mut sink = Self { to, format, file: None, until: 0, written: HashSet::new() };
        match &sink.to {
            FlowsTo::Stdout => sink.file = Some(FlowFile::stdout(format)?),
            FlowsTo::Files { name, .. } if !name.has_time() => sink.open(0)?,
            FlowsTo::Files { name, .. } => FlowFile::check_directory(name.as_str())?,
        }
        Ok(sink)
    }

    fn write_all(&mut self, messages: &Receiver<Message>) -> Result<(), ExportError> {
        while let Ok(Message::Ended(records, now)) = messages.recv() {
            if records.is_empty() {
                continue;
            }
            self.turn(&records, now)?;
            if let Some(file) = &mut self.file {
                file.write(&records)?;
            }
        }
        self.close()
    }

    /// Sees to it that the file for these records is open. Records that come later than others of the next period are in
    /// that one's file, since the one before is complete.
    fn turn(&mut self, records: &[FlowRecord], now: u64) -> Result<(), ExportError> {
        let FlowsTo::Files { rotate, .. } = &self.to else { return Ok(()) };
        match (rotate.map(nanos), &self.file) {
            (None, Some(_)) => Ok(()),
            (None, None) => self.open(records.iter().map(|record| record.first().as_nanos()).min().unwrap_or(now)),
            (Some(_), Some(_)) if now < self.until => Ok(()),
            (Some(period), _) => {
                self.close()?;
                let start = now - now % period.max(1);
                self.until = start.saturating_add(period);
                self.open(start)
            }
        }
    }

    fn open(&mut self, time: u64) -> Result<(), ExportError> {
        let FlowsTo::Files { name, .. } = &self.to else { return Ok(()) };
        let path = PathBuf::from(name.at(steerage::WallTime::from_nanos(time)));
        if self.written.contains(&path) {
            let cause = io::Error::new(io::ErrorKind::AlreadyExists, "a period before had the same name");
            let error = ExportError::new("write flows to", path, cause);
            return Err(ExportError { advice: "put more of the time into the name, such as %Y%m%d-%H%M", ..error });
        }
        self.file = Some(FlowFile::create(path, self.format)?);
        Ok(())
    }

    fn close(&mut self) -> Result<(), ExportError> {
        if let Some(file) = self.file.take() {
            self.written.extend(file.finish()?);
        }
        Ok(())
    }
}
