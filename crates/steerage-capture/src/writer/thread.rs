use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::WallTime;
use steerage_guard::file::FileSeries;

use super::super::encode::Whole;
use super::super::pipe::{self, Room};
use super::Writer;
use super::chunk::Chunk;

/// The interval at which a writer checks whether the run still waits for a stuck output.
const STUCK_LOOK_MILLIS: u8 = 20;

pub(super) struct Writing {
    /// The current file, or `None` before the first file of a series.
    file: Option<Arc<File>>,
    series: Option<FileSeries>,
    can_be_cut: bool,
    /// The number of bytes of the current file, without those of an incomplete chunk.
    written: u64,
    /// The pipe to which packets are written, if its reader is watched.
    pipe: Option<Room>,
    /// Chunks that may be unread in the pipe, each with the number of bytes written up to its end.
    unread: VecDeque<(u64, Chunk)>,
}

struct Stopped {
    /// The number of the chunk's bytes that were written. The first `settled` batches of the chunk
    /// were already counted as sent.
    at: usize,
    settled: usize,
    cause: io::Error,
}

impl Writing {
    pub(super) fn new(file: Arc<File>, written: u64, watched: bool) -> Self {
        let pipe = watched.then(|| pipe::enlarge(&file).ok()).flatten().map(Room::new);
        let can_be_cut = file.metadata().is_ok_and(|metadata| metadata.is_file());
        Self { can_be_cut, file: Some(file), series: None, written, pipe, unread: VecDeque::new() }
    }

    pub(super) fn series(series: FileSeries) -> Self {
        Self { can_be_cut: true, file: None, series: Some(series), written: 0, pipe: None, unread: VecDeque::new() }
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_deref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn next_file(&mut self, time: u64) -> io::Result<()> {
        #[cfg(test)]
        fault::before_write(1)?;
        if let Some(series) = &mut self.series {
            self.file = Some(Arc::new(series.create(WallTime::from_nanos(time).into())?));
            self.written = 0;
        }
        Ok(())
    }

    pub(super) fn run(mut self, writer: &Writer) {
        let mut used = None;
        while let Some(chunk) = writer.next(used.take()) {
            if let Err(stopped) = self.write(&chunk, writer) {
                return self.give_up(chunk, stopped, writer);
            }
            chunk.let_go();
            used = self.keep_until_read(chunk);
        }
        // `input_ended` is set before the reader sees the end of the stream. A reader that ends
        // after its input is therefore not mistaken for a reader that ended too early.
        writer.input_ended.store(true, Ordering::Relaxed);
        let is_over = || self.unread.front().is_some_and(|(_, chunk)| chunk.is_over());
        if let (Some(_), Some(file), false) = (&self.pipe, &self.file, is_over()) {
            let unread = pipe::wait_until_read(file, || is_over() || writer.is_abandoned());
            let lost = unread > 0 && !is_over();
            if lost {
                writer.fail(None, io::ErrorKind::BrokenPipe.into());
            }
            self.settle_unread(if lost { unread } else { 0 }, 0, writer);
        }
        self.settle_unread(0, 0, writer);
    }

    fn write(&mut self, chunk: &Chunk, writer: &Writer) -> Result<(), Stopped> {
        let (mut at, mut settled) = (0, 0);
        writer.stuck_since.store(writer.millis(), Ordering::Relaxed);
        if let Some(time) = chunk.begins {
            self.next_file(time).map_err(|cause| Stopped { at, settled, cause })?;
        }
        while at < chunk.bytes.len() {
            let result = if chunk.is_over() {
                Err(self.too_late())
            } else if writer.is_abandoned() {
                Err(io::ErrorKind::BrokenPipe.into())
            } else {
                self.write_some(&chunk.bytes[at..])
            };
            match result {
                Ok(0) => return Err(Stopped { at, settled, cause: io::ErrorKind::WriteZero.into() }),
                Ok(bytes) => {
                    writer.stuck_since.store(writer.millis(), Ordering::Relaxed);
                    at += bytes;
                    writer.written.store(self.written + at as u64, Ordering::Relaxed);
                    if self.pipe.is_some() {
                        continue;
                    }
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

    /// Waits for space in the FIFO, but only for a short time, so that the caller can check whether
    /// the run has stopped waiting.
    fn wait(&mut self) {
        let look = PollTimeout::from(STUCK_LOOK_MILLIS);
        match (&mut self.pipe, &self.file) {
            (Some(room), Some(file)) => room.wait(file, look),
            // Errors of `poll` are ignored, because the next write reports them.
            (None, Some(file)) => drop(poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLOUT)], look)),
            (_, None) => {}
        }
    }

    /// Keeps a written chunk while it may be in the pipe. Returns a chunk for reuse.
    fn keep_until_read(&mut self, chunk: Chunk) -> Option<Chunk> {
        let Some(size) = self.pipe.as_ref().map(Room::size) else { return chunk.emptied() };
        self.unread.push_back((self.written, chunk));
        // The pipe contains at most the last `size` bytes, so its reader has read all earlier
        // bytes.
        let (end, _) = self.unread.front()?;
        if end + size as u64 > self.written {
            return None;
        }
        let (_, read) = self.unread.pop_front()?;
        read.sent.iter().for_each(|sent| sent.count_sent(sent.packets, sent.bytes));
        read.emptied()
    }

    /// Counts packets in the last `unread` bytes of the pipe as lost, and earlier packets as sent.
    /// `at` bytes were written after the last complete chunk.
    fn settle_unread(&mut self, unread: usize, at: usize, writer: &Writer) {
        let read = (self.written + at as u64).saturating_sub(unread as u64);
        for (end, chunk) in std::mem::take(&mut self.unread) {
            let read_of_it = (read + chunk.bytes.len() as u64).saturating_sub(end);
            settle(&chunk, 0, (read_of_it as usize).min(chunk.bytes.len()), writer);
        }
    }

    fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(test)]
        let bytes = &bytes[..fault::before_write(bytes.len())?];
        self.file()?.write(bytes)
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        #[cfg(test)]
        fault::before()?;
        self.file()?.set_len(length)
    }

    fn too_late(&self) -> io::Error {
        let why = if self.can_be_cut { "it is too slow" } else { "its reader takes nothing any more" };
        io::Error::new(io::ErrorKind::TimedOut, format!("{why}; what was left is lost"))
    }

    /// Counts written packets (in a pipe, those that were also read) as sent, and all other packets
    /// of the chunk as lost. Cuts a file after its last complete packet.
    fn give_up(&mut self, chunk: Chunk, stopped: Stopped, writer: &Writer) {
        let Stopped { mut at, settled, cause } = stopped;
        if self.can_be_cut && self.file.is_some() {
            let whole = chunk.whole(at, writer.options.format) as u64;
            if let Err(error) = self.cut(self.written + whole) {
                tracing::error!(device = %writer.name, "cannot cut it after its last whole packet: {error}");
            }
        }
        // The error is recorded first, because a run may end as soon as its last packet is counted.
        writer.fail(Some(&chunk), cause);
        if self.pipe.is_some() {
            let unread = self.file.as_deref().map_or(0, pipe::unread);
            self.settle_unread(unread, at, writer);
            at = at.saturating_sub(unread);
        }
        settle(&chunk, settled, at, writer);
        chunk.let_go();
    }
}

/// Counts the chunk's packets from batch `from` on. Packets that are complete within the first `at`
/// bytes count as sent, all other packets as lost.
fn settle(chunk: &Chunk, from: usize, at: usize, writer: &Writer) {
    for sent in chunk.sent.get(from..).unwrap_or_default() {
        let start = sent.start();
        let within = chunk.bytes.get(start..at.clamp(start, sent.end)).unwrap_or_default();
        let Whole { packets, bytes, .. } = writer.options.format.whole(within);
        sent.count_sent(packets, bytes);
        sent.count_lost(sent.packets - packets);
    }
}

#[cfg(test)]
pub(super) mod fault {
    //! Test functions that make the writes of the test's thread fail.

    use std::cell::Cell;
    use std::io;

    thread_local! {
        /// The number of bytes until a write fails with an injected error, and whether cutting the
        /// file also fails.
        static ROOM: Cell<(usize, bool)> = const { Cell::new((usize::MAX, false)) };
    }

    /// Writes fail with ENOSPC after `bytes` bytes. If `for_good` is true, cutting the file also
    /// fails.
    pub(in super::super) fn fill_after(bytes: usize, for_good: bool) {
        ROOM.set((bytes, for_good));
    }

    pub(super) fn before() -> io::Result<()> {
        if ROOM.get().1 { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    pub(super) fn before_write(bytes: usize) -> io::Result<usize> {
        let (room, for_good) = ROOM.get();
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        ROOM.set((room - bytes.min(room), for_good));
        Ok(bytes.min(room))
    }
}
