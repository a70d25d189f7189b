//! Joins the pieces that a job writes into whole lines.

/// The longest line that is kept in memory. A longer line is passed on in pieces, without output of
/// other jobs between the pieces.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;

/// The output that a job has not ended with a newline yet.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
    within: bool,
    last: Vec<u8>,
}

const LAST_BYTES_MAX: usize = 300;

impl Lines {
    /// Takes output of the job, and appends all whole lines to `out`. Returns true if the next
    /// output must come from this job too, because a line is too long to be kept.
    pub(super) fn take(&mut self, written: &[u8], out: &mut Vec<u8>) -> bool {
        match written.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => {
                self.rest.extend_from_slice(&written[..=end]);
                self.pass_on(out);
                self.within = false;
                self.rest.extend_from_slice(&written[end + 1..]);
            }
            None => self.rest.extend_from_slice(written),
        }
        if self.rest.len() > LINE_BYTES_MAX {
            self.pass_on(out);
            self.within = true;
        }
        self.within
    }

    /// Ends the output. If `adds_newline` is set, adds a newline if the last line has none.
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

/// The number of a job, which begins each line of the job's output.
#[derive(Debug, Default)]
pub(super) struct Tag {
    tag: Vec<u8>,
    within: bool,
}

impl Tag {
    /// The tag of this job. Without a job, lines stay as they are.
    pub(super) fn of(job: Option<usize>) -> Self {
        Self { tag: job.map(|job| format!("{job}\t").into_bytes()).unwrap_or_default(), within: false }
    }

    /// Adds the tag to the start of each line.
    pub(super) fn add(&mut self, lines: Vec<u8>) -> Vec<u8> {
        if self.tag.is_empty() {
            return lines;
        }
        let mut out = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if !std::mem::replace(&mut self.within, !line.ends_with(b"\n")) {
                out.extend_from_slice(&self.tag);
            }
            out.extend_from_slice(line);
        }
        out
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
    fn each_line_has_its_tag_however_it_comes() {
        let (mut tag, mut out) = (Tag::of(Some(3)), Vec::new());
        for byte in b"a\nb\n\nc" {
            out.extend(tag.add(vec![*byte]));
        }
        assert_eq!(out, b"3\ta\n3\tb\n3\t\n3\tc");
        assert_eq!(Tag::of(Some(3)).add(b"a\nb\n\nc".to_vec()), out);
        assert_eq!(Tag::of(None).add(b"a\nb".to_vec()), b"a\nb");
    }

    #[test]
    fn a_line_without_end_takes_bounded_memory() {
        let (mut lines, mut tag, mut out) = (Lines::default(), Tag::of(Some(1)), Vec::new());
        let piece = [b'x'; 1000];
        let mut held = false;
        for _ in 0..2 * LINE_BYTES_MAX / piece.len() {
            let mut passed = Vec::new();
            held = lines.take(&piece, &mut passed);
            out.extend(tag.add(passed));
            assert!(lines.rest.len() <= LINE_BYTES_MAX + piece.len());
        }
        assert!(held);
        let mut passed = Vec::new();
        assert!(!lines.take(b"end\nnext\n", &mut passed));
        out.extend(tag.add(passed));
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.starts_with("1\txxx") && text.ends_with("xend\n1\tnext\n"));
    }
}
