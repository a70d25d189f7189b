//! Receives super-frames. Each is a packet of up to 64 KiB that stands for many packets.
//!
//! Super-frames do not fit into pages. So packets are read into blocks, one after the other, and
//! lent from there. A block is filled again when its last packet has returned. The blocks of a
//! queue limit how much memory its packets use in all backlogs, and packets for one CPU may hold
//! only a part of them. If all blocks are out nevertheless, packets that fit into a page are still
//! received, into pages. Super-frames are lost and counted in that case.

use std::io;
use std::sync::Arc;

use steerage::LinkType;
use steerage::device::{
    Blocks, Claim, Completion, Completions, DeviceCounts, FrameHeader, OFFLOAD_BYTES, Opened, Polled,
};
use steerage::flow::offload::{Offload, VIRTIO_BYTES};
use steerage::limits::HEADROOM;

use super::TunFd;
use super::queue::NO_PAGE_WAIT;
use crate::memory::OPEN_ONCE;

/// The size of a block. Several super-frames fit, so that little is left unused at the end.
const BLOCK_BYTES: usize = 256 << 10;

/// The number of blocks, for 32 MiB in total. The kernel provides a page of them at its first use,
/// and the queue always takes the first free block. So a queue whose packets return quickly touches
/// few of them.
const BLOCKS: usize = 128;

/// The longest packet in bytes: 65,535 for IP, after an Ethernet header with two VLAN tags.
const PACKET_BYTES_MAX: usize = 65_535 + 22;

/// The most bytes for one poll to receive. Finished packets return between two polls. If a poll received
/// more, the memory would be out of the caches by its next use.
const POLL_BYTES: usize = 1 << 20;

/// The device's counts, in addition to the frames of the ledger.
const COUNTS: &[&str] = &["super_frames", "wire_packets", "wire_bytes", "bad_offloads", "no_block"];

/// The blocks of one queue, and counts of the received packets.
#[derive(Debug)]
pub(super) struct Lent {
    claim: Option<Claim>,
    block: usize,
    /// The end of packets that do not fit into a page while all blocks are out.
    scratch: Box<[u8]>,
    counts: Arc<DeviceCounts>,
    /// The counts, in the order of [`COUNTS`].
    counted: [u64; COUNTS.len()],
}

/// The outcome of a read.
enum Read {
    Taken(usize),
    Lost,
    NoPage,
    Empty,
}

impl Lent {
    pub(super) fn new() -> Self {
        let counts = Arc::new(DeviceCounts::new(COUNTS));
        let scratch = vec![0; PACKET_BYTES_MAX].into_boxed_slice();
        Self { claim: None, block: 0, scratch, counts, counted: [0; COUNTS.len()] }
    }

    pub(super) fn open(&mut self) -> io::Result<Opened> {
        if self.claim.is_some() {
            return Err(io::Error::other(OPEN_ONCE));
        }
        let (blocks, claim) = Blocks::map(BLOCKS, BLOCK_BYTES).map_err(io::Error::other)?;
        self.claim = Some(claim);
        let mut opened = Opened::lending(blocks.shared(BLOCKS as u32));
        opened.counts = Some(Arc::clone(&self.counts));
        Ok(opened)
    }

    /// Receives up to `budget` packets.
    pub(super) fn take(
        &mut self,
        fd: &TunFd,
        link: LinkType,
        out: &mut Completions<'_>,
        budget: usize,
    ) -> io::Result<Polled> {
        let (mut bytes, mut polled) = (0, Polled::More);
        for _ in 0..budget {
            let read = if self.find_block(out)? { self.lend(fd, link, out) } else { self.copy(fd, link, out) };
            match read {
                Ok(Read::Taken(len)) => bytes += len,
                Ok(Read::Lost) => out.lost(1),
                Ok(Read::NoPage) => polled = Polled::NotBefore(out.now() + NO_PAGE_WAIT),
                Ok(Read::Empty) => polled = Polled::Drained,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
            if polled != Polled::More {
                break;
            }
            if bytes >= POLL_BYTES {
                // There are more packets, but finished ones must return first.
                polled = Polled::NotBefore(out.now());
                break;
            }
        }
        self.counted.iter().enumerate().for_each(|(nth, count)| self.counts.raise_to(nth, *count));
        Ok(polled)
    }

    /// Finds a block with room for any packet. Returns false if there is none.
    fn find_block(&mut self, out: &mut Completions<'_>) -> io::Result<bool> {
        let claim = self.claim.as_ref().ok_or_else(no_blocks)?;
        let room = |block: usize, out: &mut Completions<'_>| {
            let lending = out.lending(claim, block, BLOCK_BYTES);
            lending.is_some_and(|mut lending| lending.bytes().len() >= OFFLOAD_BYTES + PACKET_BYTES_MAX)
        };
        if room(self.block, out) {
            return Ok(true);
        }
        let blocks = out.blocks(claim).ok_or_else(no_blocks)?;
        let free = (0..blocks.count()).find(|block| blocks.out(*block) == 0);
        self.block = free.unwrap_or(self.block);
        Ok(free.is_some())
    }

    /// Receives a packet into the block.
    fn lend(&mut self, fd: &TunFd, link: LinkType, out: &mut Completions<'_>) -> io::Result<Read> {
        let claim = self.claim.as_ref().ok_or_else(no_blocks)?;
        let mut lending = out.lending(claim, self.block, BLOCK_BYTES).ok_or_else(no_blocks)?;
        let mut told = [0; VIRTIO_BYTES];
        let room = &mut lending.bytes()[OFFLOAD_BYTES..];
        let Some(len) = read(|| fd.read(&mut told, room))? else { return Ok(Read::Empty) };
        let offload = match Offload::from_virtio(&told, &room[..len.min(room.len())], link) {
            Ok(offload) if (1..=PACKET_BYTES_MAX).contains(&len) => offload,
            _ => {
                self.counted[3] += 1;
                return Ok(Read::Lost);
            }
        };
        let header = FrameHeader { nanos: FrameHeader::NO_TIME, wire_len: len as u32, link: link.0, interface: 0 };
        let pushed = match offload {
            Some(offload) => lending.push_offload(OFFLOAD_BYTES, len, (header, offload), None),
            None => lending.push(OFFLOAD_BYTES, len, header),
        };
        self.count(len, offload.as_ref());
        Ok(if pushed { Read::Taken(len) } else { Read::Lost })
    }

    /// Receives a packet into a page, because all blocks are out.
    #[cold]
    fn copy(&mut self, fd: &TunFd, link: LinkType, out: &mut Completions<'_>) -> io::Result<Read> {
        let Some(mut page) = out.take_page() else { return Ok(Read::NoPage) };
        let mut told = [0; VIRTIO_BYTES];
        let (room, scratch) = (&mut out.page_mut(&mut page)[HEADROOM..], &mut self.scratch);
        let read = read(|| fd.read_far(&mut told, room, scratch));
        let fits = matches!(read, Ok(Some(len)) if (1..=room.len()).contains(&len));
        let (Ok(Some(len)), true) = (&read, fits) else {
            out.give_page(page);
            return read.map(|len| {
                self.counted[4] += u64::from(len.is_some());
                if len.is_some() { Read::Lost } else { Read::Empty }
            });
        };
        let packet = &mut room[..*len];
        match Offload::from_virtio(&told, packet, link) {
            Ok(offload) if offload.is_none_or(|offload| !offload.is_super_frame()) => {
                offload.inspect(|offload| offload.finish(packet));
            }
            wrong => {
                self.counted[if wrong.is_err() { 3 } else { 4 }] += 1;
                out.give_page(page);
                return Ok(Read::Lost);
            }
        }
        out.push(Completion::new(page, HEADROOM, *len), *len);
        self.count(*len, None);
        Ok(Read::Taken(*len))
    }

    fn count(&mut self, len: usize, offload: Option<&Offload>) {
        self.counted[0] += u64::from(offload.is_some_and(Offload::is_super_frame));
        self.counted[1] += offload.map_or(1, |offload| offload.packets(len)) as u64;
        self.counted[2] += offload.map_or(len, |offload| offload.wire_bytes(len)) as u64;
    }
}

/// The length of the packet after its header. `None` if there was no packet.
fn read(read: impl FnOnce() -> io::Result<usize>) -> io::Result<Option<usize>> {
    match read() {
        Ok(bytes) => Ok(Some(bytes.saturating_sub(VIRTIO_BYTES))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cold]
fn no_blocks() -> io::Error {
    io::Error::other("the queue is polled with the memory of another queue")
}
