use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicI64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use steerage::limits::HANDLE_BUDGET;

/// The most bytes that the kernel charges to the send buffer for a packet of `bytes` bytes: up to
/// twice the packet's length (the kernel allocates memory in powers of two), plus the kernel's
/// metadata.
const fn charged(bytes: usize) -> i64 {
    2 * bytes as i64 + 1024
}

/// The length of a jumbo frame.
const PACKET_BYTES: usize = 9216;

/// The most bytes that the kernel charges to the send buffer for a batch.
const BATCH: i64 = HANDLE_BUDGET as i64 * charged(PACKET_BYTES);

/// The free space in a send buffer. CPUs that share a socket also share its `SendRoom`.
///
/// The kernel reports a socket as writable while at least half of its send buffer is free. `spend`
/// subtracts sent packets from half of the buffer's size, and a system call checks again when this
/// half is used up. The kernel also frees space between two checks, so at least the known space is
/// free.
#[derive(Debug)]
pub(crate) struct SendRoom {
    known: AtomicI64,
    half: i64,
}

impl SendRoom {
    /// The size of the socket's buffer must not change later.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let buffer = getsockopt(socket, sockopt::SndBuf)?;
        Ok(Self { known: AtomicI64::new(0), half: (buffer / 2) as i64 })
    }

    /// Returns true if the buffer has room for a batch. If the whole buffer is too small for a
    /// batch, room for a part of a batch is enough.
    pub(crate) fn has_room(&self, socket: BorrowedFd<'_>) -> bool {
        // `Relaxed`, because `known` publishes no other memory. With an old value, a CPU makes an
        // unnecessary system call, or sends a packet for which the buffer has no space.
        if self.known.load(Ordering::Relaxed) >= BATCH {
            return true;
        }
        let is_writable = is_writable(socket);
        self.known.store(if is_writable { self.half } else { 0 }, Ordering::Relaxed);
        is_writable
    }

    pub(crate) fn spend(&self, packets: usize, bytes: usize) {
        let all = charged(bytes) + charged(0) * packets.saturating_sub(1) as i64;
        self.known.fetch_sub(all, Ordering::Relaxed);
    }

    pub(crate) fn is_spent(&self) {
        self.known.store(0, Ordering::Relaxed);
    }
}

fn is_writable(socket: BorrowedFd<'_>) -> bool {
    let mut socket = [PollFd::new(socket, PollFlags::POLLOUT)];
    match poll(&mut socket, PollTimeout::ZERO) {
        Ok(_) => socket[0].revents().is_some_and(|events| events.contains(PollFlags::POLLOUT)),
        // A signal interrupted the call. If the buffer has no space, the packets are counted as
        // dropped.
        Err(_) => true,
    }
}
