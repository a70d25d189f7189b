//! The thread that sends records to a collector.
//!
//! It opens its socket before the run starts. Packet CPUs hand records over to its bounded queue, and never wait for a collector
//! that cannot be reached: while a connection is down, records stay in the queue for up to [`DOWN_MAX`], and what finds no room
//! there is lost. After that, records are lost as they come. All that is lost is counted.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::super::output::ExportError;
use super::super::record::FlowRecord;
use super::super::writer_state::{Message, WriterState};
use super::collector::Collector;
use super::message::{Encoder, Statistics};
use super::transport::{Sent, Way};

/// Records wait for so long for a connection to be made again: longer than a collector takes to be started anew.
const DOWN_MAX: Duration = Duration::from_secs(10);

/// The longest sleep, so that a request to stop is seen soon.
const LOOK: Duration = Duration::from_millis(50);

/// A function that returns how many packets the meters never saw.
pub(in super::super) type Ignored = Box<dyn Fn() -> u64 + Send>;

/// What the thread has in hand.
pub(in super::super) struct Export {
    shared: Arc<WriterState>,
    collector: Collector,
    way: Way,
    encoder: Encoder,
    ignored: Ignored,
    /// The data records of flows that were sent.
    records: u64,
    refresh_at: Instant,
    /// With a rate: when the next message may be sent.
    next_at: Instant,
}

/// A collector whose socket is open.
///
/// A program that gives up privileges opens the socket before, and starts the thread afterwards.
/// [`FlowWriter`](super::super::FlowWriter) has an example.
#[derive(Debug)]
pub struct OpenCollector {
    collector: Collector,
    way: Way,
    /// Why there is no connection yet.
    refused: Option<io::Error>,
}

impl OpenCollector {
    pub(in super::super) fn name(&self) -> String {
        self.collector.to_string()
    }
}

impl Collector {
    /// Looks the name of the host up, opens the socket, and for TCP tries to connect.
    ///
    /// # Errors
    /// If the host has no address, or the socket cannot be opened.
    pub fn open(self) -> Result<OpenCollector, ExportError> {
        match Way::open(&self) {
            Ok((way, refused)) => Ok(OpenCollector { collector: self, way, refused }),
            Err(cause) => Err(cannot_export(&self, cause)),
        }
    }
}

fn cannot_export(collector: &Collector, cause: io::Error) -> ExportError {
    let error = ExportError::new("export flows to", collector.to_string(), cause);
    error.with_advice("start the collector, or name another collector")
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export to {}", self.collector)
    }
}

impl Export {
    /// If records must not be lost, a collector that does not answer is an error; else it is tried again.
    pub(in super::super) fn new(
        opened: OpenCollector,
        must_answer: bool,
        ignored: Ignored,
        shared: Arc<WriterState>,
    ) -> Result<Self, ExportError> {
        let OpenCollector { collector, way, refused } = opened;
        if let Some(cause) = refused.filter(|_| must_answer) {
            return Err(cannot_export(&collector, cause));
        }
        let encoder = Encoder::new(collector.domain, collector.biflows, way.message_max(collector.mtu));
        let now = Instant::now();
        let refresh_at = now + collector.refresh;
        Ok(Self { shared, collector, way, encoder, ignored, records: 0, refresh_at, next_at: now })
    }

    /// Sends what comes until the end.
    pub(in super::super) fn run(&mut self) {
        loop {
            // While the collector is away, records wait in the queue.
            self.reconnect();
            match self.shared.next_until(self.refresh_at) {
                Ok(Some(Message::Ended(records, _))) => self.send(&records),
                Ok(Some(Message::End)) | Err(_) => break,
                Ok(None) => {}
            }
            self.refresh_if_due();
        }
        self.send_statistics();
    }

    /// If the connection is down, waits until it is made again, or until it has been down for long enough. Returns whether
    /// records can be sent.
    fn reconnect(&mut self) -> bool {
        while let (Some(since), Some(retry_at)) = (self.way.down_since(), self.way.retry_at()) {
            let hurried = self.shared.is_hurried();
            let now = Instant::now();
            if !hurried && now >= retry_at && self.way.connect().is_ok() {
                self.encoder.begin_session();
                self.shared.note_connection();
                return true;
            }
            if hurried || since.elapsed() >= DOWN_MAX {
                return false;
            }
            thread::sleep(retry_at.saturating_duration_since(now).min(LOOK));
        }
        true
    }

    fn send(&mut self, mut records: &[FlowRecord]) {
        while !records.is_empty() {
            if !self.reconnect() {
                return self.shared.note_unsent(records);
            }
            self.refresh_if_due();
            let count = self.encoder.encode(records, SystemTime::now());
            self.pace(count);
            let (these, rest) = records.split_at(count);
            match self.send_message() {
                Sent::Yes => self.note_sent(count),
                Sent::AfterRefusal => {
                    self.note_sent(count);
                    // The next program that listens there knows no template.
                    self.encoder.forget_templates();
                    self.shared.note_refusal();
                }
                Sent::TooLong if self.encoder.limit() > self.way.message_min() => {
                    self.encoder.limit_to(self.way.message_min());
                    continue;
                }
                // Whatever of it arrived is no whole message, so it is sent again.
                Sent::Broken => continue,
                Sent::TooLong | Sent::No => self.shared.note_unsent(these),
            }
            records = rest;
        }
    }

    fn send_message(&mut self) -> Sent {
        let shared = &self.shared;
        self.way.send(self.encoder.message(), |has_taken| {
            if has_taken {
                shared.note_taken();
            }
        })
    }

    fn note_sent(&mut self, count: usize) {
        self.records += u64::from(self.encoder.data_records());
        self.encoder.sent();
        self.shared.note_message(self.encoder.message().len());
        self.shared.note_written(count);
    }

    /// Waits until so many records may be sent.
    fn pace(&mut self, count: usize) {
        let Some(rate) = self.collector.rate else { return };
        let now = Instant::now();
        self.next_at = self.next_at.max(now);
        while !self.shared.is_hurried() {
            let left = self.next_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            thread::sleep(left.min(LOOK));
        }
        self.next_at += Duration::from_secs_f64(count as f64 / rate as f64);
    }

    fn refresh_if_due(&mut self) {
        if Instant::now() < self.refresh_at {
            return;
        }
        self.refresh_at = Instant::now() + self.collector.refresh;
        // A connection keeps its templates.
        if self.way.is_udp() {
            self.encoder.forget_templates();
        }
        self.send_statistics();
    }

    fn send_statistics(&mut self) {
        if self.way.down_since().is_some() {
            return;
        }
        let statistics = Statistics { records: self.records, ignored: (self.ignored)(), ..self.shared.statistics() };
        self.encoder.encode_statistics(&statistics, SystemTime::now());
        if let Sent::Yes | Sent::AfterRefusal = self.send_message() {
            self.encoder.sent();
            self.shared.note_message(self.encoder.message().len());
        }
    }
}
