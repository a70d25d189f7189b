//! Merges the outputs of the jobs by their kind, and writes them to standard output.
//!
//! | output | any order (the default) | `--order job` | `--order time` |
//! |---|---|---|---|
//! | lines | as they come | bytes, job by job | by the time at which they begin |
//! | a pcap or pcapng file | by time | job by job | by time |
//! | a JSON array | elements as they come | job by job | refused |
//! | anything else | refused | bytes, job by job | refused |
//!
//! Each job has a [`Spool`] for output that must wait for the output of other jobs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Write};

use steerage_capture::CaptureMerge;

use super::elements::Elements;
use super::header::Headers;
use super::kind::Kind;
use super::lines::{Lines, Tag};
use super::options::Order;
use super::spool::Spool;
use super::times::{Times, Unsorted, earliest_of_day};

/// `advance` writes the merged output when the output has at least this many bytes.
const WRITE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) enum Stopped {
    NobodyReads,
    Failed(io::Error),
    /// A job's output that must wait for other jobs cannot be stored in a file.
    NotKept(io::Error),
    Unmergeable {
        job: usize,
        why: String,
    },
}

#[derive(Debug)]
pub(super) struct Sink {
    order: Order,
    /// The kind of all outputs. `None` until a job has written enough bytes to detect the kind.
    kind: Option<Kind>,
    jobs: Vec<JobOutput>,
    /// For each job that has a complete record: the time of its next record, and the job's number.
    next: BinaryHeap<Reverse<(i64, usize)>>,
    /// True if the first times of day of the jobs were compared with each other.
    days_agree: bool,
    captures: CaptureMerge,
    headers: Headers,
    tags: bool,
    out: Vec<u8>,
    /// The job whose last output ended within a line. No other job may continue the incomplete
    /// line.
    within: Option<usize>,
    has_elements: bool,
    notes: Vec<String>,
}

#[derive(Debug, Default)]
struct JobOutput {
    start: Vec<u8>,
    has_kind: bool,
    lines: Lines,
    elements: Elements,
    times: Times,
    tag: Tag,
    spool: Spool,
    record: Option<usize>,
    ended: bool,
    finished: bool,
}

impl Sink {
    /// `files` contains a file for each job. If `files` is empty, the outputs can be merged only if
    /// no output has to wait for another job.
    pub(super) fn new(jobs: usize, order: Order, tags: bool, header: Option<usize>, files: Vec<File>) -> Self {
        let mut files = files.into_iter();
        let job = |nth: usize| JobOutput {
            times: Times::new(header.unwrap_or(0)),
            tag: Tag::of(tags.then_some(nth + 1)),
            spool: Spool::new(files.next()),
            ..JobOutput::default()
        };
        Self {
            order,
            // If there is only one job, its output is passed on unchanged.
            kind: (jobs == 1).then_some(Kind::Lines),
            jobs: (0..jobs).map(job).collect(),
            next: BinaryHeap::new(),
            days_agree: false,
            captures: CaptureMerge::new(jobs),
            headers: Headers::new(jobs, header),
            tags,
            out: Vec::new(),
            within: None,
            has_elements: false,
            notes: Vec::new(),
        }
    }

    /// Adds output of a job. Returns true if the next output must come from the same job.
    pub(super) fn take(&mut self, job: usize, bytes: &[u8]) -> Result<bool, Stopped> {
        let is_single = self.jobs.len() == 1;
        let of = &mut self.jobs[job];
        let within = if of.has_kind || is_single {
            self.accept(job, bytes)?
        } else {
            of.start.extend_from_slice(bytes);
            let Some(kind) = Kind::of(&of.start, of.ended) else { return Ok(false) };
            of.has_kind = true;
            let start = std::mem::take(&mut of.start);
            self.begin(job, kind)?;
            self.accept(job, &start)?
        };
        self.flush()?;
        Ok(within)
    }

    fn accept(&mut self, job: usize, bytes: &[u8]) -> Result<bool, Stopped> {
        let waits = self.waits();
        let of = &mut self.jobs[job];
        let mut out = Vec::new();
        let within = match self.kind {
            Some(Kind::JsonArray) => of.elements.take(bytes, &mut out),
            Some(Kind::Lines) if !waits => of.lines.take(bytes, &mut out),
            _ => {
                out.extend_from_slice(bytes);
                false
            }
        };
        if waits {
            of.spool.push(&out).map_err(Stopped::NotKept)?;
            return self.advance(job).map(|()| false);
        }
        self.pass_on(job, &out);
        Ok(within)
    }

    fn waits(&self) -> bool {
        self.jobs.len() > 1 && (self.order != Order::Any || self.kind == Some(Kind::Capture))
    }

    pub(super) fn end(&mut self, job: usize) -> Result<(), Stopped> {
        self.jobs[job].ended = true;
        if !self.jobs[job].start.is_empty() {
            self.take(job, b"")?;
        }
        let (is_array, waits) = (self.kind == Some(Kind::JsonArray), self.waits());
        let of = &mut self.jobs[job];
        // The outputs of other jobs need not wait for a job that has ended without output.
        of.finished = !of.has_kind;
        if is_array && of.has_kind && !of.elements.is_complete() {
            self.notes.push(format!("the JSON array of job {} is cut short: its last element is left out", job + 1));
        }
        let mut rest = Vec::new();
        of.lines.end(false, &mut rest);
        if waits {
            self.advance(job)?;
        } else {
            self.pass_on(job, &rest);
            self.end_header(job);
        }
        self.flush()
    }

    /// Ends the merged output after all jobs have ended. Returns notes for the user.
    pub(super) fn finish(mut self) -> Result<Vec<String>, Stopped> {
        if self.kind == Some(Kind::JsonArray) {
            let end: &[u8] = if self.has_elements { b"\n]\n" } else { b"[\n]\n" };
            self.out.extend_from_slice(end);
        }
        self.flush()?;
        self.notes.extend(self.headers.note());
        Ok(self.notes)
    }

    fn begin(&mut self, job: usize, kind: Kind) -> Result<(), Stopped> {
        let refused = |why: String| Err(Stopped::Unmergeable { job: job + 1, why });
        let apart = "add --results DIR for a file from each job";
        // `--order job` only concatenates the outputs, so that output of any kind can be merged.
        let kind = if self.order == Order::Job && matches!(kind, Kind::Unknown(_)) { Kind::Lines } else { kind };
        match kind {
            Kind::Unknown(what) => {
                return refused(format!(
                    "writes {what}, which cannot be merged: {apart}, or --keep-order for one output after the other"
                ));
            }
            Kind::JsonArray if self.order == Order::Time => {
                return refused("writes a JSON array, whose elements do not begin with a time: leave --order out, or let it write lines (tshark -T ek)".to_owned());
            }
            Kind::JsonArray | Kind::Capture if self.tags => {
                let what = if kind == Kind::Capture { "a capture" } else { "a JSON array" };
                return refused(format!("writes {what}, which has no lines for --tag: leave --tag out"));
            }
            _ => {}
        }
        match self.kind {
            None => self.kind = Some(kind),
            Some(before) if before != kind => {
                return refused(format!("writes another kind of output than other jobs: {apart}"));
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Writes all records that can be written after the job `job` has written output or has ended.
    fn advance(&mut self, job: usize) -> Result<(), Stopped> {
        self.find_record(job)?;
        while let Some(Reverse((time, job))) = self.next.peek().copied() {
            let others = match self.order {
                Order::Job => &self.jobs[..job],
                _ => &self.jobs[..],
            };
            // A job without a complete record may still write a record with an earlier time.
            let is_next =
                others.iter().all(|other| other.finished || other.record.is_some() && self.order != Order::Job);
            if !is_next {
                break;
            }
            // Header lines come first, so now the next record of every job has the job's first time.
            if time > i64::MIN && !std::mem::replace(&mut self.days_agree, true) {
                self.agree_on_days();
                continue;
            }
            self.next.pop();
            self.write_record(job)?;
            self.find_record(job)?;
            if self.out.len() >= WRITE_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Moves the first times of day after midnight behind those before midnight.
    fn agree_on_days(&mut self) {
        let is_by_time = self.kind == Some(Kind::Lines) && self.order == Order::Time;
        let times = self.next.iter().map(|Reverse((time, _))| *time);
        let Some(earliest) = earliest_of_day(times).filter(|_| is_by_time) else { return };
        let jobs = &mut self.jobs;
        let moved =
            |Reverse((time, job)): Reverse<(i64, usize)>| Reverse((jobs[job].times.not_before(earliest, time), job));
        self.next = std::mem::take(&mut self.next).into_iter().map(moved).collect();
    }

    /// Finds the next record in the job's output, such as a line with a time and the lines without
    /// a time after it. If no record follows, marks the job as finished.
    fn find_record(&mut self, job: usize) -> Result<(), Stopped> {
        let unmergeable = |why: String| Stopped::Unmergeable { job: job + 1, why };
        let of = &mut self.jobs[job];
        while of.record.is_none() && !of.finished {
            let ended = of.ended && of.spool.is_in_memory();
            let bytes = of.spool.bytes();
            let record = match (self.kind, self.order) {
                (Some(Kind::Capture), _) => {
                    let record = self
                        .captures
                        .next(job, bytes)
                        .map_err(|error| unmergeable(format!("writes a damaged capture: {error}")))?;
                    record.map(|record| (record.len, i64::try_from(record.nanos).unwrap_or(i64::MAX)))
                }
                (Some(Kind::Lines), Order::Time) => {
                    of.times.next(bytes, ended).map_err(|error| unmergeable(unsorted(error)))?
                }
                _ => (!bytes.is_empty()).then_some((bytes.len(), 0)),
            };
            if let Some((len, time)) = record {
                of.record = Some(len);
                self.next.push(Reverse((if self.order == Order::Job { 0 } else { time }, job)));
            } else if !of.spool.refill().map_err(Stopped::NotKept)? {
                if !ended {
                    return Ok(());
                }
                let rest = of.spool.bytes().len();
                if rest > 0 {
                    self.notes.push(format!(
                        "the capture of job {} ends within a packet: {rest} bytes are left out",
                        job + 1
                    ));
                }
                of.finished = true;
                self.end_header(job);
                return Ok(());
            }
        }
        Ok(())
    }

    fn end_header(&mut self, job: usize) {
        let line = self.headers.end(job);
        self.put(job, &line);
    }

    fn write_record(&mut self, job: usize) -> Result<(), Stopped> {
        let of = &mut self.jobs[job];
        let len = of.record.take().unwrap_or(0);
        let bytes = of.spool.bytes().get(..len).unwrap_or_default();
        if self.kind == Some(Kind::Capture) {
            let appended = self.captures.append(job, bytes, &mut self.out);
            appended
                .map_err(|error| Stopped::Unmergeable { job: job + 1, why: format!("cannot be merged: {error}") })?;
        } else {
            let bytes = bytes.to_vec();
            self.pass_on(job, &bytes);
        }
        self.jobs[job].spool.consume(len);
        Ok(())
    }

    fn pass_on(&mut self, job: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.kind == Some(Kind::JsonArray) {
            // The first element of the merged array follows a bracket instead of a comma.
            let bytes =
                if std::mem::replace(&mut self.has_elements, true) { bytes } else { &[b"[", &bytes[1..]].concat() };
            self.out.extend_from_slice(bytes);
            return;
        }
        let lines = self.headers.take(job, bytes);
        self.put(job, &lines);
    }

    fn put(&mut self, job: usize, lines: &[u8]) {
        let Some(last) = lines.last() else { return };
        if self.order != Order::Job && self.within.is_some_and(|other| other != job) {
            self.out.push(b'\n');
        }
        self.within = (*last != b'\n').then_some(job);
        self.jobs[job].tag.add(lines, &mut self.out);
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        if self.out.is_empty() {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        let written = stdout.write_all(&self.out).and_then(|()| stdout.flush());
        self.out.clear();
        written.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Stopped::NobodyReads,
            _ => Stopped::Failed(error),
        })
    }
}

fn unsorted(error: Unsorted) -> String {
    match error {
        Unsorted::NoTime(line) => format!(
            "writes a line that does not begin with a time: {line}; let it write one (tcpdump -tt, tshark -T fields -e frame.time_epoch), say \
             how many lines are the header (--header N), or leave --order out"
        ),
        Unsorted::TooLong => "writes a line that is too long to be sorted: leave --order out".to_owned(),
    }
}
