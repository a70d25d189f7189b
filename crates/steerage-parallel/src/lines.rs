/// The beginning of an action line in Elasticsearch's format (tshark -T ek). An action line must
/// stay directly before the line of the document that it describes.
pub(super) const ACTION: &[u8] = b"{\"index\":";

/// A line with more bytes than this is written in pieces, without output of other jobs between the
/// pieces.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
    within: bool,
    last: Vec<u8>,
}

const LAST_BYTES_MAX: usize = 300;

impl Lines {
    /// Adds output of a job, and appends all complete lines to `out`. Returns true if the output
    /// ends within a line that is too long for memory. The next output must then come from the same
    /// job.
    pub(super) fn take(&mut self, written: &[u8], out: &mut Vec<u8>) -> bool {
        let before = self.rest.len();
        self.rest.extend_from_slice(written);
        if let Some(end) = written.iter().rposition(|byte| *byte == b'\n') {
            let end = self.whole(before + end);
            let more = self.rest.split_off(end);
            self.pass_on(out);
            self.within &= end == 0;
            self.rest = more;
        }
        if self.rest.len() > LINE_BYTES_MAX {
            self.pass_on(out);
            self.within = true;
        }
        self.within
    }

    /// Returns the position after the last complete line that may be written. `newline` is the
    /// position of the last newline. An action line, which precedes a document, is written only
    /// when the document's line is complete.
    fn whole(&self, newline: usize) -> usize {
        let start = self.rest[..newline].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if self.rest[start..].starts_with(ACTION) && !self.within { start } else { newline + 1 }
    }

    /// Appends an incomplete last line to `out`, with a newline if `adds_newline` is true.
    pub(super) fn end(&mut self, adds_newline: bool, out: &mut Vec<u8>) {
        if self.within || !self.rest.is_empty() {
            self.rest.extend(adds_newline.then_some(b'\n'));
            self.pass_on(out);
            self.within = false;
        }
    }

    pub(super) fn last(&self) -> String {
        String::from_utf8_lossy(&self.last).trim().to_owned()
    }

    fn pass_on(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.rest);
        if let Some(last) = last_line(&self.rest) {
            self.last.clear();
            self.last.extend_from_slice(&last[..last.len().min(LAST_BYTES_MAX)]);
        }
        self.rest.clear();
    }
}

#[derive(Debug, Default)]
pub(super) struct Tag {
    tag: Vec<u8>,
    within: bool,
}

impl Tag {
    pub(super) fn of(job: Option<usize>) -> Self {
        Self { tag: job.map(|job| format!("{job}\t").into_bytes()).unwrap_or_default(), within: false }
    }

    pub(super) fn add(&mut self, lines: &[u8], out: &mut Vec<u8>) {
        if self.tag.is_empty() {
            return out.extend_from_slice(lines);
        }
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if !std::mem::replace(&mut self.within, !line.ends_with(b"\n")) {
                out.extend_from_slice(&self.tag);
            }
            out.extend_from_slice(line);
        }
    }
}

pub(super) fn last_line(text: &[u8]) -> Option<&[u8]> {
    text.rsplit(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_lines_come_out() {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        assert!(!lines.take(b"one\ntw", &mut out));
        assert_eq!(out, b"one\n");
        assert!(!lines.take(b"o", &mut out));
        assert!(!lines.take(b"\nthree\n\nfou", &mut out));
        assert_eq!(out, b"one\ntwo\nthree\n\n");
        assert_eq!(lines.last(), "three");
        lines.end(true, &mut out);
        lines.end(true, &mut out);
        assert_eq!(out, b"one\ntwo\nthree\n\nfou\n");
        assert_eq!(lines.last(), "fou");
    }

    #[test]
    fn a_line_that_needs_the_next_one_waits_for_it() {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        lines.take(b"{\"a\":1}\n{\"index\":{}}\n", &mut out);
        assert_eq!(out, b"{\"a\":1}\n");
        lines.take(b"{\"b\"", &mut out);
        lines.take(b":2}\n{\"index\":{}}\n", &mut out);
        assert_eq!(out, b"{\"a\":1}\n{\"index\":{}}\n{\"b\":2}\n");
        lines.end(false, &mut out);
        assert!(out.ends_with(b"{\"index\":{}}\n"));
    }

    #[test]
    fn each_line_has_its_tag_however_it_comes() {
        let (mut tag, mut out) = (Tag::of(Some(3)), Vec::new());
        for byte in b"a\nb\n\nc" {
            tag.add(&[*byte], &mut out);
        }
        assert_eq!(out, b"3\ta\n3\tb\n3\t\n3\tc");
        let (mut at_once, mut without) = (Vec::new(), Vec::new());
        Tag::of(Some(3)).add(b"a\nb\n\nc", &mut at_once);
        Tag::of(None).add(b"a\nb", &mut without);
        assert_eq!((at_once, &without[..]), (out, &b"a\nb"[..]));
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let (mut lines, mut tag, mut out) = (Lines::default(), Tag::of(Some(1)), Vec::new());
        let piece = [b'x'; 1000];
        let mut held = false;
        for _ in 0..2 * LINE_BYTES_MAX / piece.len() {
            let mut passed = Vec::new();
            held = lines.take(&piece, &mut passed);
            tag.add(&passed, &mut out);
            assert!(lines.rest.len() <= LINE_BYTES_MAX + piece.len());
        }
        assert!(held);
        let mut passed = Vec::new();
        assert!(!lines.take(b"end\nnext\n", &mut passed));
        tag.add(&passed, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("1\txxx") && text.ends_with("xend\n1\tnext\n"));
    }
}
