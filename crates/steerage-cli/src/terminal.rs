use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr};
use steerage_text::printable;

/// Prints a line to standard error. Ignores errors, because a write fails only if standard error is
/// closed.
pub(crate) fn print_to_stderr(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

pub(crate) fn warn(what: &str) {
    print_to_stderr(format_args!("steerage: {}", printable(what)));
}

/// Returns true if standard error is a terminal on which a line can be redrawn in place.
pub(crate) fn can_redraw() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Returns true if standard output is a terminal with colours. NO_COLOR switches colours off
/// (no-color.org).
pub(crate) fn has_colours() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Returns the width of the terminal on standard output. Without a terminal, returns the value of
/// COLUMNS. `None` means that lines may have any length, as in a file.
pub(crate) fn width() -> Option<usize> {
    let of_terminal = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    let of_environment = || std::env::var("COLUMNS").ok()?.parse().ok();
    of_terminal.or_else(of_environment).filter(|columns| *columns >= COLUMNS_MIN)
}

pub(crate) fn screen() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok().map(|size| (size.ws_col.into(), size.ws_row.into()));
    size.filter(|(columns, lines)| *columns >= COLUMNS_MIN && *lines > 0).unwrap_or((COLUMNS_DEFAULT, LINES_DEFAULT))
}

const LINES_DEFAULT: usize = 24;

const COLUMNS_DEFAULT: usize = 80;

/// The smallest plausible width. A terminal that reports fewer than `COLUMNS_MIN` columns does not
/// know its width.
const COLUMNS_MIN: usize = 40;

/// Reads keys one by one, without echo. Dropping this value restores the terminal's settings.
#[derive(Debug)]
pub(crate) struct Keys {
    before: Termios,
}

impl Keys {
    /// Begins to read keys if standard input is a terminal and this process runs in the foreground.
    /// The kernel would stop a background process that reads keys. Call `take` before the sandbox
    /// is entered.
    pub(crate) fn take() -> Option<Self> {
        let stdin = io::stdin();
        // A terminal of another session, for which `tcgetpgrp` fails, cannot stop this process.
        let in_background = tcgetpgrp(&stdin).is_ok_and(|foreground| foreground != rustix::process::getpgrp());
        if !can_redraw() || in_background {
            return None;
        }
        let before = tcgetattr(&stdin).ok()?;
        let mut modes = before.clone();
        // The mode ISIG stays set, so Ctrl-C still sends a signal.
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
        // An error is ignored: if the terminal is closed, there is nothing to restore.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
