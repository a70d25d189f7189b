//! The terminal: its size and its keys, and text that is safe for it and for a shell, without escape sequences and with quoted words.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcsetattr};

/// Returns `text` on one line and without control characters. A file name may come from another
/// user, and may contain escape sequences that the terminal would execute.
pub(crate) fn printable(text: &str) -> String {
    let show = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(show).collect()
}

pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Wraps lines that are longer than `width` between two words. A continued line begins where the text
/// of its line begins: after the last gap of two spaces or more in its first half, or else after its indentation.
pub(crate) fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let mut all = String::new();
    for line in text.split_inclusive('\n') {
        wrap(line.trim_end_matches('\n'), width, &mut all);
        all.push_str(if line.ends_with('\n') { "\n" } else { "" });
    }
    all
}

fn wrap(line: &str, width: usize, to: &mut String) {
    let chars: Vec<char> = line.chars().collect();
    let text_from = |from: usize| chars[from..].iter().position(|c| *c != ' ').map_or(from, |at| from + at);
    let first = text_from(0);
    let is_gap = |at: &usize| *at > first && chars[*at - 1] == ' ' && chars[*at - 2..*at] == [' ', ' '];
    let indent = (first + 2..chars.len().min(width / 2)).filter(is_gap).map(text_from).max().unwrap_or(first);
    let (mut start, mut room) = (0, width);
    while chars.len() - start > room {
        // A word that is longer than a line stays whole.
        let breaks = |at: &usize| chars[*at] == ' ' && chars[start..*at].iter().any(|c| *c != ' ');
        let least = if start == 0 { indent.max(1) } else { start };
        let fits = (least..=start + room).rev().find(|at| *at < chars.len() && breaks(at));
        let Some(at) = fits.or_else(|| (start + room..chars.len()).find(breaks)) else { break };
        to.extend(&chars[start..at]);
        to.push('\n');
        to.extend(std::iter::repeat_n(' ', indent));
        (start, room) = (text_from(at), width.saturating_sub(indent).max(1));
    }
    to.extend(&chars[start..]);
}

/// Writes a line to standard error. An error is ignored, because nobody reads a closed standard error.
pub(crate) fn print_to_stderr(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes an error or a warning of the program to standard error, on one line.
pub(crate) fn warn(what: &str) {
    print_to_stderr(format_args!("steerage: {}", printable(what)));
}

/// Whether standard error is a terminal on which a line can be redrawn in place.
pub(crate) fn can_redraw() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Whether standard output is a terminal with colours. NO_COLOR switches them off (no-color.org).
pub(crate) fn has_colours() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// The width of the terminal on standard output, or else COLUMNS. `None` for a pipe or a file,
/// where lines may have any length.
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

/// The minimum plausible width. A terminal that reports less does not know its width.
const COLUMNS_MIN: usize = 40;

/// The keys of the terminal, one by one and without an echo. The terminal is restored when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Keys {
    before: Termios,
}

impl Keys {
    /// Takes the keys, if standard input is a terminal and this process runs in its foreground. The
    /// kernel would stop a process in the background. Call this before the sandbox is entered.
    pub(crate) fn take() -> Option<Self> {
        let stdin = io::stdin();
        // A terminal of another session cannot put this process into its background, and does not
        // stop this process.
        let in_background = tcgetpgrp(&stdin).is_ok_and(|foreground| foreground != rustix::process::getpgrp());
        if !can_redraw() || in_background {
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

    /// The keys that were pressed since the last call.
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

/// Quotes `word` if necessary, so that a shell reads it as one word. Control characters become
/// escapes, which a terminal does not execute, and which a shell converts back.
pub(crate) fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if word.contains(char::is_control) {
        let mut quoted = "$'".to_owned();
        for c in word.chars() {
            match c {
                '\'' | '\\' => quoted.extend(['\\', c]),
                // Always three octal digits, so that a following digit does not belong to the
                // escape.
                c if c.is_control() => {
                    c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| quoted.push_str(&format!("\\{byte:03o}")));
                }
                c => quoted.push(c),
            }
        }
        return quoted + "'";
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_keep_their_columns() {
        let text = "advice     one CPU would be 119.5 % busy, and with four it is 66.3 %\nshort\n\n  /a/path/that/is/longer/than/the/width ok end\n";
        let expected = "advice     one CPU would be 119.5 %\n           busy, and with four it is\n           66.3 %\nshort\n\n  /a/path/that/is/longer/than/the/width\n  ok end\n";
        assert_eq!(wrapped(text, Some(36)), expected);
        assert_eq!(wrapped(text, None), text);
        assert_eq!(
            wrapped("ok      FUSE          a mount of the tree works", Some(40)),
            "ok      FUSE          a mount of the\n                      tree works"
        );
        for width in 1..60 {
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            let all = wrapped(text, Some(width));
            assert_eq!(words(&all), words(text));
            assert!(width < 40 || all.lines().all(|line| line.chars().count() <= width), "{width}: {all}");
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        assert_eq!(printable("a\nb\x1b[2Jc/µ.pcap"), "a\\nb\\u{1b}[2Jc/µ.pcap");
        assert_eq!(printable_lines("a\x1b[2J\n\u{9b}2Jb\r\n"), "a\\u{1b}[2J\n\\u{9b}2Jb\\r\n");
    }

    #[test]
    fn the_command_can_be_given_again() {
        assert_eq!(shell_word("--cpus=0-1,3"), "--cpus=0-1,3");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("it's\na\x1b1\u{9b}\\µ"), r"$'it\'s\012a\0331\302\233\\µ'");
    }

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(shell_word("synthetic:flows=10,mix=udp4+tcp6"), "synthetic:flows=10,mix=udp4+tcp6");
        assert_eq!([shell_word("it's; rm"), shell_word(""), shell_word("a b")], [r"'it'\''s; rm'", "''", "'a b'"]);
    }
}
