//! The progress of the experiments: a line on a terminal that is redrawn and disappears at the end.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use steerage_lab::runner::Progress;

use crate::terminal;
use crate::units::time;

/// The longest line. A longer one would wrap, and could not be erased.
const WIDTH: usize = 79;

/// The progress line.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    wanted: bool,
}

impl ProgressLine {
    /// A progress line on a terminal. If there is none, nothing is written.
    pub(crate) fn new() -> Self {
        Self { wanted: terminal::can_redraw() }
    }

    /// Shows the next run. The experiments after this one take the time `later`.
    pub(crate) fn show(&self, progress: Progress<'_>, later: Duration) {
        if self.wanted {
            self.write(&text(progress, later));
        }
    }

    fn write(&self, text: &str) {
        let mut err = io::stderr().lock();
        // This moves to the start of the line, writes the text, and erases the rest. An error means that standard error
        // is closed.
        let _ = write!(err, "\r{text}\x1b[K").and_then(|()| err.flush());
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.wanted {
            self.write("");
        }
    }
}

fn text(progress: Progress<'_>, later: Duration) -> String {
    let Progress { experiment, series, x, round, rounds, left } = progress;
    let mut text = format!("{experiment}  round {} of {rounds}  {} left  {series}", round + 1, time(left + later));
    if let Some(x) = x {
        let _ = write!(text, " at {x}");
    }
    text.chars().take(WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_a_line_and_says_what_is_left() {
        let progress = Progress {
            experiment: "rps",
            series: "balance",
            x: Some(200.0),
            round: 1,
            rounds: 5,
            left: Duration::from_millis(80_400),
        };
        let line = text(progress, Duration::from_secs(300));
        assert_eq!(line, "rps  round 2 of 5  6:20 min left  balance at 200");
        let series = "x".repeat(200);
        let long = text(Progress { series: &series, left: Duration::ZERO, ..progress }, Duration::ZERO);
        assert!(long.starts_with("rps  round 2 of 5  0.0 ms left  xxx") && long.len() == WIDTH, "{long}");
    }
}
