//! The live table on a terminal: the work of each CPU, or the flows for `meter`. The table is
//! redrawn every second, and disappears at the end.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use steerage::{CpuId, Snapshot, stats::CpuSnapshot};
use steerage_capture::CaptureInfo;
use steerage_meter::Metering;

use crate::live_flows::{Asked, LiveFlows};
use crate::terminal;
use crate::units::{counted, grouped, percent, rate, size, time};

const EVERY: Duration = Duration::from_secs(1);

/// The maximum number of CPUs in the table: the busiest CPUs. Together with its first and last
/// line, the table fits a terminal of 24 lines.
const CPUS_SHOWN: usize = 16;

/// The width of the progress bar, without its ends.
const BAR_WIDTH: usize = 76;

#[derive(Debug)]
pub(crate) struct LiveTable {
    /// The time at which the table is drawn next. `None` if the table is never drawn.
    due: Option<Instant>,
    lines: usize,
    table: Vec<String>,
    before: Counters,
    ends: RunEnds,
    start: Instant,
    /// The meters, and the flows that are shown instead of the CPUs. `None` for all commands except
    /// `meter`.
    flows: Option<(Metering, LiveFlows)>,
}

/// The conditions that end a run, from which the remaining time is computed.
#[derive(Clone, Debug)]
pub(crate) struct RunEnds {
    pub(crate) capture: Option<Arc<CaptureInfo>>,
    /// The number of packets after which the run stops.
    pub(crate) packets: Option<u64>,
    /// The time after which the run stops.
    pub(crate) seconds: Option<Duration>,
}

impl LiveTable {
    /// A table that is drawn every second from now on, or never if it is not `wanted`.
    pub(crate) fn new(wanted: bool, ends: RunEnds, meters: Option<Metering>, start: Instant) -> Self {
        Self {
            due: wanted.then(|| start + EVERY),
            lines: 0,
            table: Vec::new(),
            before: Counters { at: start, cpus: Vec::new() },
            ends,
            start,
            flows: meters.map(|meters| (meters, LiveFlows::default())),
        }
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) fn draw_if_due(&mut self, now: Instant, snapshot: impl FnOnce() -> Snapshot) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = Some(now + EVERY);
        let snapshot = snapshot();
        let counts = Counters::of(&snapshot, now);
        let mut table = table(&self.before, &counts, &snapshot);
        if let Some(last) = table.last_mut() {
            last.push_str(&self.progress(now.duration_since(self.start), snapshot.received()));
        }
        if let Some((meters, flows)) = &mut self.flows {
            flows.look(meters, now);
            if !flows.is_empty() {
                // Only the line of counts is kept from the table of CPUs.
                let counts = table.split_off(table.len() - 1);
                table = flows.lines(terminal::screen());
                table.extend(counts);
            }
        }
        table.extend(self.bar());
        self.before = counts;
        self.table = table;
        self.draw();
    }

    /// Handles a key. If the key changes the order of the flows, the table is redrawn at once.
    pub(crate) fn key(&mut self, key: u8) -> Option<Asked> {
        let asked = self.flows.as_mut().and_then(|(_, flows)| flows.key(key));
        if asked == Some(Asked::Sort) {
            self.due = self.due.map(|_| Instant::now());
        }
        asked
    }

    fn bar(&self) -> Option<String> {
        let capture = self.ends.capture.as_ref()?;
        Some(bar(capture.bytes_read(), capture.bytes_total().filter(|total| *total > 0)?))
    }

    fn progress(&self, elapsed: Duration, received: u64) -> String {
        let read = self.ends.capture.as_ref().map(|capture| (capture.bytes_read(), capture.bytes_total()));
        let by_files = read.and_then(|(read, total)| rest(elapsed, read, total?));
        let by_packets = self.ends.packets.and_then(|packets| rest(elapsed, received, packets));
        let by_clock = self.ends.seconds.map(|seconds| seconds.saturating_sub(elapsed));
        progress(read, [by_files, by_packets, by_clock].into_iter().flatten().min())
    }

    fn draw(&mut self) {
        let mut frame = self.erasure();
        // Without wrapping, each line takes one row of the terminal, so moving up by the number of
        // lines reaches the first line.
        frame.push_str("\x1b[?7l");
        self.table.iter().for_each(|line| {
            let _ = writeln!(frame, "{line}");
        });
        frame.push_str("\x1b[?7h");
        self.lines = self.table.len();
        show(&frame);
    }

    /// Removes the table from the screen, so that another text can be written there.
    pub(crate) fn erase(&mut self) {
        if self.lines > 0 {
            show(&self.erasure());
            self.lines = 0;
        }
    }

    /// Draws the last table again. Without `redraw`, a run that reports every second would hardly
    /// show its table.
    pub(crate) fn redraw(&mut self) {
        if self.due.is_some() && !self.table.is_empty() {
            self.draw();
        }
    }

    pub(crate) fn end(&mut self) {
        self.erase();
        self.due = None;
    }

    fn erasure(&self) -> String {
        if self.lines == 0 { String::new() } else { format!("\r\x1b[{}A\x1b[J", self.lines) }
    }
}

fn show(frame: &str) {
    // The run continues if the terminal is closed.
    let _ = io::stderr().lock().write_all(frame.as_bytes());
}

/// The counters at a point in time. Rates are computed from the difference of two such values.
#[derive(Debug)]
struct Counters {
    at: Instant,
    cpus: Vec<CpuCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct CpuCounts {
    processed: u64,
    busy: Duration,
}

impl Counters {
    fn of(snapshot: &Snapshot, at: Instant) -> Self {
        let counts = |cpu: &CpuSnapshot| CpuCounts { processed: cpu.processed, busy: cpu.busy };
        Self { at, cpus: snapshot.cpus.iter().map(counts).collect() }
    }
}

struct Row {
    cpu: CpuId,
    packets: u64,
    /// The share of the time that the CPU was busy, at most 1.
    busy: f64,
    backlog: u64,
    drops: u64,
}

fn table(before: &Counters, now: &Counters, snapshot: &Snapshot) -> Vec<String> {
    let time = now.at.duration_since(before.at);
    let row = |(at, cpu): (usize, &CpuSnapshot)| {
        let old = before.cpus.get(at).copied().unwrap_or_default();
        Row {
            cpu: cpu.cpu,
            packets: now.cpus[at].processed.saturating_sub(old.processed),
            busy: (now.cpus[at].busy.saturating_sub(old.busy).as_secs_f64() / time.as_secs_f64()).min(1.0),
            backlog: cpu.backlog,
            drops: cpu.dropped.total(),
        }
    };
    let rows: Vec<Row> = snapshot.cpus.iter().enumerate().map(row).collect();
    let mut lines = lines(rows, time);
    lines.push(format!(
        "{} received, {} dropped",
        counted(snapshot.received(), "packet"),
        grouped(snapshot.dropped().total())
    ));
    lines
}

/// A bar such as `[=====> ]`, in ASCII for terminals without UTF-8.
fn bar(done: u64, all: u64) -> String {
    let filled = (BAR_WIDTH as f64 * done as f64 / all as f64).min(BAR_WIDTH as f64) as usize;
    format!("[{}{}]", "=".repeat(filled), " ".repeat(BAR_WIDTH - filled))
}

/// The remaining time of the run, computed from the average rate so far. `None` if nothing is done
/// yet.
fn rest(elapsed: Duration, done: u64, all: u64) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(all.saturating_sub(done) as f64 / done as f64))
}

/// The text for the part of the files that has been read, and for the remaining time, as far as
/// both are known.
fn progress(read: Option<(u64, Option<u64>)>, left: Option<Duration>) -> String {
    let read = match read {
        Some((read, Some(total))) if total > 0 => {
            format!("; {:.0} % of {} read", percent(read as f64, total as f64).min(100.0), size(total))
        }
        Some((read, _)) => format!("; {} read", size(read)),
        None => String::new(),
    };
    let left =
        left.map_or(String::new(), |left| format!("{} {} left", if read.is_empty() { ";" } else { "," }, time(left)));
    read + &left
}

/// The first line, the busiest CPUs in the order of their numbers, and the sum of all other CPUs.
fn lines(mut rows: Vec<Row>, time: Duration) -> Vec<String> {
    let all: u64 = rows.iter().map(|row| row.packets).sum();
    let columns = |cpu: &str, packets: u64, busy: f64, backlog: u64, drops: u64| {
        let share = percent(packets as f64, all as f64);
        let (rate, busy) = (rate(packets, time), 100.0 * busy);
        let (backlog, drops) = (grouped(backlog), grouped(drops));
        format!("{cpu:>8} {rate:>12} {share:>6.1} % {busy:>6.1} % {backlog:>12} {drops:>15}")
    };
    let mut lines =
        vec![format!("{:>8} {:>12} {:>8} {:>8} {:>12} {:>15}", "CPU", "rate", "share", "busy", "backlog", "drops")];
    let rest = if rows.len() > CPUS_SHOWN {
        rows.sort_by(|a, b| b.busy.total_cmp(&a.busy).then(b.packets.cmp(&a.packets)));
        let rest = rows.split_off(CPUS_SHOWN - 1);
        rows.sort_by_key(|row| row.cpu);
        rest
    } else {
        Vec::new()
    };
    lines.extend(rows.iter().map(|row| columns(&row.cpu.to_string(), row.packets, row.busy, row.backlog, row.drops)));
    if !rest.is_empty() {
        let sum = |of: fn(&Row) -> u64| rest.iter().map(of).sum();
        let busy = rest.iter().map(|row| row.busy).sum::<f64>() / rest.len() as f64;
        let name = format!("{} more", rest.len());
        lines.push(columns(&name, sum(|row| row.packets), busy, sum(|row| row.backlog), sum(|row| row.drops)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cpu: u16, packets: u64, busy: f64) -> Row {
        Row { cpu: CpuId(cpu), packets, busy, backlog: 1000, drops: 12_345_678 }
    }

    #[test]
    fn a_line_fits_80_columns() {
        let lines = lines(vec![row(0, 3_000_000, 0.5), row(1, 1_000_000, 1.0)], Duration::from_secs(1));
        assert_eq!(
            lines,
            [
                "     CPU         rate    share     busy      backlog           drops",
                "       0     3.0 Mpps   75.0 %   50.0 %        1,000      12,345,678",
                "       1     1.0 Mpps   25.0 %  100.0 %        1,000      12,345,678",
            ]
        );
        assert!(lines.iter().all(|line| line.len() <= 80));
    }

    #[test]
    fn the_bar_fits_a_line() {
        assert_eq!(bar(0, 10).len(), 78);
        assert_eq!(bar(5, 10), format!("[{}{}]", "=".repeat(38), " ".repeat(38)));
        // A file that has grown.
        assert_eq!(bar(20, 10), format!("[{}]", "=".repeat(76)));
    }

    #[test]
    fn progress_says_how_much_is_left() {
        let (gib, seconds) = (1 << 30, Duration::from_secs);
        let of_file = |read, total, elapsed| progress(Some((read, Some(total))), rest(elapsed, read, total));
        assert_eq!(of_file(gib, 4 * gib, seconds(30)), "; 25 % of 4.0 GiB read, 1:30 min left");
        assert_eq!(of_file(4 * gib, 4 * gib, seconds(30)), "; 100 % of 4.0 GiB read, 0.0 ms left");
        // A file that has grown, an unread file, and a pipe.
        assert_eq!(of_file(2 * gib, gib, seconds(1)), "; 100 % of 1.0 GiB read, 0.0 ms left");
        assert_eq!(of_file(0, gib, seconds(1)), "; 0 % of 1.0 GiB read");
        assert_eq!(progress(Some((3 << 20, None)), None), "; 3.0 MiB read");
        // A run without files that has an end, and a run without files that has no end.
        assert_eq!(progress(None, rest(seconds(10), 500, 1000)), "; 10.0 s left");
        assert_eq!(progress(None, None), "");
    }

    #[test]
    fn of_many_cpus_the_busiest_are_shown_and_the_others_summed() {
        let rows = (0..64).map(|cpu| row(cpu, u64::from(cpu), f64::from(cpu) / 64.0)).collect();
        let lines = lines(rows, Duration::from_secs(1));
        assert_eq!(lines.len(), 1 + CPUS_SHOWN);
        assert!(lines[1].starts_with("      49") && lines[15].starts_with("      63"), "{lines:#?}");
        assert!(lines[16].starts_with(" 49 more") && lines[16].contains("49,000"), "{lines:#?}");
    }
}
