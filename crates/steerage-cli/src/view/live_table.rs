//! The table that a run redraws on its own terminal every second: the lines of `top`, the counts so
//! far, and the progress. The end of the run removes the table from the screen.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use steerage_text::{counted, grouped, percent, size, time};

use super::keys::{SortBy, Ui};
use super::model::{Model, Seen};
use super::screen;
use crate::report::Report;
use crate::terminal;

const EVERY: Duration = Duration::from_secs(1);

/// With more CPUs than this, the table lists the busiest CPUs first, because a small terminal does
/// not show all CPUs.
const CPUS_IN_ORDER: usize = 8;

/// The width of the progress bar in characters, without the brackets at its ends.
const BAR_WIDTH: usize = 76;

const KEYS: &str = "sort by: r rate  p packets  b bytes  d duration    q stops";

#[derive(Debug)]
pub(crate) struct LiveTable {
    /// The time at which the live table is next drawn. `None` if the table is never drawn.
    due: Option<Instant>,
    lines: usize,
    model: Model,
    ui: Ui,
    ends: RunEnds,
}

/// The limits that end a run, for the estimate of its remaining time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunEnds {
    pub(crate) packets: Option<u64>,
    pub(crate) seconds: Option<Duration>,
}

impl LiveTable {
    /// Creates the live table. If `wanted` is false, the table is never drawn.
    pub(crate) fn new(wanted: bool, ends: RunEnds, flows_first: bool) -> Self {
        Self {
            due: wanted.then(|| Instant::now() + EVERY),
            lines: 0,
            model: Model::default(),
            ui: Ui { flows_first, ..Ui::default() },
            ends,
        }
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(crate) fn show(&mut self, report: &Report) {
        self.due = Some(Instant::now() + EVERY);
        self.take(report);
        self.draw();
    }

    /// The terminal belongs to the user of the run, so the table may show private parts of the
    /// report.
    fn take(&mut self, report: &Report) {
        if !self.model.has_report() && report.snapshot().cpus.len() > CPUS_IN_ORDER {
            self.ui.sort = SortBy::Busy;
        }
        match report.private_value().and_then(Seen::of) {
            Ok(seen) => self.model.take(seen),
            Err(why) => self.model.lose(why),
        }
    }

    pub(crate) fn key(&mut self, key: u8) {
        if self.ui.sorts(key.into()) {
            self.redraw();
        }
    }

    fn page(&self, (width, height): (usize, usize)) -> Vec<String> {
        let (now, capture) = (self.model.now(), self.model.seen.document.capture.as_ref());
        let files = capture.map(|capture| (capture.bytes_read, capture.bytes_total));
        let (received, dropped) = (counted(now.received(), "packet"), grouped(now.dropped().total()));
        let mut below = Vec::new();
        below.extend((!self.model.flows.is_empty()).then(|| KEYS.to_owned()));
        below.push(format!("{received} received, {dropped} dropped{}", self.progress(files)));
        below.extend(files.and_then(|(read, total)| Some(bar(read, total.filter(|total| *total > 0)?))));
        // The cursor occupies a line below the live table.
        let mut lines = screen::lines(&self.model, &self.ui, width, Some(height.saturating_sub(below.len() + 1)));
        lines.extend(below);
        lines
    }

    fn progress(&self, files: Option<(u64, Option<u64>)>) -> String {
        let elapsed = self.model.now().elapsed;
        let by_files = files.and_then(|(read, total)| rest(elapsed, read, total?));
        let by_packets = self.ends.packets.and_then(|packets| rest(elapsed, self.model.now().received(), packets));
        let by_clock = self.ends.seconds.map(|seconds| seconds.saturating_sub(elapsed));
        progress(files, [by_files, by_packets, by_clock].into_iter().flatten().min())
    }

    fn draw(&mut self) {
        let mut frame = self.erasure();
        // Without line wrapping, each line occupies one row, so that the cursor can return to the
        // first line.
        frame.push_str("\x1b[?7l");
        let page = self.page(terminal::screen());
        page.iter().for_each(|line| frame.extend([line.as_str(), "\n"]));
        frame.push_str("\x1b[?7h");
        self.lines = page.len();
        show(&frame);
    }

    pub(crate) fn erase(&mut self) {
        if self.lines > 0 {
            show(&self.erasure());
            self.lines = 0;
        }
    }

    /// Draws the live table again after other text was printed, so that a run that prints a report
    /// every second still shows its table.
    pub(crate) fn redraw(&mut self) {
        if self.due.is_some() && self.model.has_report() {
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
    // The run continues even if its terminal is closed.
    let _ = io::stderr().lock().write_all(frame.as_bytes());
}

/// Returns a bar such as `[=====>    ]`, in ASCII for terminals without UTF-8.
fn bar(done: u64, all: u64) -> String {
    let filled = (BAR_WIDTH as f64 * done as f64 / all as f64).min(BAR_WIDTH as f64) as usize;
    format!("[{}{}]", "=".repeat(filled), " ".repeat(BAR_WIDTH - filled))
}

/// Estimates the rest of the time, given that `done` of `all` units took `elapsed`. Returns `None`
/// if no unit is done yet.
fn rest(elapsed: Duration, done: u64, all: u64) -> Option<Duration> {
    (done > 0).then(|| elapsed.mul_f64(all.saturating_sub(done) as f64 / done as f64))
}

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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use steerage::stats::CpuSnapshot;
    use steerage::{CpuId, Snapshot};

    use super::*;
    use crate::report::Document;

    fn table(cpus: u16) -> LiveTable {
        let mut snapshot = Snapshot::default();
        snapshot.elapsed = Duration::from_secs(100);
        snapshot.cpus.resize_with(cpus.into(), CpuSnapshot::default);
        for (number, cpu) in (0..).zip(&mut snapshot.cpus) {
            (cpu.cpu, cpu.busy) = (CpuId(number), Duration::from_secs(number.into()));
        }
        let mut table = LiveTable::new(true, RunEnds { packets: None, seconds: Some(Duration::from_secs(160)) }, false);
        table.take(&Report::new(Document::new(SystemTime::now(), None, snapshot)));
        table
    }

    #[test]
    fn the_table_fits_the_terminal() {
        for (cpus, height) in [(2, 24), (64, 24), (64, 80), (2, 5), (64, 1)] {
            let lines = table(cpus).page((80, height));
            assert!(lines.len() < height.max(2) && lines.iter().all(|line| line.len() <= 80), "{lines:#?}");
            assert_eq!(lines.last().unwrap(), "0 packets received, 0 dropped; 1:00 min left");
        }
    }

    #[test]
    fn of_many_cpus_the_busiest_come_first() {
        let first = |cpus| table(cpus).page((80, 24))[5].split_whitespace().next().map(str::to_owned);
        assert_eq!((first(8).as_deref(), first(64).as_deref()), (Some("0"), Some("63")));
        assert!(table(64).page((80, 24)).iter().any(|line| line.ends_with(" more")));
    }

    #[test]
    fn the_bar_fits_a_line() {
        assert_eq!(bar(0, 10).len(), 78);
        assert_eq!(bar(5, 10), format!("[{}{}]", "=".repeat(38), " ".repeat(38)));
        // The file has grown during the run.
        assert_eq!(bar(20, 10), format!("[{}]", "=".repeat(76)));
    }

    #[test]
    fn progress_says_how_much_is_left() {
        let (gib, seconds) = (1 << 30, Duration::from_secs);
        let of_file = |read, total, elapsed| progress(Some((read, Some(total))), rest(elapsed, read, total));
        assert_eq!(of_file(gib, 4 * gib, seconds(30)), "; 25 % of 4.0 GiB read, 1:30 min left");
        assert_eq!(of_file(4 * gib, 4 * gib, seconds(30)), "; 100 % of 4.0 GiB read, 0.0 ms left");
        // Tests a file that has grown, a file that has not been read, and a pipe.
        assert_eq!(of_file(2 * gib, gib, seconds(1)), "; 100 % of 1.0 GiB read, 0.0 ms left");
        assert_eq!(of_file(0, gib, seconds(1)), "; 0 % of 1.0 GiB read");
        assert_eq!(progress(Some((3 << 20, None)), None), "; 3.0 MiB read");
        // Tests two runs that read no files. The first run has a limit, and the second run has
        // none.
        assert_eq!(progress(None, rest(seconds(10), 500, 1000)), "; 10.0 s left");
        assert_eq!(progress(None, None), "");
    }
}
