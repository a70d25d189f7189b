/// Terminals obey control characters, line ends, and changes of the text's direction (Unicode's UAX
/// #9), which can make `fdp.exe` look like `exe.pdf`.
pub(crate) fn is_obeyed(c: char) -> bool {
    let changes_order =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || changes_order || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Returns `text` on one line, without characters that a terminal would obey, because names may
/// come from other users.
pub fn printable(text: &str) -> String {
    let show = |c: char| if is_obeyed(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(show).collect()
}

/// Applies [`printable`] to each line of `text`.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Wraps long lines between words. Continuation lines begin in the same column as the text after
/// the last gap of two or more spaces in the first `width / 2` characters. If a line has no gap of
/// two spaces there, continuation lines keep the line's indentation. Without a `width`, returns the
/// text unchanged.
pub fn wrapped(text: &str, width: Option<usize>) -> String {
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
        // A word that is longer than `width` is not divided.
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
        assert_eq!(printable("\u{202e}pacp.b\u{2066}\u{2028}"), "\\u{202e}pacp.b\\u{2066}\\u{2028}");
        assert_eq!(printable_lines("a\x1b[2J\n\u{9b}2Jb\r\n"), "a\\u{1b}[2J\n\\u{9b}2Jb\\r\n");
    }
}
