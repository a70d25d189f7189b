use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use steerage::{DeviceError, LinkType, Output};

use super::encode::StreamFormat;
use super::inner::{LinksSeen, Unwrap};
use super::pipe;
use super::save::{self, SavedFile};
use super::writer::{StreamFailure, Target, Writer, WriterOptions};

/// The smallest buffer that a user can set, in bytes.
const BUFFER_MIN: usize = 1 << 20;

/// Options for writing a stream.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    writing: WriterOptions,
    unwrap: Option<Unwrap>,
    seen: Arc<LinksSeen>,
}

impl StreamOptions {
    /// Makes options for a stream with the format `format`.
    pub fn new(format: StreamFormat) -> Self {
        Self { writing: WriterOptions::new(format, 4 << 20), unwrap: None, seen: Arc::default() }
    }

    /// Sets the number of bytes that may wait to be written, at least 1 MiB. If the buffer is full,
    /// the stream loses packets of live inputs.
    #[must_use]
    pub fn buffer(mut self, bytes: usize) -> Self {
        self.writing.buffer_bytes = bytes.max(BUFFER_MIN);
        self
    }

    /// While the stream's reader reads nothing, inputs that can wait are paused without a time
    /// limit. The default time limit is
    /// [`OUTPUT_STUCK_AFTER`](steerage::limits::OUTPUT_STUCK_AFTER).
    #[must_use]
    pub fn patient(mut self) -> Self {
        self.writing.patient = true;
        self
    }

    /// Writes only the part of each packet that the function `unwrap` finds.
    #[must_use]
    pub fn unwrapped_by(mut self, unwrap: Unwrap) -> Self {
        self.unwrap = Some(unwrap);
        self
    }

    /// Records link types in `seen`, which several streams share. If the format allows only one
    /// link type, packets whose link type differs from that of the first packet are refused.
    #[must_use]
    pub fn links(mut self, seen: &Arc<LinksSeen>) -> Self {
        self.seen = Arc::clone(seen);
        self
    }
}

/// Makes an output that writes packets as a capture to `to`: a pipe, a FIFO, a socket or a file.
///
/// Packets have the input's timestamps, or else the time at which their batch was handled. A pipe
/// gets the largest size that this user may set. Packets in a pipe count as sent only after they
/// were read. A reader that closes the stream is not an error of the run: unread packets count as
/// lost (`tx_lost`), and all further packets as refused (`tx_refused`).
///
/// # Errors
/// [`DeviceError`] if `to` does not support writing without blocking.
///
/// ```
/// use std::io::Read;
/// use std::os::unix::net::UnixStream;
///
/// use steerage::{Batch, Builder, Cpu, Handler, TxId};
/// use steerage_capture::{StreamFormat, StreamOptions, stream};
///
/// /// Sends everything to the first output.
/// struct SendOn;
///
/// impl Handler for SendOn {
///     type Moved = ();
///     type Report = ();
///
///     fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
///         batch.iter_mut().for_each(|packet| packet.transmit(TxId(0)));
///     }
///
///     fn finish(self, _cpu: &mut Cpu) {}
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (mut reader, writer) = UnixStream::pair()?;
/// let (output, state) = stream("reader", writer, StreamOptions::new(StreamFormat::PcapNanos))?;
/// let input = steerage_device::open("synthetic:packets=10")?;
/// let running = Builder::new().input(input).output(output).build(|_| SendOn)?.start()?;
/// let mut capture = Vec::new();
/// reader.read_to_end(&mut capture)?;
/// assert_eq!(capture[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
/// assert!(state.input_has_ended(), "the reader has seen the end");
/// running.join();
/// # Ok(())
/// # }
/// ```
pub fn stream(
    name: impl Into<String>,
    to: impl Into<OwnedFd>,
    options: StreamOptions,
) -> Result<(Output, Stream), DeviceError> {
    let (name, to) = (name.into(), File::from(to.into()));
    let failed = |error: nix::errno::Errno| DeviceError::new(name.clone(), "write to", io::Error::from(error));
    let flags = OFlag::from_bits_retain(fcntl(to.as_fd(), FcntlArg::F_GETFL).map_err(failed)?);
    fcntl(to.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map_err(failed)?;
    let StreamOptions { writing, unwrap, seen } = options;
    let writer = Arc::new(Writer::new(name.clone(), WriterOptions { watched: pipe::is_pipe(&to), ..writing }));
    writer.append(&writing.format.file_head());
    let stream = Stream { file: Arc::new(SavedFile::new(writer).part_of(seen, unwrap)) };
    Ok((save::output(name, "stream", Arc::clone(&stream.file), Target::File(to, 0)), stream))
}

/// Observes and ends a stream of [`stream()`] while it is being written.
#[derive(Clone, Debug)]
pub struct Stream {
    file: Arc<SavedFile>,
}

impl Stream {
    /// Returns the bytes written so far, and how many of them are unread if the stream is a pipe.
    pub fn written(&self) -> (u64, usize) {
        self.file.writer.written()
    }

    /// Returns the number of bytes that wait to be written.
    pub fn waiting(&self) -> usize {
        self.file.writer.waiting()
    }

    /// Ends the stream before the instance ends. Call `end` only after the last packet was sent. A
    /// stream without packets becomes a capture with the link type of the other streams, or
    /// Ethernet.
    pub fn end(&self) {
        self.file.begin(self.file.seen.as_ref().and_then(|seen| seen.first()).unwrap_or(LinkType::ETHERNET));
        self.file.writer.end_input();
    }

    /// Returns true if the stream has failed, or if all bytes were written (and read, from a pipe).
    pub fn has_ended(&self) -> bool {
        self.file.writer.has_ended()
    }

    /// Returns true if [`end`](Self::end) was called, or if the instance has ended and all bytes
    /// were written. `input_has_ended` returns true before the reader sees the end of the stream.
    pub fn input_has_ended(&self) -> bool {
        self.file.writer.input_has_ended()
    }

    /// Drops the unread packets, which count as lost, and refuses later packets. Call this function
    /// if the reading program has ended, but another process may have the pipe open.
    pub fn abandon(&self) {
        self.file.writer.abandon();
    }

    /// Returns the reason why the stream could not be written to its end.
    pub fn failure(&self) -> Option<StreamFailure> {
        self.file.writer.failure()
    }
}
