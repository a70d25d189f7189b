//! Standard error. The jobs, the program's own lines and the progress line share it.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use crate::terminal::{self, printable};

/// The longest progress line. A longer one would wrap, and could not be erased.
const WIDTH: usize = 79;

/// Moves to the start of the line, and erases the line.
const ERASE: &[u8] = b"\r\x1b[K";

/// Standard error. Write errors are ignored everywhere: they mean that its reader is gone.
#[derive(Debug)]
pub(super) struct Console {
    redraws: bool,
    /// Whether standard output is a terminal too. The progress line must be erased before text is
    /// written there.
    shares_screen: bool,
    /// Whether a progress line is on the screen.
    drawn: Mutex<bool>,
}

impl Console {
    /// If `quiet` is set, no progress is shown.
    pub(super) fn new(quiet: bool) -> Self {
        let redraws = !quiet && terminal::can_redraw();
        Self { redraws, shares_screen: redraws && io::stdout().is_terminal(), drawn: Mutex::new(false) }
    }

    /// Writes a job's standard error.
    pub(super) fn pass_on(&self, bytes: &[u8]) {
        self.write(bytes, false);
    }

    /// Writes a line of the program itself.
    pub(super) fn line(&self, text: &str) {
        self.write(format!("steerage: {}\n", printable(text)).as_bytes(), false);
    }

    /// Calls `write`, which writes to standard output, with the progress line out of the way.
    pub(super) fn beside<R>(&self, write: impl FnOnce() -> R) -> R {
        if !self.shares_screen {
            return write();
        }
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *drawn) {
            let _ = io::stderr().lock().write_all(ERASE);
        }
        write()
    }

    /// Whether progress lines are shown.
    pub(super) fn shows_progress(&self) -> bool {
        self.redraws
    }

    /// Draws the progress line. An empty text erases it.
    pub(super) fn progress(&self, text: &str) {
        if self.redraws {
            let text: String = text.chars().take(WIDTH).collect();
            self.write(text.as_bytes(), !text.is_empty());
        }
    }

    fn write(&self, bytes: &[u8], is_progress: bool) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut err = io::stderr().lock();
        if *drawn {
            let _ = err.write_all(ERASE);
        }
        let _ = err.write_all(bytes).and_then(|()| err.flush());
        *drawn = is_progress;
    }
}
