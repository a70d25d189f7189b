//! Writes the jobs' output to standard output: in the order in which it comes or in the order of the
//! jobs, with the header lines of one job.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, Write};

use super::lines::LINE_BYTES_MAX;

const READ_BYTES: usize = 64 << 10;

/// The most bytes of header lines that are kept of a job. A line beyond this limit is no header
/// line.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// The start of a job's output that says whether the output is text.
const PROBE_BYTES: usize = 512;

/// The reason for which merging ended before the jobs ended.
#[derive(Debug)]
pub(super) enum Stopped {
    NobodyReads,
    Failed(io::Error),
    /// The output of later jobs cannot be stored in a file.
    NotKept(io::Error),
    /// The output of this job is not lines.
    Unmergeable {
        job: usize,
        kind: &'static str,
    },
}

#[derive(Debug, Default)]
pub(super) struct Sink {
    order: Option<Order>,
    /// The job whose output ends within a line. No other line may follow on this line.
    within: Option<usize>,
    headers: Option<Headers>,
    /// For each job, whether its first bytes were seen. Empty if any bytes can be merged.
    probed: Vec<bool>,
}

/// Keeps the jobs' output in order. Early output of later jobs is stored in files.
#[derive(Debug)]
struct Order {
    turn: usize,
    ended: Vec<bool>,
    kept: VecDeque<File>,
}

/// The header lines at the start of each job's output.
#[derive(Debug)]
struct Headers {
    of_jobs: Vec<Header>,
    is_shown: bool,
}

#[derive(Debug)]
struct Header {
    bytes: Vec<u8>,
    missing_lines: usize,
}

impl Sink {
    /// `kept` has a file for each job but the first, if the output is printed in the order of the
    /// jobs. `header` is the number of header lines.
    pub(super) fn new(jobs: usize, kept: Option<Vec<File>>, header: usize) -> Self {
        let order = kept.map(|kept| Order { turn: 0, ended: vec![false; jobs], kept: kept.into() });
        let new = || Header { bytes: Vec::new(), missing_lines: header };
        let headers = (header > 0)
            .then(|| Headers { of_jobs: std::iter::repeat_with(new).take(jobs).collect(), is_shown: false });
        let probed = if order.is_none() && jobs > 1 { vec![false; jobs] } else { Vec::new() };
        Self { order, within: None, headers, probed }
    }

    /// Whether output of other jobs may come between two pieces of a job's line.
    pub(super) fn mixes(&self) -> bool {
        self.order.is_none()
    }

    /// Checks that the first output of this job is lines, before the lines get tags.
    pub(super) fn probe(&mut self, job: usize, lines: &[u8]) -> Result<(), Stopped> {
        let Some(probed) = self.probed.get_mut(job).filter(|probed| !**probed && !lines.is_empty()) else {
            return Ok(());
        };
        *probed = true;
        unmergeable(lines).map_or(Ok(()), |kind| Err(Stopped::Unmergeable { job: job + 1, kind }))
    }

    pub(super) fn write(&mut self, job: usize, lines: &[u8]) -> Result<(), Stopped> {
        let body = match &mut self.headers {
            Some(headers) => headers.of_jobs[job].take(lines),
            None => Cow::Borrowed(lines),
        };
        match &mut self.order {
            Some(order) if job > order.turn => order.keep(job, &body).map_err(Stopped::NotKept),
            _ => {
                self.show_header(job)?;
                self.put(job, &body)
            }
        }
    }

    pub(super) fn end(&mut self, job: usize) -> Result<(), Stopped> {
        let Some(order) = &mut self.order else { return Ok(()) };
        order.ended[job] = true;
        while let Some(order) = self.order.as_mut().filter(|order| order.ended.get(order.turn) == Some(&true)) {
            order.turn += 1;
            let (turn, Some(mut kept)) = (order.turn, order.kept.pop_front()) else { continue };
            kept.rewind().map_err(Stopped::NotKept)?;
            self.show_header(turn)?;
            let mut bytes = vec![0; READ_BYTES];
            loop {
                match kept.read(&mut bytes).map_err(Stopped::NotKept)? {
                    0 => break,
                    got => self.put(turn, &bytes[..got])?,
                }
            }
        }
        Ok(())
    }

    /// Called after all jobs. If no job wrote all header lines, shows those of the first job that
    /// wrote any.
    pub(super) fn finish(&mut self) -> Result<(), Stopped> {
        let Some(headers) = self.headers.as_mut().filter(|headers| !headers.is_shown) else { return Ok(()) };
        match headers.of_jobs.iter_mut().enumerate().find(|(_, header)| !header.bytes.is_empty()) {
            Some((job, header)) => {
                let header = std::mem::take(&mut header.bytes);
                self.put(job, &header)
            }
            None => Ok(()),
        }
    }

    /// Shows the header of this job if it is complete, and if no other header was shown.
    fn show_header(&mut self, job: usize) -> Result<(), Stopped> {
        let Some(headers) = &mut self.headers else { return Ok(()) };
        let Some(header) = headers.of_jobs.get_mut(job).filter(|header| header.missing_lines == 0) else {
            return Ok(());
        };
        let header = std::mem::take(&mut header.bytes);
        if header.is_empty() || std::mem::replace(&mut headers.is_shown, true) {
            return Ok(());
        }
        self.put(job, &header)
    }

    fn put(&mut self, job: usize, lines: &[u8]) -> Result<(), Stopped> {
        let Some(last) = lines.last() else { return Ok(()) };
        if self.order.is_none() && self.within.is_some_and(|other| other != job) {
            write(b"\n").map_err(stopped)?;
        }
        self.within = (*last != b'\n').then_some(job);
        write(lines).map_err(stopped)
    }
}

impl Header {
    /// Takes the header lines from the start of `lines`, and returns the other lines.
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

impl Order {
    fn keep(&mut self, job: usize, lines: &[u8]) -> io::Result<()> {
        self.kept[job - self.turn - 1].write_all(lines)
    }
}

/// Says what the output is, if it is not lines that can be merged.
fn unmergeable(start: &[u8]) -> Option<&'static str> {
    let line = start.trim_ascii_start().split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let json = line.strip_prefix(b"[").map(<[u8]>::trim_ascii_start);
    // An array without an end on its line. A line too long for the memory is passed on whole.
    let is_open = |rest: &[u8]| rest.is_empty() || rest.starts_with(b"{") && !rest.ends_with(b"]");
    let has_end = start.len() < LINE_BYTES_MAX || start.contains(&b'\n');
    let start = &start[..start.len().min(PROBE_BYTES)];
    match start {
        [0x0a, 0x0d, 0x0d, 0x0a, ..] => Some("a pcapng file"),
        // Microseconds and nanoseconds, in both byte orders.
        [0xd4, 0xc3, 0xb2, 0xa1, ..] | [0xa1, 0xb2, 0xc3, 0xd4, ..] => Some("a pcap file"),
        [0x4d, 0x3c, 0xb2, 0xa1, ..] | [0xa1, 0xb2, 0x3c, 0x4d, ..] => Some("a pcap file"),
        _ if start.contains(&0) => Some("binary data"),
        // tshark writes `[`, a newline, and `{`. An array within one line is a line of JSON.
        _ if has_end && json.is_some_and(is_open) => Some("a JSON array"),
        _ => None,
    }
}

fn stopped(error: io::Error) -> Stopped {
    if error.kind() == io::ErrorKind::BrokenPipe { Stopped::NobodyReads } else { Stopped::Failed(error) }
}

fn write(lines: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(lines)?;
    out.flush()
}
