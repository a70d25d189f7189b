mod document;
pub(crate) mod flows;
mod forward;
pub(crate) mod interval;
pub(crate) mod steering;
mod text;

use std::cell::RefCell;
use std::io::{self, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use steerage::stats::{DropReason, Drops, QueueError};
use steerage::{CpuId, Snapshot};
use steerage_control::Audience;
use steerage_control::web::PageServer;
use steerage_guard::sandbox::InForce;
use steerage_meter::{FlowCounts, FlowRecord, Metered};

use crate::args::ReportArgs;
use crate::error::{EndingError, Error};
use document::ElephantFlow;

pub(crate) use document::{Document, EndedBy, Recorded, SCHEMA, Sandbox, Traffic};
pub(crate) use flows::{FlowCounters, FlowOutputReport, FlowTotals};
pub(crate) use forward::ForwardReport;
pub(crate) use interval::Interval;
pub(crate) use text::stuck;

#[derive(Debug)]
pub(crate) struct Flows {
    pub(crate) stage: FlowStage,
    pub(crate) outputs: Vec<FlowOutputReport>,
    /// N if `meter` records one of N flows.
    pub(crate) sample: Option<u32>,
}

#[derive(Debug)]
pub(crate) enum FlowStage {
    SoFar { counts: FlowCounts, largest: Vec<FlowRecord> },
    Ended { metered: Metered, table: Vec<String> },
}

impl Flows {
    /// Returns the largest flows. Returns `None` while no flows are collected, as during a run on a
    /// file.
    fn largest(&self) -> Option<&[FlowRecord]> {
        match &self.stage {
            FlowStage::SoFar { largest, .. } => Some(largest.as_slice()).filter(|largest| !largest.is_empty()),
            FlowStage::Ended { metered, .. } => Some(metered.top.as_slice()),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) document: Document,
    flows: Option<Flows>,
    pub(crate) sandbox: Option<InForce>,
    pub(crate) verbose: bool,
    pub(crate) last: Option<Interval>,
    /// The number of CPUs that did not stop in time.
    pub(crate) left_behind: usize,
    /// The CPUs whose packet function panicked.
    pub(crate) panicked: Vec<CpuId>,
    page: RefCell<Option<PageServer>>,
}

impl Report {
    pub(crate) fn new(document: Document) -> Self {
        Self {
            document,
            flows: None,
            sandbox: None,
            verbose: false,
            last: None,
            left_behind: 0,
            panicked: Vec::new(),
            page: RefCell::default(),
        }
    }

    pub(crate) fn show_on(&self, page: Option<PageServer>) {
        *self.page.borrow_mut() = page;
    }

    /// Sends this report to the live pages that are open in browsers, and then ends the page
    /// server.
    pub(crate) fn end_page(&self) {
        self.page.take().into_iter().for_each(|page| page.end(|audience| self.json(audience)));
    }

    pub(crate) fn with_flows(mut self, flows: Option<Flows>) -> Self {
        self.document.app.flows = flows.as_ref().map(FlowCounters::of);
        Self { flows, ..self }
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.document.snapshot
    }

    /// Returns the report as one line of JSON without a newline, or an empty object if the report
    /// cannot be serialized.
    pub(crate) fn json(&self, audience: Audience) -> String {
        self.line(audience).unwrap_or_else(|_| "{}".to_owned())
    }

    fn line(&self, audience: Audience) -> io::Result<String> {
        self.document.line(&self.traffic(), audience)
    }

    pub(crate) fn private_value(&self) -> Result<Value, String> {
        self.document.value(&self.traffic())
    }

    fn traffic(&self) -> Traffic<&FlowRecord> {
        Traffic {
            top: self.flows.as_ref().and_then(Flows::largest).map(|largest| largest.iter().collect()),
            elephants: ElephantFlow::of_all(self.snapshot()),
        }
    }

    /// Prints the final report. Returns an error if a device or a packet function failed, or if a
    /// CPU did not stop in time. With `strict`, also returns an error if a packet was lost or out
    /// of order.
    pub(crate) fn finish(&self, printer: Printer, strict: bool) -> Result<(), Error> {
        let last = self.last.as_ref().map_or(Ok(()), |last| printer.interval(&last.with_flows(self.flows.as_ref())));
        let printed = last.and_then(|()| printer.report(self));
        self.end_page();
        match printed {
            // It is not an error if the reader of the report has closed the pipe, as in `steerage
            // count | head -1`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            other => other.map_err(EndingError::Report)?,
        }
        if !self.panicked.is_empty() {
            return Err(EndingError::Panicked(self.panicked.clone()).into());
        }
        if let Some(error) = self.input_error() {
            return Err(EndingError::Device(error.message.clone()).into());
        }
        let errors: Vec<&str> = self.snapshot().outputs.iter().filter_map(|output| output.error.as_deref()).collect();
        if !errors.is_empty() {
            return Err(EndingError::Device(errors.join("; ")).into());
        }
        if self.left_behind > 0 {
            return Err(EndingError::LeftBehind(self.left_behind).into());
        }
        let (dropped, in_flight) = (self.snapshot().dropped().total(), self.snapshot().in_flight());
        let reordered = self.snapshot().reordered().unwrap_or(0);
        if strict && dropped + in_flight + reordered > 0 {
            return Err(EndingError::Strict { dropped, in_flight, reordered }.into());
        }
        Ok(())
    }

    /// Returns an error if the run did not send every packet. Call `all_sent` after
    /// [`finish`](Self::finish). A live input may lose packets, and its outputs may drop packets
    /// for which they have no room.
    pub(crate) fn all_sent(&self, can_wait: bool) -> Result<(), Error> {
        let dropped = self.snapshot().dropped();
        let may_be_missing =
            |reason| !can_wait && (reason == DropReason::TxFull || !DropReason::OF_OUTPUTS.contains(&reason));
        let mut missing = Drops::default();
        dropped
            .iter()
            .filter(|(reason, _)| !may_be_missing(*reason))
            .for_each(|(reason, packets)| missing.add(reason, packets));
        match missing.total() {
            0 => Ok(()),
            _ => Err(EndingError::NotSent { missing, received: self.snapshot().received() }.into()),
        }
    }

    pub(crate) fn input_error(&self) -> Option<&QueueError> {
        self.snapshot().queues.iter().find_map(|queue| queue.error.as_ref())
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    json: bool,
    to: To,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Stdout,
    Stderr,
    Nowhere,
}

impl Printer {
    /// If `beside` is true, other data goes to standard output, so reports go to standard error.
    /// With `-q`, only JSON reports are written, and only to standard output.
    pub(crate) fn new(args: &ReportArgs, beside: bool) -> Self {
        let to = match beside {
            true if args.quiet => To::Nowhere,
            false if args.quiet && !args.json => To::Nowhere,
            false => To::Stdout,
            true => To::Stderr,
        };
        Self { json: args.json, to }
    }

    pub(crate) fn to_stdout(json: bool) -> Self {
        Self { json, to: To::Stdout }
    }

    /// Prints the report, including the traffic, because the reader is the user of this process.
    pub(crate) fn report(self, report: &Report) -> io::Result<()> {
        self.write(|| match self.json {
            true => Ok(report.line(Audience::Private)? + "\n"),
            false => Ok(text::page(report)),
        })
    }

    pub(crate) fn interval(self, interval: &Interval) -> io::Result<()> {
        self.write(|| if self.json { interval.as_json() } else { Ok(interval.as_text()) })
    }

    /// Returns true if a write to the output would block, because the output is a full pipe.
    pub(crate) fn is_stalled(self) -> bool {
        let (out, err) = (io::stdout(), io::stderr());
        let fd = match self.to {
            To::Stdout => out.as_fd(),
            To::Stderr => err.as_fd(),
            To::Nowhere => return false,
        };
        let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
        // If `poll` fails or the reader has closed the pipe, the next write returns the error.
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(0))
    }

    fn write(self, text: impl FnOnce() -> io::Result<String>) -> io::Result<()> {
        match self.to {
            To::Stdout => write_to(&mut io::stdout().lock(), &text()?),
            To::Stderr => write_to(&mut io::stderr().lock(), &text()?),
            To::Nowhere => Ok(()),
        }
    }
}

fn write_to(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}
