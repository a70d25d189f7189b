//! The source of a capture's bytes. A packed input is unpacked by another thread, and read from its
//! pipe.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use nix::sys::epoll::Epoll;

use super::info::CaptureInfo;
use super::input::{Got, Input, Pipe};
use super::unpack::{self, Compression, MAGIC_BYTES, Packed, Unpacked, Unpacker};

/// The threads and epoll instance that sources share.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    /// Becomes readable when a silent pipe has data. All pipes share it, because the waiting CPU
    /// asks for it only once.
    pub(super) waker: Option<Arc<Epoll>>,
    pub(super) unpacker: Option<Unpacker>,
}

/// The bytes of a capture, unpacked.
pub(super) struct Source {
    /// The input, or the pipe to which it is unpacked.
    input: Input,
    /// The first bytes of the input, until they are handed out.
    head: Vec<u8>,
    packing: Packing,
    shared: Shared,
    info: Arc<CaptureInfo>,
    /// How many bytes of earlier files `info` has counted.
    start: u64,
}

#[derive(Debug)]
enum Packing {
    Unknown,
    None,
    /// Another thread unpacks, and sends the outcome at the end.
    Packed(Receiver<io::Result<()>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("packing", &self.packing).finish_non_exhaustive()
    }
}

impl Source {
    pub(super) fn new(input: Input, shared: Shared, info: Arc<CaptureInfo>) -> Self {
        let start = info.bytes_read();
        Self { input, head: Vec::new(), packing: Packing::Unknown, shared, info, start }
    }

    /// Sets the thread that unpacks.
    pub(super) fn unpack_by(&mut self, unpacker: Unpacker) {
        self.shared.unpacker = Some(unpacker);
    }

    /// Whether the input is compressed.
    pub(super) fn is_packed(&self) -> bool {
        matches!(self.packing, Packing::Packed(_))
    }

    /// How many bytes of the file itself have been read.
    pub(super) fn offset(&self) -> u64 {
        self.info.bytes_read() - self.start
    }

    /// Reads the available bytes.
    ///
    /// # Errors
    /// The kernel's error, or an error in the compressed data.
    pub(super) fn fill(&mut self, to: &mut [u8]) -> io::Result<Got> {
        while matches!(self.packing, Packing::Unknown) {
            let mut bytes = [0; MAGIC_BYTES];
            match self.input.read(&mut bytes[self.head.len()..])? {
                Got::Bytes(read) => {
                    self.head.extend(&bytes[self.head.len()..][..read]);
                    self.info.add_bytes_read(read as u64);
                    if self.head.len() == MAGIC_BYTES {
                        self.recognise()?;
                    }
                }
                Got::Later => return Ok(Got::Later),
                Got::End => self.packing = Packing::None,
            }
        }
        if !self.head.is_empty() {
            let read = self.head.len().min(to.len());
            to[..read].copy_from_slice(&self.head[..read]);
            self.head.drain(..read);
            return Ok(Got::Bytes(read));
        }
        let got = self.input.read(to)?;
        match (&self.packing, got) {
            (Packing::Packed(outcome), Got::End) => outcome.recv().unwrap_or_else(|_| Err(unpack::gone()))?,
            (Packing::None, Got::Bytes(read)) => self.info.add_bytes_read(read as u64),
            _ => {}
        }
        Ok(got)
    }

    /// Recognises the packing by the first bytes. If there is one, has the input unpacked.
    fn recognise(&mut self) -> io::Result<()> {
        let Some(compression) = Compression::of(&self.head) else {
            self.packing = Packing::None;
            return Ok(());
        };
        self.input.stop_waking();
        let input = std::mem::replace(&mut self.input, Input::Reader(Box::new(io::empty())));
        let head = std::mem::take(&mut self.head);
        let packed = Packed { compression, head, input, info: Arc::clone(&self.info) };
        let Unpacked { pipe, outcome } = self.shared.unpacker.as_ref().ok_or_else(unpack::gone)?.unpack(packed)?;
        self.input = Input::Pipe(Pipe::new(pipe, self.shared.waker.clone()));
        self.packing = Packing::Packed(outcome);
        Ok(())
    }
}
