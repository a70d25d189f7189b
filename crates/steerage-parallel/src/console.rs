use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use steerage_text::printable;

/// The maximum length of the progress line. A terminal would wrap a longer line, which then could
/// not be erased.
const WIDTH: usize = 79;

const ERASE: &[u8] = b"\r\x1b[K";

/// Writes to standard error. Write errors are ignored, because they show that the reader of
/// standard error has exited.
#[derive(Debug)]
pub(super) struct Console {
    redraws: bool,
    /// True if standard output is also a terminal, on which the progress line must be erased before
    /// each output.
    shares_screen: bool,
    drawn: Mutex<bool>,
}

impl Console {
    pub(super) fn new(redraws: bool) -> Self {
        Self { redraws, shares_screen: redraws && io::stdout().is_terminal(), drawn: Mutex::new(false) }
    }

    pub(super) fn pass_on(&self, bytes: &[u8]) {
        self.write(bytes, false);
    }

    pub(super) fn line(&self, text: &str) {
        self.write(format!("steerage: {}\n", printable(text)).as_bytes(), false);
    }

    /// Erases the progress line, and then calls `write`, which writes to standard output.
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

    pub(super) fn shows_progress(&self) -> bool {
        self.redraws
    }

    /// Draws the progress line. An empty text erases the line.
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
