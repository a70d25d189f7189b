//! Writes one capture file or FIFO in a thread of its own. CPUs append packets to a bounded buffer,
//! and never wait for the file.
//!
//! The buffer is a list of chunks, in the order in which all CPUs sent their packets. A CPU appends
//! a batch at a time under a lock, which is never held during a write. A CPU whose share of the
//! buffer is full drops its packets for this output only (`tx_full`).
//!
//! A written packet counts as sent. If the file is a pipe whose reader is watched, only a packet
//! that was read counts as sent. If writing fails, or takes too long at the end of the run, the
//! file is truncated after its last complete packet. Unwritten packets count as lost (`tx_lost`).

mod chunk;
#[cfg(test)]
mod faults;
mod rotating;
mod thread;

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use steerage::{DeviceError, device::TxSource, limits::OUTPUT_STUCK_AFTER};

use steerage_guard::file::FileSeries;

use super::encode::StreamFormat;
use super::pipe;
pub(super) use chunk::Lane;
use chunk::{Chunk, Sent, WRITE_BYTES};
pub use rotating::Rotate;
use rotating::Rotating;
use thread::Writing;

/// The number of bytes, from all CPUs, that may wait to be written: the traffic of 25 ms at 10
/// Gbit/s.
pub(super) const BUFFER_BYTES: usize = 32 << 20;

/// The smallest share of the buffer for a CPU: two batches of full Ethernet frames.
const SHARE_MIN: usize = 256 << 10;

/// The space in a chunk for a batch of full Ethernet frames. A batch with more bytes enlarges the
/// chunk.
const BATCH_BYTES: usize = 100 << 10;

/// The longest time for which fewer than [`WRITE_BYTES`] bytes wait to be written.
const LINGER: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(super) struct WriterOptions {
    pub(super) format: StreamFormat,
    pub(super) buffer_bytes: usize,
    /// While the output's reader reads nothing, inputs that can wait pause without a time limit.
    pub(super) patient: bool,
    /// The file is a pipe whose reader is watched. A packet counts as sent when the reader has read
    /// it.
    pub(super) watched: bool,
}

/// A batch that a CPU is appending to the locked buffer. When this value is dropped, the batch is
/// passed to the writer.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    writer: &'a Writer,
    lane: &'a Arc<Lane>,
    source: TxSource,
    buffer: MutexGuard<'a, Buffer>,
    start: usize,
    packets: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Buffer {
    waiting: VecDeque<Chunk>,
    spare: Vec<Chunk>,
    bytes: usize,
    /// Write now, although fewer than [`WRITE_BYTES`] bytes wait.
    hurry: bool,
    /// The number of waiting bytes that wakes the writing thread. `None` if the thread does not
    /// sleep.
    wakes_at: Option<usize>,
    senders: usize,
    begun: bool,
    failed: Option<StreamFailure>,
    rotating: Option<Rotating>,
}

/// The reason why a stream was not written completely, or not read completely.
///
/// ```
/// use steerage_capture::StreamFailure;
///
/// assert_eq!(StreamFailure::ReaderGone.to_string(), "its reader has gone");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamFailure {
    /// No process has the reading end of the stream open any more.
    ReaderGone,
    /// The kernel rejected the data. The text contains the reason.
    Write(String),
}

impl StreamFailure {
    pub(super) fn cause(&self) -> io::Error {
        match self {
            Self::ReaderGone => rustix::io::Errno::PIPE.into(),
            Self::Write(why) => io::Error::other(why.clone()),
        }
    }
}

impl fmt::Display for StreamFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReaderGone => f.write_str("its reader has gone"),
            Self::Write(why) => f.write_str(why),
        }
    }
}

#[derive(Debug)]
pub(super) enum Target {
    /// An open file, and the number of bytes that the file already contains.
    File(File, u64),
    Series(FileSeries),
}

#[derive(Debug)]
pub(super) struct Writer {
    name: String,
    options: WriterOptions,
    /// `None` before the writing thread starts and after it ends.
    file: Mutex<Option<Arc<File>>>,
    /// The number of bytes written, including headers. `written`, `waiting`, `input_ended` and
    /// `abandoned` are accessed with `Relaxed`, because no other memory depends on them.
    written: AtomicU64,
    /// The number of bytes that wait to be written, without the chunk that is being written.
    waiting: AtomicUsize,
    ended: AtomicBool,
    input_ended: AtomicBool,
    /// No program will read the pipe any more, although a process may still have it open.
    abandoned: AtomicBool,
    buffer: Mutex<Buffer>,
    wake: Condvar,
    lanes: AtomicUsize,
    start: Instant,
    /// The time of the last progress of the current write, in milliseconds after `start`. The value
    /// is 0 while nothing is being written. Accesses are relaxed, because no other memory depends
    /// on this time.
    stuck_since: AtomicU64,
}

impl WriterOptions {
    pub(super) fn new(format: StreamFormat, buffer_bytes: usize) -> Self {
        Self { format, buffer_bytes, patient: false, watched: false }
    }
}

impl Writer {
    pub(super) fn new(name: String, options: WriterOptions) -> Self {
        let (buffer, wake, lanes, stuck_since, file) = Default::default();
        let (written, waiting, ended, input_ended, abandoned) = Default::default();
        Self {
            name,
            options,
            file,
            written,
            waiting,
            ended,
            input_ended,
            abandoned,
            buffer,
            wake,
            lanes,
            start: Instant::now(),
            stuck_since,
        }
    }

    pub(super) fn rotating(self, rotate: Rotate) -> Self {
        self.lock().rotating = Some(Rotating::new(rotate));
        self
    }

    pub(super) fn start(self: &Arc<Self>, target: Target) -> Result<(), DeviceError> {
        let writing = match target {
            Target::File(file, written) => {
                let file = Arc::new(file);
                self.written.store(written, Ordering::Relaxed);
                *self.file() = Some(Arc::clone(&file));
                Writing::new(file, written, self.options.watched)
            }
            Target::Series(series) => Writing::series(series),
        };
        let writer = Arc::clone(self);
        let body = move || {
            writing.run(&writer);
            writer.file().take();
            writer.ended.store(true, Ordering::Release);
        };
        let started = std::thread::Builder::new().name("pcap".to_owned()).spawn(body);
        started.map(drop).map_err(|error| DeviceError::new(self.name.clone(), "start a thread to write to", error))
    }

    #[inline]
    pub(super) fn format(&self) -> StreamFormat {
        self.options.format
    }

    fn file(&self) -> MutexGuard<'_, Option<Arc<File>>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes written so far. If the file is a pipe whose reader is watched,
    /// the second number is that of unread bytes in the pipe, else 0.
    pub(super) fn written(&self) -> (u64, usize) {
        let unread = self.file().as_deref().filter(|_| self.options.watched).map_or(0, pipe::unread);
        (self.written.load(Ordering::Relaxed), unread)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// `Acquire` pairs with the store of `ended` at the end of the writing thread.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn end_input(&self) {
        let mut buffer = self.lock();
        self.input_ended.store(true, Ordering::Relaxed);
        self.wake_writer(&mut buffer);
    }

    pub(super) fn failure(&self) -> Option<StreamFailure> {
        self.lock().failed.clone()
    }

    pub(super) fn input_has_ended(&self) -> bool {
        self.input_ended.load(Ordering::Relaxed)
    }

    /// Drops the packets that are unread in the pipe, as if no process had the pipe's reading end
    /// open.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.flush();
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub(super) fn lane(&self) -> Arc<Lane> {
        self.lock().senders += 1;
        self.lanes.fetch_add(1, Ordering::Relaxed);
        Arc::default()
    }

    /// Records that a CPU sends no more packets. If no CPU has sent a packet, `leave` of the last
    /// CPU writes `head`, because a run without sent packets does not wait for the writing thread.
    pub(super) fn leave(&self, lane: &Lane, head: &[u8]) {
        let mut buffer = self.lock();
        buffer.senders -= 1;
        if buffer.senders == 0 && !buffer.begun {
            let written = self.file().as_deref().map_or(Ok(()), |mut file| file.write_all(head));
            match written {
                Ok(()) => drop(self.written.fetch_add(head.len() as u64, Ordering::Relaxed)),
                Err(cause) => {
                    let error = self.error(cause);
                    tracing::error!(device = %self.name, "{error}");
                    lane.account.get().iter().for_each(|account| account.failed(&error));
                }
            }
        }
        self.wake_writer(&mut buffer);
    }

    /// Appends the header of a file or of an interface.
    pub(super) fn append(&self, bytes: &[u8]) {
        let mut buffer = self.lock();
        buffer.begun = true;
        buffer.append(bytes);
    }

    pub(super) fn begin<'a>(&'a self, lane: &'a Arc<Lane>, source: TxSource) -> Result<Entry<'a>, DeviceError> {
        let mut buffer = self.lock();
        if self.input_ended.load(Ordering::Relaxed) {
            return Err(self.error(io::Error::other("it has ended")));
        }
        if let Some(why) = &buffer.failed {
            return Err(self.error(why.cause()));
        }
        let start = buffer.chunk_for(BATCH_BYTES).bytes.len();
        Ok(Entry { writer: self, lane, source, buffer, start, packets: 0, bytes: 0 })
    }

    pub(super) fn flush(&self) {
        let mut buffer = self.lock();
        if buffer.bytes > 0 && !buffer.hurry {
            buffer.hurry = true;
            self.wake_writer(&mut buffer);
        }
    }

    fn wake_writer(&self, buffer: &mut Buffer) {
        if buffer.wakes_at.take().is_some() {
            self.wake.notify_one();
        }
    }

    fn share(&self) -> usize {
        (self.options.buffer_bytes / self.lanes.load(Ordering::Relaxed).max(1)).max(SHARE_MIN)
    }

    /// Returns true if a CPU may append another batch to its share of the buffer, `lane`.
    pub(super) fn takes(&self, lane: &Lane) -> bool {
        lane.held.load(Ordering::Relaxed) < self.share()
    }

    /// Returns true if a CPU's share of the buffer has space for two batches. Returns true also if
    /// the output is stuck, because inputs should not wait for a stuck output.
    pub(super) fn has_room(&self, lane: &Lane) -> bool {
        lane.held.load(Ordering::Relaxed) < self.share() / 2 || self.is_stuck()
    }

    fn is_stuck(&self) -> bool {
        let since = self.stuck_since.load(Ordering::Relaxed);
        !self.options.patient
            && since > 0
            && self.millis().saturating_sub(since) >= OUTPUT_STUCK_AFTER.as_millis() as u64
    }

    /// Returns the milliseconds since the writer was created, but never 0.
    fn millis(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    fn error(&self, cause: io::Error) -> DeviceError {
        DeviceError::new(self.name.clone(), "write to", cause)
    }

    pub(super) fn several_links(&self) -> DeviceError {
        let cause = io::Error::other("a pcap file has one link type, and these packets have several");
        self.error(cause).advise("let the name end in .pcapng")
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next chunk. Returns `None` if all bytes are written and no CPU sends any more.
    fn next(&self, used: Option<Chunk>) -> Option<Chunk> {
        let mut buffer = self.lock();
        buffer.spare.extend(used);
        let mut lingered = false;
        loop {
            // `Relaxed` is sufficient: other threads set `input_ended` only while they hold the
            // buffer's lock, and this thread sets `input_ended` itself when it ends.
            let over = buffer.senders == 0 || self.input_ended.load(Ordering::Relaxed);
            if buffer.bytes >= WRITE_BYTES || ((buffer.hurry || lingered || over) && buffer.bytes > 0) {
                buffer.wakes_at = None;
                let chunk = buffer.waiting.pop_front()?;
                buffer.bytes -= chunk.bytes.len();
                self.waiting.store(buffer.bytes, Ordering::Relaxed);
                return Some(chunk);
            }
            buffer.hurry = false;
            if over {
                return None;
            }
            let nothing = buffer.bytes == 0;
            buffer.wakes_at = Some(if nothing { 1 } else { WRITE_BYTES });
            buffer = if nothing {
                self.wake.wait(buffer).unwrap_or_else(PoisonError::into_inner)
            } else {
                let (buffer, timeout) = self.wake.wait_timeout(buffer, LINGER).unwrap_or_else(PoisonError::into_inner);
                lingered = timeout.timed_out();
                buffer
            };
        }
    }

    /// Counts the waiting packets as lost, and rejects further packets. `chunk` is the chunk whose
    /// write failed.
    fn fail(&self, chunk: Option<&Chunk>, cause: io::Error) {
        let error = self.error(cause);
        tracing::error!(device = %self.name, "{error}");
        let mut buffer = self.lock();
        buffer.failed = Some(match error.cause.kind() {
            io::ErrorKind::BrokenPipe => StreamFailure::ReaderGone,
            _ => StreamFailure::Write(error.cause.to_string()),
        });
        let waiting = std::mem::take(&mut buffer.waiting);
        buffer.bytes = 0;
        self.waiting.store(0, Ordering::Relaxed);
        drop(buffer);
        if let Some(account) = chunk.and_then(|chunk| chunk.sent.first()).and_then(|sent| sent.lane.account.get()) {
            account.failed(&error);
        }
        for sent in waiting.iter().flat_map(|chunk| &chunk.sent) {
            sent.count_lost(sent.packets);
        }
        waiting.iter().for_each(Chunk::let_go);
        self.stuck_since.store(0, Ordering::Relaxed);
    }
}

impl Buffer {
    fn append(&mut self, bytes: &[u8]) {
        if self.rotating.as_mut().is_some_and(|rotating| !rotating.add_head(bytes)) {
            return;
        }
        let chunk = self.chunk_for(bytes.len());
        chunk.bytes.extend_from_slice(bytes);
        chunk.heads.push(chunk.bytes.len());
        self.bytes += bytes.len();
    }

    /// Returns the last chunk, which has free space for this many bytes.
    fn chunk_for(&mut self, bytes: usize) -> &mut Chunk {
        let fits = self.waiting.back().is_some_and(|chunk| chunk.bytes.len() + bytes <= WRITE_BYTES);
        if !fits {
            self.push_chunk();
        }
        self.last_chunk()
    }

    fn push_chunk(&mut self) {
        let spare = self.spare.pop();
        let new = || Chunk { bytes: Vec::with_capacity(WRITE_BYTES), ..Chunk::default() };
        self.waiting.push_back(spare.unwrap_or_else(new));
    }

    fn begin_file(&mut self, time: u64) -> usize {
        self.push_chunk();
        let Some(head) = self.rotating.as_ref().map(Rotating::head) else { return 0 };
        let last = self.waiting.len() - 1;
        let chunk = &mut self.waiting[last];
        chunk.begins = Some(time);
        chunk.bytes.extend_from_slice(head);
        chunk.heads.push(head.len());
        self.bytes += head.len();
        head.len()
    }

    fn last_chunk(&mut self) -> &mut Chunk {
        let last = self.waiting.len() - 1;
        &mut self.waiting[last]
    }
}

impl Entry<'_> {
    #[inline]
    pub(super) fn blocks(&mut self) -> &mut Vec<u8> {
        &mut self.buffer.last_chunk().bytes
    }

    /// Begins a new file if a packet with this time and length does not belong to the current file.
    #[inline]
    pub(super) fn place(&mut self, nanos: u64, len: impl FnOnce() -> usize) {
        let Some(rotating) = &mut self.buffer.rotating else { return };
        if let Some(time) = rotating.place(nanos, len()) {
            self.pass();
            self.start = self.buffer.begin_file(time);
        }
    }

    fn pass(&mut self) {
        let Self { lane, source, start, ref mut packets, ref mut bytes, ref mut buffer, .. } = *self;
        let chunk = buffer.last_chunk();
        let end = chunk.bytes.len();
        let len = end - start;
        let (packets, bytes) = (std::mem::take(packets), std::mem::take(bytes));
        if packets > 0 {
            chunk.sent.push(Sent { lane: Arc::clone(lane), source, packets, bytes, end, len });
            lane.held.fetch_add(len, Ordering::Relaxed);
        }
        buffer.bytes += len;
    }

    #[inline]
    pub(super) fn count(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.pass();
        let Self { writer, ref mut buffer, .. } = *self;
        writer.waiting.store(buffer.bytes, Ordering::Relaxed);
        if buffer.wakes_at.is_some_and(|wakes_at| buffer.bytes >= wakes_at) {
            writer.wake_writer(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_packets_has_its_head_when_the_last_cpu_leaves() {
        let path = std::env::temp_dir().join(format!("steerage-head-{}.pcap", std::process::id()));
        let options = WriterOptions::new(StreamFormat::PcapNanos, 1 << 16);
        let writer = Writer::new("test".to_owned(), options);
        *writer.file() = Some(Arc::new(File::create(&path).unwrap()));
        let [first, last] = [writer.lane(), writer.lane()];
        writer.leave(&first, b"head");
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        writer.leave(&last, b"head");
        assert_eq!(std::fs::read(&path).unwrap(), b"head");
        std::fs::remove_file(&path).unwrap();
    }
}
