use std::borrow::Cow;

use steerage_text::counted;

/// The maximum number of bytes of a job's header lines. A line beyond this limit does not
/// count as a header line.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// The first lines of the jobs' outputs are compared with each other only if they are not longer
/// than this.
const FIRST_BYTES_MAX: usize = 1 << 10;

/// The header lines at the start of the jobs' outputs. A job's header line is left out only if it is
/// equal to the line with the same number that the merged output already has, so a count of header
/// lines that does not fit the output loses no line.
#[derive(Debug)]
pub(super) struct Headers {
    of_jobs: Vec<Header>,
    /// The header lines that the merged output has. Every job passes its header lines on before its
    /// other lines, so all header lines come first.
    shown: Vec<Vec<u8>>,
    is_set: bool,
}

#[derive(Debug)]
struct Header {
    missing_lines: usize,
    /// How many header lines of the job are complete, and how many bytes these lines have.
    lines: usize,
    bytes: usize,
    /// The beginning of an incomplete header line.
    begun: Vec<u8>,
    differs: bool,
    first: Vec<u8>,
}

impl Headers {
    pub(super) fn new(jobs: usize, lines: Option<usize>) -> Self {
        let new = || Header {
            missing_lines: lines.unwrap_or(0),
            lines: 0,
            bytes: 0,
            begun: Vec::new(),
            differs: false,
            first: Vec::new(),
        };
        let is_set = lines.is_some();
        Self { of_jobs: std::iter::repeat_with(new).take(jobs).collect(), shown: Vec::new(), is_set }
    }

    /// Returns `lines` without the header lines that the merged output already has, and without an
    /// incomplete header line.
    pub(super) fn take<'a>(&mut self, job: usize, mut lines: &'a [u8]) -> Cow<'a, [u8]> {
        if !self.is_set {
            self.of_jobs[job].see(lines);
            return lines.into();
        }
        let mut out = Vec::new();
        while self.of_jobs[job].missing_lines > 0 && !lines.is_empty() {
            let header = &mut self.of_jobs[job];
            let end = lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |end| end + 1);
            let (line, rest) = lines.split_at(end);
            if header.bytes + header.begun.len() + line.len() > HEADER_BYTES_MAX {
                header.missing_lines = 0;
                out.append(&mut header.begun);
                break;
            }
            header.begun.extend_from_slice(line);
            if line.ends_with(b"\n") {
                out.extend(self.complete(job));
            }
            lines = rest;
        }
        if out.is_empty() { lines.into() } else { [&out, lines].concat().into() }
    }

    /// Returns the incomplete header line at the end of a job's output, unless the merged output
    /// already has this line.
    pub(super) fn end(&mut self, job: usize) -> Vec<u8> {
        if self.of_jobs[job].begun.is_empty() { Vec::new() } else { self.complete(job) }
    }

    /// Ends the header line that the job has begun. Returns the line if it is to be printed.
    fn complete(&mut self, job: usize) -> Vec<u8> {
        let header = &mut self.of_jobs[job];
        let line = std::mem::take(&mut header.begun);
        let nth = header.lines;
        header.lines += 1;
        header.bytes += line.len();
        header.missing_lines -= 1;
        match self.shown.get(nth) {
            None => self.shown.push(line.clone()),
            Some(shown) if shown.trim_ascii_end() == line.trim_ascii_end() => return Vec::new(),
            Some(_) => header.differs = true,
        }
        line
    }

    /// Returns a note for the user about the header lines of the jobs, if any.
    pub(super) fn note(&self) -> Option<String> {
        if self.is_set { self.differing() } else { self.repeated() }
    }

    fn differing(&self) -> Option<String> {
        let jobs = self.of_jobs.iter().filter(|header| header.differs).count();
        (jobs > 0).then(|| {
            format!(
                "header lines of {} differ from those of the first job, and are printed too: --header N counts the lines \
                 that are equal in all outputs",
                counted(jobs as u64, "job")
            )
        })
    }

    /// Returns a hint to use `--header` if the output of all jobs begins with the same line of
    /// column names.
    fn repeated(&self) -> Option<String> {
        let mut firsts = self.of_jobs.iter().map(|header| &header.first[..]).filter(|first| !first.is_empty());
        let first = firsts.next().filter(|first| first.ends_with(b"\n") && names_columns(first))?;
        let others = firsts.clone().count();
        (others > 0 && firsts.all(|other| other == first)).then(|| {
            let line = String::from_utf8_lossy(first.trim_ascii_end()).replace('\t', " ");
            format!("the output of {} jobs begins with the same line, {line}: --header prints it once", others + 1)
        })
    }
}

/// Returns true for the header of a table: several names, separated by tabs or commas.
fn names_columns(line: &[u8]) -> bool {
    let separator = if line.contains(&b'\t') { b'\t' } else { b',' };
    let columns: Vec<&[u8]> = line.trim_ascii_end().split(|byte| *byte == separator).collect();
    let is_name = |column: &&[u8]| {
        let name = column.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(column);
        let is_start = name.first().is_some_and(|first| first.is_ascii_alphabetic() || matches!(first, b'_' | b'#'));
        is_start && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b" _.-#/:()%".contains(byte))
    };
    columns.len() > 1 && columns.iter().all(is_name)
}

impl Header {
    fn see(&mut self, lines: &[u8]) {
        if self.first.len() < FIRST_BYTES_MAX && !self.first.ends_with(b"\n") {
            let line = lines.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
            self.first.extend_from_slice(&line[..line.len().min(FIRST_BYTES_MAX)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_of_columns_are_noticed() {
        let note = |lines: [&str; 2]| {
            let mut headers = Headers::new(3, None);
            for (job, line) in lines.iter().enumerate() {
                line.as_bytes().chunks(3).for_each(|piece| drop(headers.take(job, piece)));
            }
            headers.note()
        };
        let found = note(["ip.src\tdns.qry.name\n1", "ip.src\tdns.qry.name\n2"]).unwrap();
        assert_eq!(
            found,
            "the output of 2 jobs begins with the same line, ip.src dns.qry.name: --header prints it once"
        );
        assert!(note(["\"a b\",c\r\n", "\"a b\",c\r\n"]).is_some());
        for lines in [["a,b\n", "a,c\n"], ["a\n", "a\n"], ["1,2\n", "1,2\n"], ["a,b\n", ""], ["a,b", "a,b"]] {
            assert_eq!(note(lines), None);
        }
    }
    /// Each output comes in pieces of three bytes. Returns the merged output, and whether there is a
    /// note.
    fn merged(count: usize, outputs: &[&str]) -> (String, bool) {
        let (mut headers, mut merged) = (Headers::new(outputs.len(), Some(count)), Vec::new());
        for (job, output) in outputs.iter().enumerate() {
            output.as_bytes().chunks(3).for_each(|piece| merged.extend_from_slice(&headers.take(job, piece)));
            merged.extend(headers.end(job));
        }
        (String::from_utf8(merged).unwrap(), headers.note().is_some())
    }

    #[test]
    fn only_equal_header_lines_are_left_out() {
        let of = |count, outputs: &[&str]| merged(count, outputs);
        assert_eq!(of(1, &["a,b\n1\n", "a,b\n2\n", ""]), ("a,b\n1\n2\n".to_owned(), false));
        assert_eq!(of(2, &["a\n", "a\nb\n1\n", "a\nb"]), ("a\nb\n1\n".to_owned(), false));
        assert_eq!(of(1, &["1 total\n", "2 total\n", "3 total"]), ("1 total\n2 total\n3 total".to_owned(), true));
        assert_eq!(of(2, &["a\n#1\nx\n", "a\n#2\ny\n"]), ("a\n#1\nx\n#2\ny\n".to_owned(), true));
    }
}
