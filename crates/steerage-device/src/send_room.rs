//! Tracks the free space in the send buffer of a socket, so that no system call is needed for each
//! batch.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicI64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use steerage::limits::HANDLE_BUDGET;

/// Returns the largest number of bytes that a packet of `bytes` bytes can take in the send buffer,
/// as the kernel counts them. The kernel allocates memory in powers of two, so a packet may count
/// for twice its length. The kernel also counts the memory of its own metadata for the packet.
const fn charged(bytes: usize) -> i64 {
    2 * bytes as i64 + 1024
}

/// The packet length for which `BATCH` is computed: the length of a jumbo frame.
const PACKET_BYTES: usize = 9216;

/// The largest number of bytes that a batch can take in the send buffer, as the kernel counts them.
const BATCH: i64 = HANDLE_BUDGET as i64 * charged(PACKET_BYTES);

/// The free space in a send buffer. CPUs that share a socket also share its `SendRoom`.
///
/// The kernel reports a socket as writable while less than half of its send buffer is in use. When
/// the kernel reports a socket as writable, at least half of the buffer is free. `spend` subtracts
/// the size of each sent packet from the free half of the buffer. Only when the known free half is
/// used up, a system call checks again whether the socket is writable. The kernel also frees space
/// while it sends packets, so the real free space is at least the known free space.
#[derive(Debug)]
pub(crate) struct SendRoom {
    known: AtomicI64,
    half: i64,
}

impl SendRoom {
    /// Creates a `SendRoom` for a socket. The size of the socket's buffer must not change later.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let buffer = getsockopt(socket, sockopt::SndBuf)?;
        Ok(Self { known: AtomicI64::new(0), half: (buffer / 2) as i64 })
    }

    /// Returns true if the buffer has space for a batch. If the buffer is too small for a whole
    /// batch, returns true if a part of the batch fits.
    pub(crate) fn has_room(&self, socket: BorrowedFd<'_>) -> bool {
        // All accesses to `known` are Relaxed, because no other memory is published by `known`. A
        // CPU that reads an old value makes one unnecessary system call, or sends a packet for
        // which the buffer has no space.
        if self.known.load(Ordering::Relaxed) >= BATCH {
            return true;
        }
        let is_writable = is_writable(socket);
        self.known.store(if is_writable { self.half } else { 0 }, Ordering::Relaxed);
        is_writable
    }

    /// Subtracts the space for packets that the kernel accepted: `packets` packets with `bytes`
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
        // A signal interrupted the system call. The buffer may have no space. If the buffer has no
        // space, packets are then counted as dropped.
        Err(_) => true,
    }
}
