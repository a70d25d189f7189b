//! Unpacks gzip and zstd on a separate thread, which writes to a pipe. The CPUs that handle packets
//! read the pipe, so they neither spend time on unpacking nor run its code.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use flate2::bufread::MultiGzDecoder;
use nix::sys::signal::{SigSet, Signal};
use rustix::pipe::{PipeFlags, pipe_with};
use steerage_guard::capabilities;

use super::info::CaptureInfo;
use super::input::Input;
use super::{READ_BYTES, pipe, zstd};

/// The first bytes of a gzip file (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// How many bytes show the compression of a file.
pub(super) const MAGIC_BYTES: usize = 4;

/// How many packed bytes are read at a time.
const PACKED_BYTES: usize = 64 << 10;

/// A kind of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// Recognises a packed file by its first bytes.
    pub(super) fn of(head: &[u8]) -> Option<Self> {
        match *head.first_chunk::<MAGIC_BYTES>()? {
            [a, b, ..] if [a, b] == GZIP_MAGIC => Some(Self::Gzip),
            magic => zstd::is_magic(magic).then_some(Self::Zstd),
        }
    }

    /// Unpacks everything. Bytes that can be unpacked are written before more are read.
    ///
    /// # Errors
    /// An error of `from` or `to`, or in the packed bytes.
    pub(super) fn unpack(self, from: impl Read, to: &mut impl Write) -> io::Result<()> {
        let mut from = BufReader::with_capacity(PACKED_BYTES, from);
        match self {
            Self::Gzip => gunzip(from, to),
            Self::Zstd => zstd::unpack(&mut from, to),
        }
    }
}

fn gunzip(from: impl BufRead, to: &mut impl Write) -> io::Result<()> {
    let mut unpacker = MultiGzDecoder::new(from);
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match unpacker.read(&mut bytes)? {
            0 => return Ok(()),
            read => to.write_all(&bytes[..read])?,
        }
    }
}

/// The thread that unpacks. It ends when the last clone of this value is dropped.
#[derive(Clone, Debug)]
pub(super) struct Unpacker {
    jobs: Sender<Job>,
}

/// A packed input.
pub(super) struct Packed {
    pub(super) compression: Compression,
    /// The bytes that were read to recognise the compression.
    pub(super) head: Vec<u8>,
    pub(super) input: Input,
    pub(super) info: Arc<CaptureInfo>,
}

/// What an input unpacks to.
pub(super) struct Unpacked {
    pub(super) pipe: File,
    /// Receives one result after the pipe's last byte.
    pub(super) outcome: Receiver<io::Result<()>>,
}

struct Job {
    packed: Packed,
    reply: Sender<io::Result<Unpacked>>,
}

impl Unpacker {
    /// Starts the thread. It has no capabilities.
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, to_do) = mpsc::channel::<Job>();
        let (ready, is_ready) = mpsc::channel();
        let serve = move || {
            let restricted = restrict_thread();
            let goes_on = restricted.is_ok();
            if ready.send(restricted).is_ok() && goes_on {
                to_do.into_iter().for_each(Job::run);
            }
        };
        thread::Builder::new().name("unpack".to_owned()).spawn(serve)?;
        is_ready.recv().map_err(|_| gone())??;
        Ok(Self { jobs })
    }

    /// Unpacks an input. Drop the pipe to end that early. One input is unpacked at a time.
    pub(super) fn unpack(&self, packed: Packed) -> io::Result<Unpacked> {
        let (reply, unpacked) = mpsc::channel();
        self.jobs.send(Job { packed, reply }).map_err(|_| gone())?;
        unpacked.recv().map_err(|_| gone())?
    }
}

/// Gives up what unpacking does not need. A pipe that nobody reads must end the job and not the
/// process.
fn restrict_thread() -> io::Result<()> {
    SigSet::from(Signal::SIGPIPE).thread_block()?;
    capabilities::drop_all().map_err(io::Error::other)
}

impl Job {
    fn run(self) {
        let (reader, writer) = match pipe_with(PipeFlags::CLOEXEC) {
            Ok((reader, writer)) => (File::from(reader), File::from(writer)),
            Err(error) => return drop(self.reply.send(Err(error.into()))),
        };
        // A smaller pipe works too.
        let _ = pipe::enlarge(&writer);
        let (done, outcome) = mpsc::channel();
        if self.reply.send(Ok(Unpacked { pipe: reader, outcome })).is_err() {
            return;
        }
        let Packed { compression, head, mut input, info } = self.packed;
        let from = Counted { input: &mut input, info: &info, output: writer.as_fd() };
        // An error means that nobody reads any more.
        let _ = done.send(compression.unpack(head.chain(from), &mut &writer));
    }
}

/// Reads the input of a job, and waits until there is data.
struct Counted<'a> {
    input: &'a mut Input,
    info: &'a CaptureInfo,
    output: BorrowedFd<'a>,
}

impl Read for Counted<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read_waiting(to, self.output)?;
        self.info.add_bytes_read(read as u64);
        Ok(read)
    }
}

/// The error if the thread has ended, which it does only by a panic.
pub(super) fn gone() -> io::Error {
    io::Error::other("the thread that unpacks is gone")
}
