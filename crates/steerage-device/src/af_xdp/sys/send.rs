//! The sending half of AF_XDP: a tx ring for each sender, and one completion ring for all senders of a queue.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use steerage::device::Region;

use super::ring::{Descriptor, Ring};
use super::{
    FEWEST, How, InterfaceQueue, MmapOffsets, SOL_XDP, Shape, Socket, XDP_MMAP_OFFSETS, XDP_PKT_CONTD,
    XDP_UMEM_COMPLETION_RING, XDP_UMEM_FILL_RING,
};

const XDP_TX_RING: i32 = 3;
const XDP_PGOFF_TX_RING: i64 = 0x8000_0000;
const XDP_UMEM_PGOFF_COMPLETION_RING: i64 = 0x1_8000_0000;

/// The rings that a sender's queue needs, if it is the first there.
#[derive(Clone, Copy, Debug)]
pub(in crate::af_xdp) struct Rings {
    /// The memory is not known to the kernel yet.
    pub(in crate::af_xdp) register: bool,
    /// How many completions there is to be room for: a power of two.
    pub(in crate::af_xdp) completions: u32,
}

/// An AF_XDP socket that sends. What it is told to send from the kernel reads, and writes nowhere.
#[derive(Debug)]
pub(in crate::af_xdp) struct Sender {
    tx: Ring<Descriptor>,
    /// Goes last.
    socket: Socket,
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }
}

/// What is to be sent of a descriptor that was not.
#[derive(Clone, Copy, Debug)]
pub(in crate::af_xdp) struct Unsent {
    pub(in crate::af_xdp) address: u64,
    pub(in crate::af_xdp) len: u32,
    /// The frame goes on in the next.
    pub(in crate::af_xdp) goes_on: bool,
}

impl Unsent {
    fn of(Descriptor { address, len, options }: Descriptor) -> Self {
        Self { address, len, goes_on: options & XDP_PKT_CONTD != 0 }
    }
}

impl Socket {
    /// More bytes than by default may be on their way, if that is allowed.
    pub(in crate::af_xdp) fn set_send_buffer(&self, bytes: i32) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
    }

    /// Has the socket send from the pages of `region`; the first at a queue brings what all need there.
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
            // It receives nothing, but the kernel wants one.
            self.set(SOL_XDP, XDP_UMEM_FILL_RING, &FEWEST)?;
            self.set(SOL_XDP, XDP_UMEM_COMPLETION_RING, &rings.completions)?;
        }
        self.set(SOL_XDP, XDP_TX_RING, &shape.ring)?;
        let offsets: MmapOffsets = self.get(XDP_MMAP_OFFSETS)?;
        let tx = Ring::map(self.0.as_fd(), XDP_PGOFF_TX_RING, offsets.tx, shape.ring)?;
        Ok(Sender { tx, socket: self })
    }
}

impl Sender {
    /// Binds it to a queue. `shared` is another socket on the same memory: of the same queue, or of any if this one has brought
    /// rings.
    pub(in crate::af_xdp) fn bind(
        &self,
        place: InterfaceQueue,
        how: How,
        shared: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        self.socket.bind(place, how, shared)
    }

    /// The ring in which all that send by its queue are told what was sent: by its own descriptor, so that it is there for as
    /// long as this socket. There may be one such mapping of a queue.
    pub(in crate::af_xdp) fn completions(&self, size: u32) -> io::Result<Completions> {
        let offsets: MmapOffsets = self.socket.get(XDP_MMAP_OFFSETS)?;
        Ring::map(self.as_fd(), XDP_UMEM_PGOFF_COMPLETION_RING, offsets.completion, size).map(Completions)
    }

    /// Whether so many descriptors may be pushed.
    #[inline]
    pub(in crate::af_xdp) fn has_room_for(&mut self, descriptors: u32) -> bool {
        self.tx.room_for(descriptors)
    }

    /// Pushes a descriptor for which there is room.
    #[inline]
    pub(in crate::af_xdp) fn push(&mut self, address: u64, len: u32, goes_on: bool) {
        self.tx.push(Descriptor { address, len, options: if goes_on { XDP_PKT_CONTD } else { 0 } });
    }

    /// Shows the kernel what was pushed.
    #[inline]
    pub(in crate::af_xdp) fn show(&mut self) {
        self.tx.publish();
    }

    /// How many descriptors the kernel has yet to take.
    #[inline]
    pub(in crate::af_xdp) fn waiting(&mut self) -> u32 {
        self.tx.waiting()
    }

    /// The `nth` of those that the kernel has yet to take.
    pub(in crate::af_xdp) fn nth_waiting(&mut self, nth: u32) -> Option<Unsent> {
        self.tx.peek_waiting(nth).map(Unsent::of)
    }

    /// The one that the kernel took last.
    pub(in crate::af_xdp) fn taken_last(&mut self) -> Option<Unsent> {
        self.tx.peek_taken().map(Unsent::of)
    }

    /// Makes the `nth` of those that the kernel has yet to take one that it passes over: of no bytes. Where it copies, it takes
    /// them only as it is [told to](Self::kick).
    pub(in crate::af_xdp) fn void_waiting(&mut self, nth: u32) {
        self.tx.poke_waiting(nth, Descriptor { address: 0, len: 0, options: 0 });
    }

    /// Whether a driver that sends without a copy waits to be told.
    #[inline]
    pub(in crate::af_xdp) fn needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Tells the kernel to send. Where it copies, it takes some 32 descriptors at a time, and says EAGAIN if there are more.
    pub(in crate::af_xdp) fn kick(&self) -> io::Result<()> {
        let null = std::ptr::null();
        // SAFETY: nothing is read: of no bytes, and to nobody.
        let sent = unsafe { libc::sendto(self.as_fd().as_raw_fd(), null, 0, libc::MSG_DONTWAIT, null.cast(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// What was sent by a queue, as addresses.
#[derive(Debug)]
pub(in crate::af_xdp) struct Completions(Ring<u64>);

impl Completions {
    /// Hands all of them over that there are.
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
