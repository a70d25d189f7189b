//! The room in the send buffer of a socket, without a system call for each batch.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicI64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use steerage::limits::HANDLE_BUDGET;

/// The most bytes of the buffer that the kernel charges for a packet: twice its length, because memory is
/// allocated in powers of two, and the kernel's own data about the packet.
const fn charged(bytes: usize) -> i64 {
    2 * bytes as i64 + 1024
}

/// The longest packets of a batch for which room is expected: jumbo frames.
const PACKET_BYTES: usize = 9216;

/// What the kernel charges for a batch.
const BATCH: i64 = HANDLE_BUDGET as i64 * charged(PACKET_BYTES);

/// The room in a send buffer. CPUs that share the socket share the room.
///
/// The kernel reports a socket as writable while less than half of its buffer is in use. So after such a report, the
/// other half has room, and is spent packet by packet. Only when it is spent, the kernel is asked again. Packets that
/// are sent meanwhile make more room than is known.
#[derive(Debug)]
pub(crate) struct SendRoom {
    known: AtomicI64,
    half: i64,
}

impl SendRoom {
    /// The room of a socket whose buffer will not change.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let buffer = getsockopt(socket, sockopt::SndBuf)?;
        Ok(Self { known: AtomicI64::new(0), half: (buffer / 2) as i64 })
    }

    /// Whether a batch finds room. In a buffer that is too small for a batch, a part of the batch does.
    pub(crate) fn has_room(&self, socket: BorrowedFd<'_>) -> bool {
        // Relaxed, here and below: no other memory depends on the room. A CPU that reads an old value makes a system
        // call too many, or sends a packet for which there is no room.
        if self.known.load(Ordering::Relaxed) >= BATCH {
            return true;
        }
        let is_writable = is_writable(socket);
        self.known.store(if is_writable { self.half } else { 0 }, Ordering::Relaxed);
        is_writable
    }

    /// Spends the room of packets that the kernel took, which have so many bytes together.
    pub(crate) fn spend(&self, packets: usize, bytes: usize) {
        let all = charged(bytes) + charged(0) * packets.saturating_sub(1) as i64;
        self.known.fetch_sub(all, Ordering::Relaxed);
    }

    /// Records that the kernel had no room for a packet.
    pub(crate) fn is_spent(&self) {
        self.known.store(0, Ordering::Relaxed);
    }
}

fn is_writable(socket: BorrowedFd<'_>) -> bool {
    let mut socket = [PollFd::new(socket, PollFlags::POLLOUT)];
    match poll(&mut socket, PollTimeout::ZERO) {
        Ok(_) => socket[0].revents().is_some_and(|events| events.contains(PollFlags::POLLOUT)),
        // A signal came first. What finds no room is counted.
        Err(_) => true,
    }
}
