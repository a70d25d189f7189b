//! A receive queue of UDP datagrams. Each queue has one socket.
//!
//! One system call receives several datagrams into a memory block, with about 64 KiB reserved for
//! each. Short payloads, which are in the CPU's cache, are then moved to the end of the previous
//! frame, so that a block has room for many frames.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use steerage::device::{Capabilities, Completions, DeviceCounts, OFFLOAD_BYTES, Opened, Polled, Region, RxQueue};
use steerage::{DeviceError, LinkType, Timestamp};

use super::headers::{Ends, HEADERS_MAX, address_of, header_bytes, told, write};
use super::sys::{RECEIVED_MAX, Received, drops, receive, receive_one};
use super::{COUNTS, DROPS, ICMP_ERRORS, Shared, TRUNCATED, is_of_a_peer};
use crate::offloads::lent::{self, BAD, Lent, Limits, NO_BLOCK, Room, Short, Source, Unfit};

const PAYLOAD_MAX: usize = 65_535;
/// The bytes that are reserved before a payload for headers and the offload's description.
const FRONT: usize = OFFLOAD_BYTES + HEADERS_MAX;
/// The distance in bytes between the beginnings of two payloads in a block.
const STRIDE: usize = (FRONT + PAYLOAD_MAX).next_multiple_of(8);
/// The blocks have about 32 MiB in total. The kernel allocates pages of the blocks when they are
/// first used.
const BLOCK_BYTES: usize = RECEIVED_MAX * STRIDE;
const BLOCKS: usize = 32;
/// A block needs room for this many datagrams, so that each system call can receive several.
const ROOM_LEAST: usize = 4;
/// The maximum length in bytes of payloads that are moved to the end of the previous frame.
const SHORT: usize = 4096;
/// The interval at which the queue reads the number of drops and the errors from the kernel.
const LOOK: Duration = Duration::from_millis(10);
const STOP_PACKETS: usize = 4096;

#[derive(Debug)]
pub(super) struct Queue {
    socket: Socket,
    lent: Lent,
    drops: u32,
    looked: Timestamp,
    /// The maximum number of packets to receive after a stop. `None` before a stop.
    left: Option<usize>,
}

#[derive(Debug)]
struct Socket {
    shared: Arc<Shared>,
    nth: usize,
    received: Box<[Received; RECEIVED_MAX]>,
}

impl Socket {
    fn fd(&self) -> BorrowedFd<'_> {
        self.shared.sockets[self.nth].as_fd()
    }
}

impl Source for Socket {
    fn receive(&mut self, room: &mut Room<'_, '_>, most: usize) -> io::Result<lent::Received> {
        let (start, bytes) = (room.lending.offset(), room.lending.bytes().len());
        let asked = most.min(bytes / STRIDE).min(RECEIVED_MAX);
        let (fd, into) = (self.shared.sockets[self.nth].as_fd(), &mut self.received[..asked]);
        let came = receive(fd, room.lending.bytes(), (FRONT, STRIDE, PAYLOAD_MAX), into)?;
        for (nth, received) in self.received[..came].iter().enumerate() {
            let (ends, segment) = match ends(received, &self.shared) {
                Ok(known) => known,
                Err(unfit) => {
                    room.lose(unfit);
                    continue;
                }
            };
            let headers = header_bytes(&ends);
            // The free part of the block begins after the frames that were already delivered.
            let from = start + nth * STRIDE + FRONT - room.lending.offset();
            let len = headers + received.len;
            let at = if received.len <= SHORT { OFFLOAD_BYTES.min(from - headers) } else { from - headers };
            let free = room.lending.bytes();
            if at + headers != from {
                free.copy_within(from..from + received.len, at + headers);
            }
            match write(&ends, segment, &mut free[at..at + len]) {
                Ok(offload) => room.lend(at, len, offload),
                Err(_) => room.lose(Unfit(BAD)),
            }
        }
        Ok(lent::Received { frames: came, more: came == asked })
    }

    fn receive_short(&mut self, room: &mut [u8], rest: &mut [u8]) -> io::Result<Result<Short, Unfit>> {
        let (fd, received) = (self.shared.sockets[self.nth].as_fd(), &mut self.received[0]);
        let payload = room.get_mut(HEADERS_MAX..).unwrap_or_default();
        let fits = payload.len();
        receive_one(fd, payload, rest, false, received)?;
        Ok(ends(received, &self.shared).and_then(|(ends, segment)| {
            let (headers, len) = (header_bytes(&ends), received.len);
            let at = HEADERS_MAX - headers;
            let packet = room.get_mut(at..HEADERS_MAX + len).filter(|_| len <= fits).ok_or(Unfit(NO_BLOCK))?;
            let offload = write(&ends, segment, packet).map_err(|_| Unfit(BAD))?;
            Ok(Short { at, len: headers + len, offload })
        }))
    }

    fn forgive(&mut self, error: io::Error) -> io::Result<()> {
        if !is_of_a_peer(&error) {
            return Err(error);
        }
        self.shared.take_errors(self.nth);
        Ok(())
    }
}

impl Queue {
    pub(super) fn new(shared: Arc<Shared>, nth: usize) -> Self {
        let limits = Limits {
            blocks: BLOCKS,
            block_bytes: BLOCK_BYTES,
            frame_bytes: PAYLOAD_MAX,
            room_bytes: ROOM_LEAST * STRIDE,
            link: LinkType::RAW,
        };
        let counts = if nth == 0 { Arc::clone(&shared.counts) } else { Arc::new(DeviceCounts::new(COUNTS)) };
        let lent = Lent::new(limits, counts, ICMP_ERRORS);
        let socket = Socket { shared, nth, received: Box::new([Received::EMPTY; RECEIVED_MAX]) };
        Self { socket, lent, drops: 0, looked: Timestamp::ZERO, left: None }
    }

    fn look(&mut self, out: &mut Completions<'_>) {
        self.socket.shared.take_errors(self.socket.nth);
        if let Ok(drops) = drops(self.socket.fd()) {
            let lost = u64::from(drops.wrapping_sub(self.drops));
            out.lost(lost);
            self.drops = drops;
            self.lent.add(DROPS, lost);
        }
        self.looked = out.now();
    }
}

impl RxQueue for Queue {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(self.socket.shared.mtu.max(HEADERS_MAX) + 1)
    }

    fn open(&mut self, _region: &Arc<Region>) -> Result<Opened, DeviceError> {
        self.lent.open().map_err(|cause| self.socket.shared.error("map memory for datagrams", cause))
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(LinkType::RAW);
        if out.now().since(self.looked) >= LOOK {
            self.look(out);
        }
        let budget = budget.min(self.left.unwrap_or(budget));
        let taken = self.lent.take(&mut self.socket, out, budget);
        let mut polled = taken.map_err(|error| self.socket.shared.error("receive", error))?;
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(out.len());
            if *left == 0 || polled == Polled::Drained {
                self.look(out);
                polled = Polled::Ended;
            }
        }
        self.lent.show();
        Ok(polled)
    }

    fn stop(&mut self) -> bool {
        self.left = Some(STOP_PACKETS);
        true
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.fd())
    }
}

/// Returns the addresses of a datagram, and the payload size of the datagrams merged into it.
fn ends(received: &Received, shared: &Shared) -> Result<(Ends, usize), Unfit> {
    if received.is_cut {
        return Err(Unfit(TRUNCATED));
    }
    let (to, class, segment) = told(&received.control);
    let peer = address_of(&received.name).filter(|peer| peer.port() != 0).ok_or(Unfit(BAD))?;
    let source = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let local = to.unwrap_or(shared.local.ip().to_canonical());
    Ok((Ends { source, destination: SocketAddr::new(local, shared.local.port()), class }, segment))
}
