//! A receive queue: one socket.
//!
//! One system call receives several datagrams, each into 64 KiB of a block. Datagrams that were
//! merged stay there. Short ones are moved to the end of the frame before them, so that a block
//! holds many: their bytes are in the cache anyway. If all blocks are out, short datagrams are
//! received into pages, and merged ones are lost and counted, as with a TUN.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use steerage::device::{
    Blocks, Capabilities, Claim, Completion, Completions, DeviceCounts, FrameHeader, OFFLOAD_BYTES, Opened, Polled,
    Region, RxQueue,
};
use steerage::flow::offload::Offload;
use steerage::limits::HEADROOM;
use steerage::{DeviceError, LinkType, Timestamp};

use super::headers::{Ends, HEADERS_MAX, address_of, header_bytes, told, write};
use super::sys::{RECEIVED_MAX, Received, drops, receive, receive_one};
use super::{Shared, is_of_a_peer};
use crate::memory::OPEN_ONCE;

/// The longest payload that is received.
const PAYLOAD_MAX: usize = 65_535;
/// The bytes in front of a payload.
const FRONT: usize = OFFLOAD_BYTES + HEADERS_MAX;
/// The distance of two payloads in a block.
const STRIDE: usize = (FRONT + PAYLOAD_MAX).next_multiple_of(8);
/// The size and number of blocks, for about 32 MiB. The kernel provides their pages at first use.
const BLOCK_BYTES: usize = RECEIVED_MAX * STRIDE;
const BLOCKS: usize = 32;
/// A block with less room than this many datagrams is left, so that system calls stay worthwhile.
const ROOM_LEAST: usize = 4;
/// Payloads up to this length are moved together.
const SHORT: usize = 4096;
/// The most bytes for one poll to receive, as with a TUN.
const POLL_BYTES: usize = 1 << 20;
/// How long to wait if all pages are in use.
const NO_PAGE_WAIT: Duration = Duration::from_micros(100);
/// How often the queue asks the kernel for drops and errors.
const LOOK: Duration = Duration::from_millis(10);
/// The most packets that are taken after a stop.
const STOP_PACKETS: usize = 4096;

const COUNTS: &[&str] = &[
    "super_frames",
    "wire_packets",
    "wire_bytes",
    "bad_datagrams",
    "no_block",
    "truncated",
    "socket_drops",
    "icmp_errors",
    "too_long",
    "path_mtu",
];
const SUPER_FRAMES: usize = 0;
const WIRE_PACKETS: usize = 1;
const WIRE_BYTES: usize = 2;
const BAD: usize = 3;
const NO_BLOCK: usize = 4;
const TRUNCATED: usize = 5;
const DROPS: usize = 6;
const ICMP_ERRORS: usize = 7;
const TOO_LONG: usize = 8;
const PATH_MTU: usize = 9;

#[derive(Debug)]
pub(super) struct Queue {
    shared: Arc<Shared>,
    nth: usize,
    claim: Option<Claim>,
    block: usize,
    received: Box<[Received; RECEIVED_MAX]>,
    /// The end of datagrams that do not fit a page.
    scratch: Box<[u8]>,
    counts: Arc<DeviceCounts>,
    counted: [u64; COUNTS.len()],
    drops: u32,
    looked: Timestamp,
    /// After a stop: how many more packets the queue takes at most.
    left: Option<usize>,
}

/// The outcome of one system call.
enum Read {
    /// This many bytes, and whether there may be more.
    Taken(usize, bool),
    NoPage,
}

impl Queue {
    pub(super) fn new(shared: Arc<Shared>, nth: usize) -> Self {
        let scratch = vec![0; PAYLOAD_MAX].into_boxed_slice();
        let counts = Arc::new(DeviceCounts::new(COUNTS));
        let received = Box::new([Received::EMPTY; RECEIVED_MAX]);
        let (counted, looked) = ([0; COUNTS.len()], Timestamp::ZERO);
        Self { shared, nth, claim: None, block: 0, received, scratch, counts, counted, drops: 0, looked, left: None }
    }

    fn take(&mut self, out: &mut Completions<'_>, budget: usize) -> io::Result<Polled> {
        let (first, mut bytes) = (out.len(), 0);
        while out.len() - first < budget {
            let left = budget - (out.len() - first);
            let read = if self.find_block(out)? { self.lend(out, left) } else { self.copy(out) };
            match read {
                Ok(Read::Taken(more, true)) => bytes += more,
                Ok(Read::Taken(_, false)) => return Ok(Polled::Drained),
                Ok(Read::NoPage) => return Ok(Polled::NotBefore(out.now() + NO_PAGE_WAIT)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Polled::Drained),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Polled::More),
                Err(error) if is_of_a_peer(&error) => {
                    self.shared.take_errors(self.nth);
                    return Ok(Polled::More);
                }
                Err(error) => return Err(error),
            }
            if bytes >= POLL_BYTES {
                // There may be more, but finished packets must return first.
                return Ok(Polled::NotBefore(out.now()));
            }
        }
        Ok(Polled::More)
    }

    /// Finds a block with room for some datagrams. Returns false if there is none.
    fn find_block(&mut self, out: &mut Completions<'_>) -> io::Result<bool> {
        let claim = self.claim.as_ref().ok_or_else(no_blocks)?;
        let lending = out.lending(claim, self.block, BLOCK_BYTES);
        if lending.is_some_and(|mut lending| lending.bytes().len() >= ROOM_LEAST * STRIDE) {
            return Ok(true);
        }
        let blocks = out.blocks(claim).ok_or_else(no_blocks)?;
        let free = (0..blocks.count()).find(|block| blocks.out(*block) == 0);
        self.block = free.unwrap_or(self.block);
        Ok(free.is_some())
    }

    /// Receives datagrams into the block.
    fn lend(&mut self, out: &mut Completions<'_>, most: usize) -> io::Result<Read> {
        let claim = self.claim.as_ref().ok_or_else(no_blocks)?;
        let mut lending = out.lending(claim, self.block, BLOCK_BYTES).ok_or_else(no_blocks)?;
        let (start, room) = (lending.offset(), lending.bytes().len());
        let asked = most.min(room / STRIDE).min(RECEIVED_MAX);
        let (fd, into) = (self.shared.sockets[self.nth].as_fd(), &mut self.received[..asked]);
        let came = receive(fd, lending.bytes(), (FRONT, STRIDE, PAYLOAD_MAX), into)?;
        let (mut bytes, mut lost) = (0, 0);
        for nth in 0..came {
            let received = &self.received[nth];
            let Some((ends, segment)) = ends(received, &self.shared, &mut self.counted) else {
                lost += 1;
                continue;
            };
            let headers = header_bytes(&ends);
            // Earlier frames of this block have moved its beginning.
            let from = start + nth * STRIDE + FRONT - lending.offset();
            let len = headers + received.len;
            let at = if received.len <= SHORT { OFFLOAD_BYTES.min(from - headers) } else { from - headers };
            let free = lending.bytes();
            if at + headers != from {
                free.copy_within(from..from + received.len, at + headers);
            }
            let Ok(offload) = write(&ends, segment, &mut free[at..at + len]) else {
                (self.counted[BAD], lost) = (self.counted[BAD] + 1, lost + 1);
                continue;
            };
            let header =
                FrameHeader { nanos: FrameHeader::NO_TIME, wire_len: len as u32, link: LinkType::RAW.0, interface: 0 };
            let pushed = match offload {
                Some(offload) => lending.push_offload(at, len, (header, offload), None),
                None => lending.push(at, len, header),
            };
            lost += u64::from(!pushed);
            bytes += len;
            count(&mut self.counted, len, offload.as_ref());
        }
        out.lost(lost);
        Ok(Read::Taken(bytes, came == asked))
    }

    /// Receives a datagram into a page, because all blocks are out.
    #[cold]
    fn copy(&mut self, out: &mut Completions<'_>) -> io::Result<Read> {
        let Some(mut page) = out.take_page() else { return Ok(Read::NoPage) };
        let (fd, received) = (self.shared.sockets[self.nth].as_fd(), &mut self.received[0]);
        let room = &mut out.page_mut(&mut page)[HEADROOM..];
        let Some((_, payload)) = room.split_at_mut_checked(HEADERS_MAX) else {
            out.give_page(page);
            return Ok(Read::NoPage);
        };
        let fits = payload.len();
        if let Err(error) = receive_one(fd, payload, &mut self.scratch, false, received) {
            out.give_page(page);
            return Err(error);
        }
        let ends = ends(received, &self.shared, &mut self.counted);
        let len = received.len;
        let Some((ends, segment)) = ends.filter(|(_, segment)| len <= fits && (*segment == 0 || *segment >= len))
        else {
            self.counted[NO_BLOCK] += u64::from(ends.is_some());
            out.give_page(page);
            out.lost(1);
            return Ok(Read::Taken(0, true));
        };
        let headers = header_bytes(&ends);
        let packet = &mut room[HEADERS_MAX - headers..][..headers + len];
        match write(&ends, segment, packet) {
            Ok(offload) => {
                offload.inspect(|offload| offload.finish(packet));
                out.push(Completion::new(page, HEADROOM + HEADERS_MAX - headers, headers + len), headers + len);
                count(&mut self.counted, headers + len, None);
            }
            Err(_) => {
                self.counted[BAD] += 1;
                out.give_page(page);
                out.lost(1);
            }
        }
        Ok(Read::Taken(headers + len, true))
    }

    /// Asks the kernel for drops and errors.
    fn look(&mut self, out: &mut Completions<'_>) {
        self.shared.take_errors(self.nth);
        if let Ok(drops) = drops(self.shared.sockets[self.nth].as_fd()) {
            let lost = u64::from(drops.wrapping_sub(self.drops));
            out.lost(lost);
            self.drops = drops;
            self.counted[DROPS] += lost;
        }
        let counted = &self.shared.counted;
        // Relaxed: these are counts. Only the first queue shows what all of them share.
        if self.nth == 0 {
            self.counted[ICMP_ERRORS] = counted.icmp_errors.load(Ordering::Relaxed);
            self.counted[TOO_LONG] = counted.too_long.load(Ordering::Relaxed);
            self.counted[PATH_MTU] = counted.path_mtu.load(Ordering::Relaxed);
        }
        self.looked = out.now();
    }
}

impl RxQueue for Queue {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(self.shared.mtu.max(HEADERS_MAX) + 1)
    }

    fn open(&mut self, _region: &Arc<Region>) -> Result<Opened, DeviceError> {
        let error = |cause| self.shared.error("map memory for datagrams", cause);
        if self.claim.is_some() {
            return Err(error(io::Error::other(OPEN_ONCE)));
        }
        let (blocks, claim) = Blocks::map(BLOCKS, BLOCK_BYTES).map_err(|cause| error(io::Error::other(cause)))?;
        self.claim = Some(claim);
        let mut opened = Opened::lending(blocks.shared(BLOCKS as u32));
        opened.counts = Some(Arc::clone(&self.counts));
        Ok(opened)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(LinkType::RAW);
        if out.now().since(self.looked) >= LOOK {
            self.look(out);
        }
        let budget = budget.min(self.left.unwrap_or(budget));
        let mut polled = self.take(out, budget).map_err(|error| self.shared.error("receive", error))?;
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(out.len());
            if *left == 0 || polled == Polled::Drained {
                self.look(out);
                polled = Polled::Ended;
            }
        }
        self.counted.iter().enumerate().for_each(|(nth, count)| self.counts.raise_to(nth, *count));
        Ok(polled)
    }

    fn stop(&mut self) -> bool {
        self.left = Some(STOP_PACKETS);
        true
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.sockets[self.nth].as_fd())
    }
}

/// The addresses of a datagram, and the size of what was merged. `None` if it is lost.
fn ends(received: &Received, shared: &Shared, counted: &mut [u64; COUNTS.len()]) -> Option<(Ends, usize)> {
    if received.is_cut {
        counted[TRUNCATED] += 1;
        return None;
    }
    let (to, class, segment) = told(&received.control);
    let peer = address_of(&received.name).filter(|peer| peer.port() != 0);
    let Some(peer) = peer else {
        counted[BAD] += 1;
        return None;
    };
    let source = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let local = to.unwrap_or(shared.local.ip().to_canonical());
    Some((Ends { source, destination: SocketAddr::new(local, shared.local.port()), class }, segment))
}

fn count(counted: &mut [u64; COUNTS.len()], len: usize, offload: Option<&Offload>) {
    counted[SUPER_FRAMES] += u64::from(offload.is_some_and(Offload::is_super_frame));
    counted[WIRE_PACKETS] += offload.map_or(1, |offload| offload.packets(len)) as u64;
    counted[WIRE_BYTES] += offload.map_or(len, |offload| offload.wire_bytes(len)) as u64;
}

#[cold]
fn no_blocks() -> io::Error {
    io::Error::other("the queue is polled with the memory of another queue")
}
