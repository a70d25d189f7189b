//! How far the experiments are: a line on a terminal that is written over, and gone at the end.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use steerage_bench::experiments::Progress;

use crate::live;
use crate::report::units::time;

/// The longest line that is written: what a terminal would wrap could not be taken away again.
const WIDTH: usize = 79;

/// The line.
#[derive(Debug)]
pub(crate) struct Line {
    wanted: bool,
}

impl Line {
    /// On a terminal; elsewhere nothing is written.
    pub(crate) fn new() -> Self {
        Self { wanted: live::is_possible() }
    }

    /// Shows what is run next, where other experiments come `later`.
    pub(crate) fn show(&self, progress: Progress<'_>, later: Duration) {
        if self.wanted {
            self.write(&text(progress, later));
        }
    }

    fn write(&self, text: &str) {
        let mut err = io::stderr().lock();
        // Nobody is told where standard error is gone. To its start, the text, and away with what is right of it.
        let _ = write!(err, "\r{text}\x1b[K").and_then(|()| err.flush());
    }
}

impl Drop for Line {
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
