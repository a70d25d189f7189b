//! The flows that `meter` shows on a terminal during a run, and the keys that sort them.

use std::io;
use std::time::{Duration, Instant};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use steerage::{FlowKey, WallTime};
use steerage_meter::{FlowRecord, Metering};

use crate::report::columns::{self, Column};
use crate::report::flows::short;
use crate::terminal;
use crate::units::bits_a_second;

/// A flow whose counts have not changed for this long has a rate of 0. A meter publishes its counts
/// several times per second.
const QUIET_AFTER: Duration = Duration::from_secs(3);

/// The maximum number of flows in the table, even on a high terminal.
const ROWS_MAX: usize = 40;

/// The terminal lines that the flows leave free: headings, counts, keys, and the line of the
/// cursor.
const OTHER_LINES: usize = 5;

const KEYS: &str = "sort by: r rate  p packets  b bytes  d duration    q stops";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Rate,
    Packets,
    Bytes,
    Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Stop,
    Sort,
}

#[derive(Debug, Default)]
pub(crate) struct LiveFlows {
    flows: Vec<LiveFlow>,
    order: Order,
}

#[derive(Clone, Debug)]
struct LiveFlow {
    record: FlowRecord,
    changed: Instant,
    /// The rates of the flow, for both directions together: bytes per second, and packets per
    /// second.
    rates: [f64; 2],
}

impl LiveFlow {
    fn is(&self, record: &FlowRecord) -> bool {
        let id = |record: &FlowRecord| -> (FlowKey, WallTime) { (record.key(), record.first()) };
        id(&self.record) == id(record)
    }

    fn packets(record: &FlowRecord) -> u64 {
        record.forth().packets + record.back().packets
    }

    fn duration(&self) -> Duration {
        self.record.last().since(self.record.first())
    }

    fn later(&self, record: FlowRecord, now: Instant) -> Self {
        let bytes = record.bytes().saturating_sub(self.record.bytes());
        let packets = Self::packets(&record).saturating_sub(Self::packets(&self.record));
        let time = now.duration_since(self.changed);
        match time.as_secs_f64() {
            seconds if packets > 0 && seconds > 0.0 => {
                Self { record, changed: now, rates: [bytes as f64 / seconds, packets as f64 / seconds] }
            }
            _ if time > QUIET_AFTER => Self { record, rates: [0.0; 2], ..self.clone() },
            _ => Self { record, ..self.clone() },
        }
    }

    /// A flow that is new in this update, whose rate is the average since its first packet.
    fn new(record: FlowRecord, now: Instant) -> Self {
        let seconds = record.last().since(record.first()).as_secs_f64().max(1.0);
        let rates = [record.bytes() as f64 / seconds, Self::packets(&record) as f64 / seconds];
        Self { record, changed: now, rates }
    }
}

impl LiveFlows {
    pub(crate) fn look(&mut self, meters: &Metering, now: Instant) {
        let before = std::mem::take(&mut self.flows);
        let live = |record: FlowRecord| match before.iter().find(|flow| flow.is(&record)) {
            Some(flow) => flow.later(record, now),
            None => LiveFlow::new(record, now),
        };
        self.flows = meters.largest_so_far().into_iter().map(live).collect();
        self.sort();
    }

    fn sort(&mut self) {
        let order = self.order;
        self.flows.sort_by(|a, b| match order {
            Order::Rate => b.rates[0].total_cmp(&a.rates[0]),
            Order::Packets => LiveFlow::packets(&b.record).cmp(&LiveFlow::packets(&a.record)),
            Order::Bytes => b.record.bytes().cmp(&a.record.bytes()),
            Order::Duration => b.duration().cmp(&a.duration()),
        });
    }

    /// Whether there are no flows to show. Meters that read a file publish no flows.
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    pub(crate) fn key(&mut self, key: u8) -> Option<Asked> {
        self.order = match key {
            b'q' | b'Q' => return Some(Asked::Stop),
            b'r' => Order::Rate,
            b'p' => Order::Packets,
            b'b' => Order::Bytes,
            b'd' => Order::Duration,
            _ => return None,
        };
        self.sort();
        Some(Asked::Sort)
    }

    pub(crate) fn lines(&self, (width, height): (usize, usize)) -> Vec<String> {
        let shown = &self.flows[..self.flows.len().min(height.saturating_sub(OTHER_LINES).clamp(1, ROWS_MAX))];
        let of = |cell: &dyn Fn(&LiveFlow) -> String| shown.iter().map(cell).collect::<Vec<_>>();
        let columns = vec![
            Column::numbers("rate", of(&|flow| bits_a_second(8.0 * flow.rates[0]))),
            Column::numbers("packets/s", of(&|flow| format!("{:.0}", flow.rates[1])))
                .or_short("pps", of(&|flow| short(flow.rates[1] as u64))),
            Column::words("proto", of(&|flow| flow.record.kind().into_owned())),
            Column::ends("source", of(&|flow| flow.record.source())),
            Column::ends("destination", of(&|flow| flow.record.destination())),
            Column::numbers("packets", of(&|flow| LiveFlow::packets(&flow.record).to_string()))
                .or_short("pkts", of(&|flow| short(LiveFlow::packets(&flow.record)))),
            Column::numbers("bytes", of(&|flow| flow.record.bytes().to_string()))
                .or_short("bytes", of(&|flow| short(flow.record.bytes()))),
            Column::numbers("seconds", of(&|flow| format!("{:.1}", flow.duration().as_secs_f64())))
                .or_short("s", of(&|flow| format!("{:.0}", flow.duration().as_secs_f64()))),
        ];
        let mut lines = columns::lines(columns, Some(width));
        lines.push(KEYS.to_owned());
        lines
    }
}

/// Reads the keys of the terminal, one by one and without echo. The terminal is restored when this
/// value is dropped.
#[derive(Debug)]
pub(crate) struct Keys {
    before: Termios,
}

impl Keys {
    /// Starts reading keys, if standard input is a terminal and this process runs in its
    /// foreground. The kernel would stop a process that reads the terminal from the background.
    /// Call `take` before the sandbox is entered.
    pub(crate) fn take() -> Option<Self> {
        let stdin = io::stdin();
        // A terminal of another session does not count this process as a background process, and
        // does not stop it.
        let in_background = tcgetpgrp(&stdin).is_ok_and(|foreground| foreground != rustix::process::getpgrp());
        if !terminal::can_redraw() || in_background {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut modes = before.clone();
        // Ctrl-C still sends a signal.
        modes.local_modes &= !(LocalModes::ICANON | LocalModes::ECHO);
        modes.special_codes[SpecialCodeIndex::VMIN] = 0;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&stdin, OptionalActions::Now, &modes).ok()?;
        Some(Self { before })
    }

    pub(crate) fn pressed(&self) -> Vec<u8> {
        let mut keys = [0; 64];
        let read = rustix::io::read(io::stdin(), &mut keys).unwrap_or(0);
        keys[..read].to_vec()
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // If the terminal is gone, nothing is left to restore.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
