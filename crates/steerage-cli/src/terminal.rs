//! Makes text safe for a terminal and for a shell: removes escape sequences, and quotes words.

use std::io::{self, IsTerminal};

/// Returns `text` on one line and without control characters. A file name may come from another
/// user, and may contain escape sequences that the terminal would execute.
pub(crate) fn printable(text: &str) -> String {
    let show = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(show).collect()
}

pub(crate) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Whether standard error is a terminal on which a line can be redrawn in place.
pub(crate) fn can_redraw() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
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

/// Quotes `word` if necessary, so that a shell reads it as one word. Control characters are written
/// as escape notation, which a terminal does not execute, and which a shell converts back.
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
