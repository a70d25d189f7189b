//! The thread that writes one capture file or FIFO. CPUs leave their packets in a bounded buffer and never write or wait.
//!
//! The buffer is a list of chunks, in the order in which packets were sent, whichever CPU sent them. A CPU appends a batch at a
//! time, and the lock that it takes for this is never held while something is written. Each CPU has a share of the buffer. A CPU
//! whose share is full loses its packets for this output only (`tx_full`).
//!
//! Packets count as sent once they are written. If the output fails, or its reader takes nothing until the run gives up, the file
//! is cut after its last whole packet, and whatever was not written counts as lost (`tx_lost`).

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::{
    DeviceError,
    device::{TxAccount, TxSource},
    limits::OUTPUT_STUCK_AFTER,
};

use super::save::{Whole, whole_packets};

/// How much may wait to be written, of all CPUs together: so much lasts for a disk that is away for 25 ms at 10 Gbit/s.
const BUFFER_BYTES: usize = 32 << 20;

/// The least share of it that a CPU has: two batches of full Ethernet frames.
const SHARE_MIN: usize = 256 << 10;

/// How much is written at a time, if there is so much: a system call then costs nothing per packet.
const WRITE_BYTES: usize = 256 << 10;

/// How long less than that waits for more to come.
const LINGER: Duration = Duration::from_millis(100);

/// How often a writer checks whether the run still waits for an output that takes nothing.
const STUCK_LOOK_MILLIS: u8 = 20;

/// What one CPU has in the buffer.
#[derive(Debug, Default)]
pub(super) struct Lane {
    account: OnceLock<TxAccount>,
    /// Bytes. Relaxed: only this CPU adds, so what it reads is never less than what is there, and nothing is handed over by it.
    held: AtomicUsize,
}

/// Packets of one batch, in a chunk.
#[derive(Debug)]
struct Sent {
    lane: Arc<Lane>,
    source: TxSource,
    packets: u64,
    /// Bytes of the packets, without what the file format adds.
    bytes: u64,
    /// Where they end in the chunk, and how long they are there.
    end: usize,
    len: usize,
}

#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    sent: Vec<Sent>,
}

/// A batch that is to be written.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    pub(super) source: TxSource,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) blocks: &'a [u8],
}

#[derive(Debug, Default)]
struct Buffer {
    waiting: VecDeque<Chunk>,
    /// To be used again.
    spare: Vec<Chunk>,
    /// Bytes in `waiting`.
    bytes: usize,
    /// Written out now, however little it is.
    hurry: bool,
    /// The writer sleeps until there are so many bytes.
    wakes_at: Option<usize>,
    /// CPUs that may send something yet.
    senders: usize,
    /// What ended it.
    failed: Option<String>,
}

/// What the CPUs and the writer share.
#[derive(Debug)]
pub(super) struct Writer {
    name: String,
    buffer: Mutex<Buffer>,
    wake: Condvar,
    /// Over how many CPUs the buffer is shared out.
    lanes: AtomicUsize,
    start: Instant,
    /// Since when the writer has tried to write without success, in milliseconds after `start`; 0 if it does not. Relaxed: it is
    /// a time, and nothing is handed over by it.
    stuck_since: AtomicU64,
}

impl Writer {
    pub(super) fn new(name: String) -> Self {
        let (buffer, wake, lanes, stuck_since) = Default::default();
        Self { name, buffer, wake, lanes, start: Instant::now(), stuck_since }
    }

    /// Starts the thread. `written` bytes are in the file already.
    pub(super) fn start(self: &Arc<Self>, file: File, written: u64) -> Result<(), DeviceError> {
        let writer = Arc::clone(self);
        let body = move || Writing { can_be_cut: is_file(&file), file, written }.run(&writer);
        let started = thread::Builder::new().name("pcap".to_owned()).spawn(body);
        started.map(drop).map_err(|error| DeviceError::new(self.name.clone(), "start a thread to write to", error))
    }

    /// A CPU's way in.
    pub(super) fn lane(&self) -> Arc<Lane> {
        self.lock().senders += 1;
        self.lanes.fetch_add(1, Ordering::Relaxed);
        Arc::default()
    }

    /// A CPU sends no more.
    pub(super) fn leave(&self) {
        let mut buffer = self.lock();
        buffer.senders -= 1;
        self.wake_writer(&mut buffer);
    }

    /// Appends what belongs to no packet.
    pub(super) fn append(&self, bytes: &[u8]) {
        self.lock().chunk_for(bytes.len()).bytes.extend_from_slice(bytes);
    }

    /// Appends a batch. If the output has failed, the error says why.
    pub(super) fn push(&self, lane: &Arc<Lane>, batch: &Batch<'_>) -> Result<(), DeviceError> {
        let mut buffer = self.lock();
        if let Some(why) = &buffer.failed {
            return Err(self.error(io::Error::other(why.clone())));
        }
        lane.held.fetch_add(batch.blocks.len(), Ordering::Relaxed);
        let chunk = buffer.chunk_for(batch.blocks.len());
        chunk.bytes.extend_from_slice(batch.blocks);
        let Batch { source, packets, bytes, .. } = *batch;
        chunk.sent.push(Sent {
            lane: Arc::clone(lane),
            source,
            packets,
            bytes,
            end: chunk.bytes.len(),
            len: batch.blocks.len(),
        });
        if buffer.wakes_at.is_some_and(|wakes_at| buffer.bytes >= wakes_at) {
            self.wake_writer(&mut buffer);
        }
        Ok(())
    }

    /// Has what waits written now.
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

    /// Each CPU's share of the buffer.
    fn share(&self) -> usize {
        (BUFFER_BYTES / self.lanes.load(Ordering::Relaxed).max(1)).max(SHARE_MIN)
    }

    /// Whether a batch of that CPU can still be taken.
    pub(super) fn takes(&self, lane: &Lane) -> bool {
        lane.held.load(Ordering::Relaxed) < self.share()
    }

    /// Whether there is room for two batches, or nobody is to wait for it since it takes nothing any more.
    pub(super) fn has_room(&self, lane: &Lane) -> bool {
        lane.held.load(Ordering::Relaxed) < self.share() / 2 || self.is_stuck()
    }

    fn is_stuck(&self) -> bool {
        let since = self.stuck_since.load(Ordering::Relaxed);
        since > 0 && self.millis().saturating_sub(since) >= OUTPUT_STUCK_AFTER.as_millis() as u64
    }

    /// Since the start, and never 0.
    fn millis(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    fn error(&self, cause: io::Error) -> DeviceError {
        DeviceError::new(self.name.clone(), "write to", cause)
    }

    fn lock(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- the writer's side

    /// What is to be written next. `None`: nobody sends any more, and all is written.
    fn next(&self, used: Option<Chunk>) -> Option<Chunk> {
        let mut buffer = self.lock();
        buffer.spare.extend(used);
        let mut lingered = false;
        loop {
            if buffer.bytes >= WRITE_BYTES || ((buffer.hurry || lingered || buffer.senders == 0) && buffer.bytes > 0) {
                buffer.wakes_at = None;
                let chunk = buffer.waiting.pop_front()?;
                buffer.bytes -= chunk.bytes.len();
                return Some(chunk);
            }
            buffer.hurry = false;
            if buffer.senders == 0 {
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

    /// It is over before its time: what waits is lost, and nothing more is taken.
    fn fail(&self, chunk: &Chunk, cause: io::Error) {
        let error = self.error(cause);
        tracing::error!(device = %self.name, "{error}");
        let mut buffer = self.lock();
        buffer.failed = Some(error.cause.to_string());
        let waiting = std::mem::take(&mut buffer.waiting);
        buffer.bytes = 0;
        drop(buffer);
        if let Some(account) = chunk.sent.first().and_then(|sent| sent.lane.account.get()) {
            account.failed(&error);
        }
        for sent in waiting.iter().flat_map(|chunk| &chunk.sent) {
            sent.count_lost(sent.packets);
        }
        waiting.iter().for_each(Chunk::let_go);
        self.stuck_since.store(0, Ordering::Relaxed);
    }
}

impl Lane {
    /// Where it is counted what becomes of this CPU's packets.
    pub(super) fn set_account(&self, account: TxAccount) {
        // Asked once.
        let _ = self.account.set(account);
    }
}

impl Buffer {
    /// A chunk with room for so many bytes, counted as waiting.
    fn chunk_for(&mut self, bytes: usize) -> &mut Chunk {
        self.bytes += bytes;
        let fits = self.waiting.back().is_some_and(|chunk| chunk.bytes.len() + bytes <= WRITE_BYTES);
        if !fits {
            let spare = self.spare.pop();
            let new = || Chunk { bytes: Vec::with_capacity(WRITE_BYTES), sent: Vec::new() };
            self.waiting.push_back(spare.unwrap_or_else(new));
        }
        // There is one: it fits, or was pushed just now.
        let last = self.waiting.len() - 1;
        &mut self.waiting[last]
    }
}

impl Chunk {
    /// Its bytes are no longer in the buffer.
    fn let_go(&self) {
        for sent in &self.sent {
            sent.lane.held.fetch_sub(sent.len, Ordering::Relaxed);
        }
    }

    /// Whether the run no longer waits for it.
    fn is_over(&self) -> bool {
        self.sent.first().and_then(|sent| sent.lane.account.get()).is_some_and(TxAccount::is_over)
    }

    /// Empty, to be used again, unless an unusually long batch made it unusually large.
    fn emptied(mut self) -> Option<Self> {
        self.bytes.clear();
        self.sent.clear();
        (self.bytes.capacity() <= 2 * WRITE_BYTES).then_some(self)
    }
}

impl Sent {
    fn count_sent(&self, packets: u64, bytes: u64) {
        if let Some(account) = self.lane.account.get().filter(|_| packets > 0) {
            account.sent(self.source, packets, bytes);
        }
    }

    fn count_lost(&self, packets: u64) {
        if let Some(account) = self.lane.account.get().filter(|_| packets > 0) {
            account.lost(self.source, packets);
        }
    }
}

/// What the thread has to itself.
struct Writing {
    file: File,
    can_be_cut: bool,
    /// Bytes of whole chunks, and what was in the file before.
    written: u64,
}

/// Where a chunk could not be written any further.
struct Stopped {
    /// Bytes and batches before it.
    at: usize,
    settled: usize,
    cause: io::Error,
}

impl Writing {
    fn run(mut self, writer: &Writer) {
        let mut used = None;
        while let Some(chunk) = writer.next(used.take()) {
            if let Err(stopped) = self.write(&chunk, writer) {
                return self.give_up(&chunk, stopped, writer);
            }
            chunk.let_go();
            used = chunk.emptied();
        }
    }

    fn write(&mut self, chunk: &Chunk, writer: &Writer) -> Result<(), Stopped> {
        let (mut at, mut settled) = (0, 0);
        writer.stuck_since.store(writer.millis(), Ordering::Relaxed);
        while at < chunk.bytes.len() {
            let result = if chunk.is_over() { Err(self.too_late()) } else { (&self.file).write(&chunk.bytes[at..]) };
            match result {
                Ok(0) => return Err(Stopped { at, settled, cause: io::ErrorKind::WriteZero.into() }),
                Ok(bytes) => {
                    writer.stuck_since.store(writer.millis(), Ordering::Relaxed);
                    at += bytes;
                    while let Some(sent) = chunk.sent.get(settled).filter(|sent| sent.end <= at) {
                        sent.count_sent(sent.packets, sent.bytes);
                        settled += 1;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(),
                Err(cause) => return Err(Stopped { at, settled, cause }),
            }
        }
        writer.stuck_since.store(0, Ordering::Relaxed);
        self.written += at as u64;
        Ok(())
    }

    /// Until there may be room in the FIFO, or it is to be looked whether anybody still waits for that.
    fn wait(&self) {
        // Whatever goes wrong, the next write says it.
        let _ = poll(&mut [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)], PollTimeout::from(STUCK_LOOK_MILLIS));
    }

    fn too_late(&self) -> io::Error {
        let why = if self.can_be_cut { "it is too slow" } else { "its reader takes nothing any more" };
        io::Error::new(io::ErrorKind::TimedOut, format!("{why}; what was left is lost"))
    }

    /// Counts what of the chunk was written as sent and the rest as lost, and cuts a file after its last whole packet.
    fn give_up(&self, chunk: &Chunk, stopped: Stopped, writer: &Writer) {
        let Stopped { at, settled, cause } = stopped;
        if self.can_be_cut {
            let whole = whole_packets(&chunk.bytes[..at]).len as u64;
            if let Err(error) = self.file.set_len(self.written + whole) {
                tracing::error!(device = %writer.name, "cannot cut it after its last whole packet: {error}");
            }
        }
        for sent in &chunk.sent[settled..] {
            let Whole { packets, bytes, .. } =
                whole_packets(chunk.bytes.get(sent.end - sent.len..at).unwrap_or_default());
            sent.count_sent(packets, bytes);
            sent.count_lost(sent.packets - packets);
        }
        chunk.let_go();
        writer.fail(chunk, cause);
    }
}

fn is_file(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}
