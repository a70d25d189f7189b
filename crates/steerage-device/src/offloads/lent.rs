//! Receives super-frames.
//!
//! Super-frames do not fit into pages. The device receives them one after another into blocks of
//! memory, in which handlers read them ("lent" frames). A block is filled again when handlers have
//! finished all of its frames. Frames for one CPU may use only a part of the blocks. While all
//! blocks are lent, short frames are received into pages, and super-frames are lost and counted.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use steerage::LinkType;
use steerage::device::{Blocks, Claim, Completions, DeviceCounts, Filled, FrameHeader, Lending, Opened, Polled};
use steerage::flow::offload::Offload;

/// The maximum number of bytes per poll. Between polls, the queue gets back the memory of frames
/// that handlers have finished. After more than `POLL_BYTES` bytes, the memory would leave the
/// CPU's caches before it is filled again.
const POLL_BYTES: usize = 1 << 20;

/// The time after which the queue polls again if all pages are in use. A TUN's queue holds 500
/// packets by default, which arrive in 100 us at five million packets per second.
pub(crate) const NO_PAGE_WAIT: Duration = Duration::from_micros(100);

/// The indices of the counts that a device adds to the run's statistics (the ledger). `BAD`
/// (invalid frames) and `NO_BLOCK` (frames that arrived while all blocks were lent) are losses.
pub(crate) const SUPER_FRAMES: usize = 0;
pub(crate) const WIRE_PACKETS: usize = 1;
pub(crate) const WIRE_BYTES: usize = 2;
pub(crate) const BAD: usize = 3;
pub(crate) const NO_BLOCK: usize = 4;

pub(crate) trait Source {
    /// Receives up to `most` frames, and calls [`Room::lend`] for each frame.
    ///
    /// # Errors
    /// The error of the system call.
    fn receive(&mut self, into: &mut Room<'_, '_>, most: usize) -> io::Result<Received>;

    /// Receives one frame into a page. Bytes that do not fit into `room` are written to `rest`.
    ///
    /// # Errors
    /// The error of the system call.
    fn receive_short(&mut self, room: &mut [u8], rest: &mut [u8]) -> io::Result<Result<Short, Unfit>>;

    /// Handles an error after which the queue can continue.
    ///
    /// # Errors
    /// Any other error.
    fn forgive(&mut self, error: io::Error) -> io::Result<()> {
        Err(error)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) frames: usize,
    pub(crate) more: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) offload: Option<Offload>,
}

impl Short {
    /// Moves the frame to the beginning of `room`, with a complete checksum. Returns its length.
    fn finish(self, room: &mut [u8]) -> Result<usize, Unfit> {
        let Self { at, len, offload } = self;
        let is_whole = offload.is_none_or(|offload| !offload.is_super_frame());
        let frame = room.get_mut(at..at + len).filter(|_| is_whole).ok_or(Unfit(NO_BLOCK))?;
        offload.inspect(|offload| offload.finish(frame));
        room.copy_within(at..at + len, 0);
        Ok(len)
    }
}

/// Why a frame is lost: the index of the count to increase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfit(pub(crate) usize);

#[derive(Debug)]
pub(crate) struct Room<'l, 'm> {
    pub(crate) lending: &'l mut Lending<'m>,
    counted: &'l mut [u64],
    link: LinkType,
    lost: u64,
    bytes: usize,
}

impl Room<'_, '_> {
    /// `at` is an offset in the block's free part.
    #[inline]
    pub(crate) fn lend(&mut self, at: usize, len: usize, offload: Option<Offload>) {
        let header = FrameHeader { nanos: FrameHeader::NO_TIME, wire_len: len as u32, link: self.link.0, interface: 0 };
        let pushed = match offload {
            Some(offload) => self.lending.push_offload(at, len, (header, offload), None),
            None => self.lending.push(at, len, header),
        };
        if !pushed {
            self.lost += 1;
            return;
        }
        self.bytes += len;
        count(self.counted, len, offload.as_ref());
    }

    #[cold]
    pub(crate) fn lose(&mut self, Unfit(reason): Unfit) {
        self.lost += 1;
        self.counted[reason] += 1;
    }
}

#[derive(Debug)]
pub(crate) struct Lent {
    limits: Limits,
    claim: Option<Claim>,
    block: usize,
    /// A buffer, never read, for the bytes of a frame that do not fit into a page.
    scratch: Box<[u8]>,
    counts: Arc<DeviceCounts>,
    counted: Box<[u64]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) blocks: usize,
    pub(crate) block_bytes: usize,
    pub(crate) frame_bytes: usize,
    /// A block with fewer free bytes than `room_bytes` gets no more frames.
    pub(crate) room_bytes: usize,
    pub(crate) link: LinkType,
}

impl Lent {
    /// `counts`: the device's counts, of which this module increases only the first `counted`.
    pub(crate) fn new(limits: Limits, counts: Arc<DeviceCounts>, counted: usize) -> Self {
        let scratch = vec![0; limits.frame_bytes].into_boxed_slice();
        Self { limits, claim: None, block: 0, scratch, counts, counted: vec![0; counted].into() }
    }

    pub(crate) fn open(&mut self) -> io::Result<Opened> {
        if self.claim.is_some() {
            return Err(io::Error::other("open a queue once"));
        }
        let (blocks, claim) = Blocks::map(self.limits.blocks, self.limits.block_bytes).map_err(io::Error::other)?;
        self.claim = Some(claim);
        let mut opened = Opened::lending(blocks.shared(self.limits.blocks as u32));
        opened.counts = Some(Arc::clone(&self.counts));
        Ok(opened)
    }

    pub(crate) fn add(&mut self, nth: usize, count: u64) {
        self.counted[nth] += count;
    }

    pub(crate) fn show(&self) {
        self.counted.iter().enumerate().for_each(|(nth, count)| self.counts.raise_to(nth, *count));
    }

    pub(crate) fn take(
        &mut self,
        source: &mut impl Source,
        out: &mut Completions<'_>,
        budget: usize,
    ) -> io::Result<Polled> {
        let (mut left, mut bytes) = (budget, 0);
        while left > 0 {
            let taken = if self.find_block(out)? {
                self.lend(source, out, (left, &mut bytes))
            } else {
                self.copy(source, out, &mut bytes)
            };
            match taken {
                Ok(Some(Received { frames, more: true })) => left = left.saturating_sub(frames.max(1)),
                Ok(Some(Received { more: false, .. })) => return Ok(Polled::Drained),
                Ok(None) => return Ok(Polled::NotBefore(out.now() + NO_PAGE_WAIT)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Polled::Drained),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Polled::More),
                Err(error) => return source.forgive(error).map(|()| Polled::More),
            }
            if bytes >= POLL_BYTES {
                // Finished frames must be returned before more frames are received.
                return Ok(Polled::NotBefore(out.now()));
            }
        }
        Ok(Polled::More)
    }

    fn find_block(&mut self, out: &mut Completions<'_>) -> io::Result<bool> {
        let (claim, Limits { block_bytes, room_bytes, .. }) = (self.claim.as_ref().ok_or_else(no_blocks)?, self.limits);
        let lending = out.lending(claim, self.block, block_bytes);
        if lending.is_some_and(|mut lending| lending.bytes().len() >= room_bytes) {
            return Ok(true);
        }
        let blocks = out.blocks(claim).ok_or_else(no_blocks)?;
        // The queue takes the lowest free block, so that it uses few blocks if handlers are quick.
        let free = (0..blocks.count()).find(|block| blocks.out(*block) == 0);
        self.block = free.unwrap_or(self.block);
        Ok(free.is_some())
    }

    fn lend(
        &mut self,
        source: &mut impl Source,
        out: &mut Completions<'_>,
        (most, bytes): (usize, &mut usize),
    ) -> io::Result<Option<Received>> {
        let claim = self.claim.as_ref().ok_or_else(no_blocks)?;
        let mut lending = out.lending(claim, self.block, self.limits.block_bytes).ok_or_else(no_blocks)?;
        let (lending, counted) = (&mut lending, &mut self.counted[..]);
        let mut into = Room { lending, counted, link: self.limits.link, lost: 0, bytes: 0 };
        let received = source.receive(&mut into, most);
        let lost = into.lost;
        *bytes += into.bytes;
        out.lost(lost);
        received.map(Some)
    }

    /// Receives a frame into a page. Returns `None` if no page is free.
    #[cold]
    fn copy(
        &mut self,
        source: &mut impl Source,
        out: &mut Completions<'_>,
        bytes: &mut usize,
    ) -> io::Result<Option<Received>> {
        let (counted, mut came) = (&mut self.counted, None);
        out.fill(1, |room| {
            let short = source.receive_short(room, &mut self.scratch);
            let finished = short.map(|short| short.and_then(|short| short.finish(room)));
            let len = *came.insert(finished).as_ref().ok()?.as_ref().ok()?;
            Some(Filled::whole(len))
        });
        match came {
            None => return Ok(None),
            Some(Err(error)) => return Err(error),
            Some(Ok(Ok(len))) => {
                count(counted, len, None);
                *bytes += len;
            }
            Some(Ok(Err(Unfit(reason)))) => {
                counted[reason] += 1;
                out.lost(1);
            }
        }
        Ok(Some(Received { frames: 1, more: true }))
    }
}

fn count(counted: &mut [u64], len: usize, offload: Option<&Offload>) {
    counted[SUPER_FRAMES] += u64::from(offload.is_some_and(Offload::is_super_frame));
    counted[WIRE_PACKETS] += offload.map_or(1, |offload| offload.packets(len)) as u64;
    counted[WIRE_BYTES] += offload.map_or(len, |offload| offload.wire_bytes(len)) as u64;
}

#[cold]
fn no_blocks() -> io::Error {
    io::Error::other("the queue is polled with the memory of another queue")
}
