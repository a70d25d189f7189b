//! Interval reports: what a run has done since the previous report, as a line of text or a JSON
//! object. docs/report.md describes the keys.

use std::fmt::Write;
use std::io;
use std::time::{Duration, Instant, SystemTime};

use serde::{Serialize, Serializer};
use steerage::{
    CpuId, Snapshot,
    stats::{CpuSnapshot, Drops},
};
use steerage_meter::FlowCounts;
use steerage_text::{bit_rate, grouped, percent, plural, rate};

use super::document::{SCHEMA, rfc3339};
use super::flows::FlowTotals;
use super::{Flows, Recorded};

#[derive(Debug)]
pub(crate) struct Intervals {
    every: Duration,
    due: Instant,
    last: Instant,
    before: Snapshot,
}

impl Intervals {
    /// The first report is due one interval after the start.
    pub(crate) fn new(every: Duration, start: Instant) -> Self {
        Self { every, due: start + every, last: start, before: Snapshot::default() }
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Sets the next report to the next multiple of the interval since the start. A late report
    /// does not delay later reports, and a very late report replaces the reports whose time has
    /// passed.
    pub(crate) fn skip(&mut self, now: Instant) {
        if let Some(late) = now.checked_duration_since(self.due) {
            let steps = late.as_nanos() / self.every.as_nanos().max(1) + 1;
            self.due += self.every * u32::try_from(steps).unwrap_or(u32::MAX);
        }
    }

    pub(crate) fn next(&mut self, now: Instant, started: SystemTime, start: Instant, snapshot: &Snapshot) -> Interval {
        self.skip(now);
        let before = std::mem::replace(&mut self.before, snapshot.clone());
        let length = now.duration_since(std::mem::replace(&mut self.last, now));
        let elapsed = now.duration_since(start);
        let of_new = CpuSnapshot::default();
        let cpu = |(at, now)| CpuActivity::between(now, before.cpus.get(at).unwrap_or(&of_new));
        Interval {
            started,
            time: started + elapsed,
            elapsed,
            length,
            in_flight: snapshot.in_flight(),
            difference: Sums::between(snapshot, &before),
            total: Sums::between(snapshot, &Snapshot::default()),
            cpus: snapshot.cpus.iter().enumerate().map(cpu).collect(),
            capture: None,
            flows: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sums {
    received: u64,
    received_bytes: u64,
    delivered: u64,
    dropped: Drops,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct CpuActivity {
    cpu: u16,
    processed: u64,
    dropped: Drops,
    #[serde(serialize_with = "seconds")]
    busy_seconds: Duration,
    /// The packets that wait for the CPU at the time of the report. `backlog` is not a difference
    /// from the previous report.
    backlog: u64,
}

/// Writes a time with six decimals, as in the final report.
fn seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_micros() as f64 / 1e6)
}

fn minus(now: &Drops, before: &Drops) -> Drops {
    let mut drops = Drops::default();
    now.iter().for_each(|(reason, packets)| drops.add(reason, packets.saturating_sub(before.get(reason))));
    drops
}

impl Sums {
    fn between(now: &Snapshot, before: &Snapshot) -> Self {
        let more = |count: fn(&Snapshot) -> u64| count(now).saturating_sub(count(before));
        Self {
            received: more(Snapshot::received),
            received_bytes: more(Snapshot::received_bytes),
            delivered: more(Snapshot::delivered),
            dropped: minus(&now.dropped(), &before.dropped()),
        }
    }
}

impl CpuActivity {
    fn between(now: &CpuSnapshot, before: &CpuSnapshot) -> Self {
        Self {
            cpu: now.cpu.0,
            processed: now.processed.saturating_sub(before.processed),
            dropped: minus(&now.dropped, &before.dropped),
            busy_seconds: now.busy.saturating_sub(before.busy),
            backlog: now.backlog,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Interval {
    #[serde(with = "rfc3339")]
    started: SystemTime,
    #[serde(with = "rfc3339")]
    time: SystemTime,
    #[serde(rename = "seconds", serialize_with = "seconds")]
    elapsed: Duration,
    #[serde(rename = "interval_seconds", serialize_with = "seconds")]
    length: Duration,
    difference: Sums,
    total: Sums,
    in_flight: u64,
    cpus: Vec<CpuActivity>,
    capture: Option<Progress>,
    flows: Option<FlowTotals>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Progress {
    bytes_read: u64,
    bytes_total: Option<u64>,
}

impl Interval {
    pub(crate) fn with_flows(&self, flows: Option<&Flows>) -> Self {
        Self { flows: flows.map(FlowTotals::of), ..self.clone() }
    }

    pub(crate) fn with_flows_so_far(self, flows: Option<FlowCounts>) -> Self {
        Self { flows: flows.as_ref().map(FlowTotals::so_far), ..self }
    }

    pub(crate) fn with_capture(self, recorded: Option<&Recorded>) -> Self {
        let progress = |of: &Recorded| Progress { bytes_read: of.bytes_read, bytes_total: of.bytes_total };
        Self { capture: recorded.map(progress), ..self }
    }

    /// Returns the interval report as JSON, with a newline.
    pub(super) fn as_json(&self) -> io::Result<String> {
        #[derive(Serialize)]
        struct IntervalJson<'a> {
            schema: u32,
            r#type: &'static str,
            #[serde(flatten)]
            interval: &'a Interval,
        }
        let mut text = serde_json::to_string(&IntervalJson { schema: SCHEMA, r#type: "interval", interval: self })?;
        text.push('\n');
        Ok(text)
    }

    /// Returns the interval report as text, with a newline. The columns of successive reports are
    /// aligned.
    pub(super) fn as_text(&self) -> String {
        let Sums { received, received_bytes, dropped, .. } = &self.difference;
        let mut line = format!(
            "{}  {:>11} {:<7}  {:>15} {:<5}  {:>10}  {:>12}",
            humantime::format_rfc3339_millis(self.time),
            grouped(*received),
            plural(*received, "packet"),
            grouped(*received_bytes),
            plural(*received_bytes, "byte"),
            rate(*received, self.length),
            bit_rate(*received_bytes, self.length),
        );
        if let Some((cpu, share)) = self.busiest() {
            let _ = write!(line, "  busiest CPU {cpu} {share:.0} %");
        }
        if dropped.total() > 0 {
            let reasons: Vec<String> =
                dropped.iter().map(|(reason, packets)| format!("{} {}", reason.name(), grouped(packets))).collect();
            let share = percent(dropped.total() as f64, *received as f64);
            let _ = write!(line, "  dropped {share:.1} %: {}", reasons.join(", "));
        }
        if let Some(Progress { bytes_read, bytes_total: Some(total) }) = self.capture {
            let _ = write!(line, "  {:.0} % read", percent(bytes_read as f64, total as f64).min(100.0));
        }
        if let Some(flows) = &self.flows {
            let _ = write!(line, "  {}", flows.text());
        }
        line.push('\n');
        line
    }

    /// Returns the CPU that handled the most packets, and its share of all packets in percent, or
    /// `None` if there is only one CPU.
    fn busiest(&self) -> Option<(CpuId, f64)> {
        let all: u64 = self.cpus.iter().map(|cpu| cpu.processed).sum();
        let busiest = self.cpus.iter().rev().max_by_key(|cpu| cpu.processed)?;
        let share = percent(busiest.processed as f64, all as f64);
        (self.cpus.len() > 1 && all > 0).then_some((CpuId(busiest.cpu), share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_do_not_drift() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut intervals = Intervals { every: second, due: start + second, last: start, before: Snapshot::default() };
        let mut due_after = |millis| {
            intervals.skip(start + Duration::from_millis(millis));
            intervals.due().duration_since(start).as_millis()
        };
        assert_eq!([1000, 2010, 3999, 6000, 9500].map(&mut due_after), [2000, 3000, 4000, 7000, 10_000]);
        // An early report, such as the report at the end of a run, does not change the schedule.
        assert_eq!(due_after(9700), 10_000);
    }
}
