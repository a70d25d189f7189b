//! Sending by AF_XDP. Each sender has a tx ring. All senders of a queue share a completion ring.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use steerage::device::Region;

use super::ring::{Descriptor, Ring};
use super::{FEWEST, How, InterfaceQueue, MmapOffsets, Shape, Socket};
use crate::sys::{get, set};

/// The properties of the rings that all senders of a queue share, and that the queue's first sender
/// sets up.
#[derive(Clone, Copy, Debug)]
pub(in crate::af_xdp) struct Rings {
    /// True if the first sender must also register the memory with the kernel.
    pub(in crate::af_xdp) register: bool,
    /// The number of entries in the completion ring: a power of two.
    pub(in crate::af_xdp) completions: u32,
}

/// An AF_XDP socket that sends. The kernel only reads the pages of sent packets.
#[derive(Debug)]
pub(in crate::af_xdp) struct Sender {
    tx: Ring<Descriptor>,
    /// The socket must be dropped last.
    socket: Socket,
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }
}

impl Socket {
    /// A process with CAP_NET_ADMIN may exceed the system's limit on send buffers.
    pub(in crate::af_xdp) fn set_send_buffer(&self, bytes: i32) -> io::Result<()> {
        set(&self.0, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
    }

    /// The first sender of a queue (`first`) also sets up the rings that its senders share.
    pub(in crate::af_xdp) fn sending(
        self,
        region: &Arc<Region>,
        shape: Shape,
        first: Option<Rings>,
    ) -> io::Result<Sender> {
        if let Some(rings) = first {
            if rings.register {
                self.register(region, shape)?;
            }
            // The kernel requires a fill ring even for a socket that only sends.
            set(&self.0, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, &FEWEST)?;
            set(&self.0, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &rings.completions)?;
        }
        set(&self.0, libc::SOL_XDP, libc::XDP_TX_RING, &shape.ring)?;
        let offsets: MmapOffsets = get(&self.0, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        let tx = Ring::map(self.0.as_fd(), libc::XDP_PGOFF_TX_RING, offsets.tx, shape.ring)?;
        Ok(Sender { tx, socket: self })
    }
}

impl Sender {
    /// `shared`: a socket whose memory this socket uses. If the queue already has rings, `shared`
    /// belongs to the same queue.
    pub(in crate::af_xdp) fn bind(
        &self,
        place: InterfaceQueue,
        how: How,
        shared: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        self.socket.bind(place, how, shared)
    }

    /// Maps the queue's completion ring, once, for as long as this socket exists.
    pub(in crate::af_xdp) fn completions(&self, size: u32) -> io::Result<Completions> {
        let offsets: MmapOffsets = get(&self.socket.0, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        Ring::map(self.as_fd(), libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64, offsets.completion, size).map(Completions)
    }

    #[inline]
    pub(in crate::af_xdp) fn has_room_for(&mut self, descriptors: u32) -> bool {
        self.tx.room_for(descriptors)
    }

    #[inline]
    pub(in crate::af_xdp) fn push(&mut self, address: u64, len: u32, goes_on: bool) {
        self.tx.push(Descriptor { address, len, options: if goes_on { libc::XDP_PKT_CONTD } else { 0 } });
    }

    #[inline]
    pub(in crate::af_xdp) fn show(&mut self) {
        self.tx.publish();
    }

    #[inline]
    pub(in crate::af_xdp) fn waiting(&mut self) -> u32 {
        self.tx.waiting()
    }

    pub(in crate::af_xdp) fn nth_waiting(&mut self, nth: u32) -> Option<Descriptor> {
        self.tx.peek_waiting(nth)
    }

    pub(in crate::af_xdp) fn taken_last(&mut self) -> Option<Descriptor> {
        self.tx.peek_taken()
    }

    /// Empties a descriptor, so that the kernel skips the descriptor. Emptying works only in copy
    /// mode, in which the kernel takes descriptors only during [`kick`](Self::kick).
    pub(in crate::af_xdp) fn void_waiting(&mut self, nth: u32) {
        self.tx.poke_waiting(nth, Descriptor { address: 0, len: 0, options: 0 });
    }

    /// Returns true if a zero-copy driver waits for [`kick`](Self::kick).
    #[inline]
    pub(in crate::af_xdp) fn needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Makes the kernel send. In copy mode, the kernel takes about 32 descriptors per call. EAGAIN
    /// means that descriptors are left in the ring.
    pub(in crate::af_xdp) fn kick(&self) -> io::Result<()> {
        let null = std::ptr::null();
        // SAFETY: the call has length 0 and null pointers, so the kernel reads nothing.
        let sent = unsafe { libc::sendto(self.as_fd().as_raw_fd(), null, 0, libc::MSG_DONTWAIT, null.cast(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The ring in which the kernel reports the addresses of sent packets.
#[derive(Debug)]
pub(in crate::af_xdp) struct Completions(Ring<u64>);

impl Completions {
    #[inline]
    pub(in crate::af_xdp) fn drain(&mut self, mut each: impl FnMut(u64)) {
        let filled = self.0.filled();
        for _ in 0..filled {
            self.0.pop().into_iter().for_each(&mut each);
        }
        if filled > 0 {
            self.0.consumed();
        }
    }
}
