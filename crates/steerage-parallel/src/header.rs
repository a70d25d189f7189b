use std::borrow::Cow;

/// The maximum number of bytes of a job's stored header lines. A line beyond this limit does not
/// count as a header line.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// The first lines of the jobs' outputs are compared with each other only if they are not longer
/// than this.
const FIRST_BYTES_MAX: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Headers {
    of_jobs: Vec<Header>,
    is_shown: bool,
    is_set: bool,
}

#[derive(Debug)]
struct Header {
    bytes: Vec<u8>,
    missing_lines: usize,
    first: Vec<u8>,
}

impl Headers {
    pub(super) fn new(jobs: usize, lines: Option<usize>) -> Self {
        let new = || Header { bytes: Vec::new(), missing_lines: lines.unwrap_or(0), first: Vec::new() };
        let is_set = lines.is_some();
        Self { of_jobs: std::iter::repeat_with(new).take(jobs).collect(), is_shown: false, is_set }
    }

    /// Returns the header lines and the other lines. The header lines are empty if they are
    /// incomplete, or if the header lines of any job have already been written.
    pub(super) fn take<'a>(&mut self, job: usize, lines: &'a [u8]) -> (Vec<u8>, Cow<'a, [u8]>) {
        let header = &mut self.of_jobs[job];
        if !self.is_set {
            header.see(lines);
            return (Vec::new(), lines.into());
        }
        let body = header.take(lines);
        if header.missing_lines > 0 || header.bytes.is_empty() {
            return (Vec::new(), body);
        }
        let bytes = std::mem::take(&mut header.bytes);
        if std::mem::replace(&mut self.is_shown, true) { (Vec::new(), body) } else { (bytes, body) }
    }

    /// If no job wrote its whole header, returns the header lines of the first job that wrote any.
    pub(super) fn finish(&mut self) -> Option<(usize, Vec<u8>)> {
        let mut begun = self.of_jobs.iter_mut().enumerate().filter(|_| !self.is_shown);
        let (job, header) = begun.find(|(_, header)| !header.bytes.is_empty())?;
        Some((job, std::mem::take(&mut header.bytes)))
    }

    /// Returns a hint to use `--header` if the output of all jobs begins with the same line of
    /// column names.
    pub(super) fn note(&self) -> Option<String> {
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

    /// Stores the header lines at the start of `lines`, and returns the other lines.
    fn take<'a>(&mut self, mut lines: &'a [u8]) -> Cow<'a, [u8]> {
        while self.missing_lines > 0 && !lines.is_empty() {
            let end = lines.iter().position(|byte| *byte == b'\n').map_or(lines.len(), |end| end + 1);
            let (line, rest) = lines.split_at(end);
            if self.bytes.len() + line.len() > HEADER_BYTES_MAX {
                self.missing_lines = 0;
                let whole = self.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                let begun = self.bytes.split_off(whole);
                return if begun.is_empty() { lines.into() } else { [&begun, lines].concat().into() };
            }
            self.bytes.extend_from_slice(line);
            self.missing_lines -= usize::from(line.ends_with(b"\n"));
            lines = rest;
        }
        lines.into()
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
}
