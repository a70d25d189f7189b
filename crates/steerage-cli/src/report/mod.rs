//! What a run has to report: for people, or as JSON.

pub(crate) mod explain;
mod flows;
mod json;
mod text;
pub(crate) mod units;

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use steerage::{CpuId, QueueError, Snapshot, WallTime};
use steerage_apps::meter::Metered;
use steerage_device::capture::{CaptureInfo, link_name};

use crate::args::ReportArgs;
use crate::error::Error;

/// Why a run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EndedBy {
    /// There was no more.
    Input,
    /// `-c` packets had come.
    Packets,
    /// `--seconds` were over.
    Seconds,
    /// INT or TERM.
    Signal,
    /// The device failed.
    Error,
}

/// What the capture files hold, as far as they have been read.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Names of the link types, in the order in which they appeared.
    pub(crate) links: Vec<String>,
    /// The earliest and the latest packet.
    pub(crate) times: Option<(WallTime, WallTime)>,
    /// Bytes as they are stored: those read, and all, where that is known.
    pub(crate) bytes_read: u64,
    pub(crate) bytes_total: Option<u64>,
}

impl Recorded {
    pub(crate) fn of(info: &CaptureInfo) -> Self {
        Self {
            links: info.links().into_iter().map(|link| link_name(link).into_owned()).collect(),
            times: info.times(),
            bytes_read: info.bytes_read(),
            bytes_total: info.bytes_total(),
        }
    }

    /// From the earliest to the latest packet.
    pub(crate) fn time(&self) -> Option<Duration> {
        self.times.map(|(earliest, latest)| latest.since(earliest))
    }
}

/// Everything that a report tells.
#[derive(Debug)]
pub(crate) struct Report {
    /// When the run began.
    pub(crate) started: SystemTime,
    /// How long it has taken.
    pub(crate) elapsed: Duration,
    /// Why it ended. `None`: it goes on.
    pub(crate) ended_by: Option<EndedBy>,
    /// The ledger.
    pub(crate) snapshot: Snapshot,
    /// Bytes that each CPU's function handled, once it has ended.
    pub(crate) handled_bytes: Vec<(CpuId, u64)>,
    /// What the capture files hold, if there are any.
    pub(crate) capture: Option<Recorded>,
    /// What was metered, once it has ended.
    pub(crate) flows: Option<Metered>,
}

impl Report {
    /// A report of what every command knows.
    pub(crate) fn new(started: SystemTime, elapsed: Duration, ended_by: Option<EndedBy>, snapshot: Snapshot) -> Self {
        Self { started, elapsed, ended_by, snapshot, handled_bytes: Vec::new(), capture: None, flows: None }
    }

    /// Prints the last report, and says whether the run went well. `beside` standard output, where other things go, it is
    /// printed to standard error, unless that is to be quiet.
    pub(crate) fn finish(
        &self,
        args: &ReportArgs,
        beside: bool,
        left_behind: usize,
        failed: &[CpuId],
    ) -> Result<(), Error> {
        let printed = match beside {
            false => print(self, args.json),
            true if args.quiet => Ok(()),
            true => print_to(&mut io::stderr().lock(), self, args.json),
        };
        match printed {
            // Whoever read has seen enough: `steerage count | head -1`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            other => other.map_err(Error::Report)?,
        }
        if !failed.is_empty() {
            return Err(Error::Panicked(failed.to_vec()));
        }
        if let Some(error) = self.input_error() {
            return Err(Error::Device(error.message.clone()));
        }
        if left_behind > 0 {
            return Err(Error::LeftBehind(left_behind));
        }
        let (dropped, in_flight) = (self.snapshot.dropped().total(), self.snapshot.in_flight());
        let reordered = self.snapshot.reordered().unwrap_or(0);
        if args.strict && dropped + in_flight + reordered > 0 {
            return Err(Error::Strict { dropped, in_flight, reordered });
        }
        Ok(())
    }

    /// The first error that ended a queue.
    pub(crate) fn input_error(&self) -> Option<&QueueError> {
        self.snapshot.queues.iter().find_map(|queue| queue.error.as_ref())
    }
}

/// Writes a report to standard output, whole or with an error.
pub(crate) fn print(report: &Report, json: bool) -> io::Result<()> {
    print_to(&mut io::stdout().lock(), report, json)
}

fn print_to(out: &mut impl Write, report: &Report, json: bool) -> io::Result<()> {
    let text = if json { json::line(report)? } else { text::page(report) };
    out.write_all(text.as_bytes())?;
    out.flush()
}
