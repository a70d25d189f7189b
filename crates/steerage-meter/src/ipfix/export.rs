//! The thread that sends records to an IPFIX collector.
//!
//! The socket is opened before the run starts. Packet CPUs never wait for an unreachable IPFIX
//! collector. While the connection is down, records wait in a bounded queue for up to [`DOWN_MAX`].
//! If the connection is down for longer, all records are lost and counted until the collector
//! answers again.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::super::output::ExportError;
use super::super::record::FlowRecord;
use super::super::record_ledger::{Unwritten, Volume};
use super::super::writer_state::{Ended, Message, WAITING_FOR_COLLECTOR_MAX, WriterState};
use super::collector::Collector;
use super::message::{Encoder, Statistics};
use super::pace::Pace;
use super::transport::{Sent, TRAIN_MESSAGES, Train, Way};

/// The time for which records wait for a new connection. Restarting an IPFIX collector takes less
/// time.
const DOWN_MAX: Duration = Duration::from_secs(10);

/// The longest sleep of the export thread, so that the thread notices a request to stop soon.
const LOOK: Duration = Duration::from_millis(50);

/// Returns how many packets were lost before the meters saw them.
pub(in super::super) type Ignored = Box<dyn Fn() -> u64 + Send>;

pub(in super::super) struct Export {
    shared: Arc<WriterState>,
    collector: Collector,
    way: Way,
    encoder: Encoder,
    train: Train,
    ignored: Ignored,
    records: u64,
    refresh_at: Instant,
    pace: Pace,
    /// True if lost records are an error, because the packet source waits for the collector.
    must_arrive: bool,
}

/// An IPFIX collector to which a socket is open.
///
/// A program should drop privileges after opening the socket and before starting the thread.
#[derive(Debug)]
pub struct OpenCollector {
    collector: Collector,
    way: Way,
    /// The reason why the first attempt to connect failed.
    refused: Option<io::Error>,
}

impl OpenCollector {
    pub(in super::super) fn name(&self) -> String {
        self.collector.to_string()
    }
}

impl Collector {
    /// Resolves the collector's host name and opens the socket. For TCP, also tries to connect.
    ///
    /// # Errors
    /// Returns an error if the name has no address, or the socket cannot be opened.
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
    /// If `must_arrive` is true, lost records are an error, and so is a collector that does not
    /// answer.
    pub(in super::super) fn new(
        opened: OpenCollector,
        must_arrive: bool,
        ignored: Ignored,
        shared: Arc<WriterState>,
    ) -> Result<Self, ExportError> {
        let OpenCollector { collector, way, refused } = opened;
        if let Some(cause) = refused.filter(|_| must_arrive) {
            return Err(cannot_export(&collector, cause));
        }
        let encoder = Encoder::new(collector.domain, collector.biflows, way.message_max(collector.mtu));
        let now = Instant::now();
        let refresh_at = now + collector.refresh;
        let train = Train::default();
        let pace = Pace::new(collector.rate, way.is_udp(), now);
        Ok(Self { shared, collector, way, encoder, train, ignored, records: 0, refresh_at, pace, must_arrive })
    }

    pub(in super::super) fn run(&mut self) -> Result<(), ExportError> {
        loop {
            // While the collector is unreachable, records wait in the queue.
            self.reconnect();
            match self.shared.next_until(self.refresh_at) {
                Ok(Some(Message::Ended(Ended { records, unwritten, .. }))) => self.send(&records, unwritten),
                Ok(Some(Message::End)) | Err(_) => break,
                Ok(None) => {}
            }
            self.refresh_if_due();
        }
        self.send_statistics();
        match self.shared.counts().lost {
            lost if lost > 0 && self.must_arrive => {
                let cause = self.way.take_error().unwrap_or_else(|| io::ErrorKind::NotConnected.into());
                let cause = io::Error::new(cause.kind(), format!("{cause}, and {lost} flows were not sent"));
                Err(cannot_export(&self.collector, cause))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if records can be sent. If records cannot be sent, waits until the connection
    /// has been down for [`DOWN_MAX`].
    fn reconnect(&mut self) -> bool {
        while let Some((since, retry_at)) = self.way.down() {
            let hurried = self.shared.is_hurried();
            let now = Instant::now();
            if !hurried && now >= retry_at && self.way.connect() {
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

    /// Records that could not be sent stay in `unwritten`, and so count as lost.
    fn send(&mut self, mut records: &[FlowRecord], mut unwritten: Unwritten) {
        while !records.is_empty() && self.reconnect() {
            self.refresh_if_due();
            let sequence = self.encoder.sequence();
            let (count, is_alone) = self.load_train(records);
            self.wait_for_pace(count);
            let (these, rest) = records.split_at(count);
            let sent = self.send_train();
            if let Sent::Yes | Sent::AfterRefusal = sent {
                self.records += self.train.records();
                unwritten.written(Volume::of(these));
                self.shared.note_taken();
                if is_alone {
                    self.encoder.sent();
                }
            } else {
                self.encoder.back_to_sequence(sequence);
            }
            match sent {
                Sent::Yes => {}
                Sent::AfterRefusal => {
                    // A new program at the collector's address does not know the templates.
                    self.encoder.forget_templates();
                    self.shared.note_refusal();
                }
                Sent::TooLong if self.encoder.limit() > self.way.message_min() => {
                    self.encoder.limit_to(self.way.message_min());
                    continue;
                }
                Sent::Refused => {
                    self.encoder.forget_templates();
                    self.shared.note_refusal();
                    continue;
                }
                Sent::Broken | Sent::NotTogether => continue,
                Sent::TooLong | Sent::No => drop(unwritten.split(Volume::of(these))),
            }
            records = rest;
        }
    }

    /// Returns the number of encoded records, and whether their message must be sent alone. The
    /// encoder does not yet count a message that must be sent alone as sent. A message with
    /// templates is sent alone, because sending several messages at once may fail.
    fn load_train(&mut self, records: &[FlowRecord]) -> (usize, bool) {
        let takes_trains = self.way.takes_trains();
        let together = self.pace.together().unwrap_or(TRAIN_MESSAGES);
        let (now, mut count) = (SystemTime::now(), 0);
        self.train.clear();
        while count < records.len() {
            let more = self.encoder.encode(&records[count..], now);
            let is_alone = !takes_trains || self.encoder.has_templates();
            if is_alone && self.train.messages() > 0
                || !self.train.add(self.encoder.message(), self.encoder.data_records(), together)
            {
                break;
            }
            count += more;
            if is_alone {
                return (count, true);
            }
            self.encoder.sent();
        }
        (count, false)
    }

    fn send_train(&mut self) -> Sent {
        let Self { shared, train, way, .. } = self;
        let sent = way.send(train, |has_taken| {
            if has_taken {
                shared.note_taken();
            }
        });
        if let Sent::Yes | Sent::AfterRefusal = sent {
            shared.note_messages(train.messages(), train.bytes());
        }
        sent
    }

    /// If the packet source is live and the user has set no rate, the thread does not wait while
    /// more than half of its queue is in use. A collector might lose records that come too fast,
    /// but a full queue surely loses them.
    fn wait_for_pace(&mut self, count: usize) {
        let may_be_urgent = self.pace.is_default() && !self.must_arrive;
        loop {
            if self.shared.is_hurried() {
                self.pace.hurry(Instant::now());
            }
            let left = self.pace.wait(Instant::now());
            if left.is_zero() || may_be_urgent && self.shared.waiting() > WAITING_FOR_COLLECTOR_MAX / 2 {
                break;
            }
            thread::sleep(left.min(LOOK));
        }
        self.pace.sent(count, Instant::now());
    }

    fn refresh_if_due(&mut self) {
        if Instant::now() < self.refresh_at {
            return;
        }
        self.refresh_at = Instant::now() + self.collector.refresh;
        // Over TCP, templates stay valid for the lifetime of the connection.
        if self.way.is_udp() {
            self.encoder.forget_templates();
        }
        self.send_statistics();
    }

    fn send_statistics(&mut self) {
        if self.way.down().is_some() {
            return;
        }
        let counts = self.shared.counts();
        let (lost_packets, lost_bytes) = self.shared.ledger().lost_traffic();
        let statistics = Statistics {
            messages: counts.messages,
            records: self.records,
            bytes: counts.bytes,
            lost: counts.lost,
            lost_packets,
            lost_bytes,
            ignored: (self.ignored)(),
            sample: self.shared.sample(),
        };
        self.encoder.encode_statistics(&statistics, SystemTime::now());
        self.train.clear();
        self.train.add(self.encoder.message(), self.encoder.data_records(), TRAIN_MESSAGES);
        if let Sent::Yes | Sent::AfterRefusal = self.send_train() {
            self.encoder.sent();
        }
    }
}
