//! Tracks the free space in the send buffer of a socket, without a system call for each batch.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicI64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use steerage::limits::HANDLE_BUDGET;

/// The largest number of bytes that the kernel counts for a packet in the send buffer. The kernel
/// allocates memory in powers of two, so a packet may count for twice its length. The kernel also
/// counts its own data about the packet.
const fn charged(bytes: usize) -> i64 {
    2 * bytes as i64 + 1024
}

/// The packet length for which `BATCH` is computed: the length of a jumbo frame.
const PACKET_BYTES: usize = 9216;

/// The number of bytes that the kernel counts for a batch in the send buffer.
const BATCH: i64 = HANDLE_BUDGET as i64 * charged(PACKET_BYTES);

/// The free space in a send buffer. CPUs that share the socket share this value.
///
/// The kernel reports a socket as writable while less than half of its send buffer is in use. When
/// the kernel reports a socket as writable, at least half of the buffer is free. `spend` subtracts
/// each sent packet from this half. The kernel is asked again only when this half has been spent.
/// The kernel also frees space while it sends packets, so the real free space is larger than the
/// known free space.
#[derive(Debug)]
pub(crate) struct SendRoom {
    known: AtomicI64,
    half: i64,
}

impl SendRoom {
    /// Makes a `SendRoom` for a socket. The size of the socket's buffer must not change later.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let buffer = getsockopt(socket, sockopt::SndBuf)?;
        Ok(Self { known: AtomicI64::new(0), half: (buffer / 2) as i64 })
    }

    /// Returns true if the buffer has space for a batch. If the buffer is too small for a whole
    /// batch, returns true if a part of the batch fits.
    pub(crate) fn has_room(&self, socket: BorrowedFd<'_>) -> bool {
        // Relaxed, here and below: no other memory depends on this number. A CPU that reads an old
        // value makes one unnecessary system call, or sends a packet for which there is no space.
        if self.known.load(Ordering::Relaxed) >= BATCH {
            return true;
        }
        let is_writable = is_writable(socket);
        self.known.store(if is_writable { self.half } else { 0 }, Ordering::Relaxed);
        is_writable
    }

    /// Subtracts the space of packets that the kernel accepted: `packets` packets with `bytes`
    /// bytes in total.
    pub(crate) fn spend(&self, packets: usize, bytes: usize) {
        let all = charged(bytes) + charged(0) * packets.saturating_sub(1) as i64;
        self.known.fetch_sub(all, Ordering::Relaxed);
    }

    /// Records that the kernel had no space for a packet.
    pub(crate) fn is_spent(&self) {
        self.known.store(0, Ordering::Relaxed);
    }
}

fn is_writable(socket: BorrowedFd<'_>) -> bool {
    let mut socket = [PollFd::new(socket, PollFlags::POLLOUT)];
    match poll(&mut socket, PollTimeout::ZERO) {
        Ok(_) => socket[0].revents().is_some_and(|events| events.contains(PollFlags::POLLOUT)),
        // A signal interrupted the system call. Packets that find no space are counted.
        Err(_) => true,
    }
}
