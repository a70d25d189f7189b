//! The system calls of AF_XDP and BPF, and the memory shared with the kernel (`linux/if_xdp.h` and
//! `linux/bpf.h`). This module and its submodules contain all `unsafe` code of the device AF_XDP.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use steerage::device::{Page, Posted, Region};

use crate::sys::{bind, checked, get, set, socket};

mod bpf;
pub(super) mod extension;
mod ring;
mod send;

pub use bpf::attached_dissector;
#[cfg(test)]
pub(super) use bpf::tag_what_is_sent;
pub(super) use bpf::{ByCpu, Link, Map, Mode, NAME, Program, ProgramInfo, link_of, program_of, with_log};
pub(super) use bpf::{load_dissector, set_dissector};
use ring::{Descriptor, Ring};
pub(super) use send::{Completions, Rings, Sender};

/// In unaligned mode, the upper 16 bits of an address are the frame's offset within its chunk.
const OFFSET_SHIFT: u32 = 48;

/// The number of entries of a ring that a socket does not need. The kernel requires a completion
/// ring even for sockets that only receive, and a fill ring even for sockets that only send.
pub(super) const FEWEST: u32 = 2;

/// The kernel's `struct xdp_statistics`, with counts of lost frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Statistics {
    /// Frames for which no page was posted, or that were longer than a chunk.
    pub(super) rx_dropped: u64,
    pub(super) rx_invalid: u64,
    tx_invalid: u64,
    pub(super) rx_ring_full: u64,
    /// The number of times that the kernel needed a page and the fill ring was empty.
    pub(super) fill_ring_empty: u64,
    tx_ring_empty: u64,
}

/// The kernel's `struct xdp_mmap_offsets`, which says where the rings are in a mapping.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MmapOffsets {
    rx: ring::RingOffsets,
    tx: ring::RingOffsets,
    fill: ring::RingOffsets,
    completion: ring::RingOffsets,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct InterfaceQueue {
    pub(super) interface: u32,
    pub(super) queue: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// The number of descriptors in each ring: a power of two.
    pub(super) ring: u32,
    /// The maximum number of bytes that the kernel writes to a page.
    pub(super) chunk_bytes: u32,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct How {
    pub(super) zero_copy: bool,
    /// True if frames longer than a chunk arrive in several chunks.
    pub(super) several: bool,
}

#[derive(Debug)]
pub(super) struct FilledChunk {
    pub(super) page: Page,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) goes_on: bool,
}

#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl Socket {
    pub(super) fn new() -> io::Result<Self> {
        socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0).map(Self)
    }

    /// Lets system calls that receive poll the driver, each for up to `time` and `budget` frames.
    /// Requires CAP_NET_ADMIN, so the call precedes the drop of privileges.
    pub(super) fn busy_poll(&self, time: Duration, budget: u32) -> io::Result<()> {
        let micros = time.as_micros().clamp(1, i32::MAX as u128) as c_int;
        set(&self.0, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1)?;
        set(&self.0, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros)?;
        set(&self.0, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &budget)
    }

    pub(super) fn with_memory(self, region: &Arc<Region>, shape: Shape, rings: Rings) -> io::Result<OpenSocket> {
        if rings.register {
            self.register(region, shape)?;
        }
        set(&self.0, libc::SOL_XDP, libc::XDP_UMEM_FILL_RING, &shape.ring)?;
        set(&self.0, libc::SOL_XDP, libc::XDP_UMEM_COMPLETION_RING, &rings.completions)?;
        set(&self.0, libc::SOL_XDP, libc::XDP_RX_RING, &shape.ring)?;
        let offsets: MmapOffsets = get(&self.0, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        let rx = Ring::map(self.0.as_fd(), libc::XDP_PGOFF_RX_RING, offsets.rx, shape.ring)?;
        let fill = Ring::map(self.0.as_fd(), libc::XDP_UMEM_PGOFF_FILL_RING as i64, offsets.fill, shape.ring)?;
        Ok(OpenSocket { rx, fill, posted: Posted::new(Arc::clone(region)), socket: self })
    }

    fn register(&self, region: &Arc<Region>, shape: Shape) -> io::Result<()> {
        if shape.chunk_bytes as usize > region.page_bytes() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the pages are shorter than a chunk"));
        }
        let registration = libc::xdp_umem_reg {
            addr: region.base().as_ptr().expose_provenance() as u64,
            len: region.bytes() as u64,
            chunk_size: shape.chunk_bytes,
            headroom: 0,
            flags: libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
            tx_metadata_len: 0,
        };
        // After the memory was registered (XDP_UMEM_REG), the kernel keeps the memory alive, and
        // writes to posted pages.
        set(&self.0, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
    }

    fn bind(&self, place: InterfaceQueue, how: How, shared: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mode = if how.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        let flags = mode | libc::XDP_USE_NEED_WAKEUP | if how.several { libc::XDP_USE_SG } else { 0 };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            // The flags of the first socket apply to all sockets that share its memory.
            sxdp_flags: if shared.is_some() { libc::XDP_SHARED_UMEM } else { flags },
            sxdp_ifindex: place.interface,
            sxdp_queue_id: place.queue,
            sxdp_shared_umem_fd: shared.map_or(0, |first| first.as_raw_fd() as u32),
        };
        bind(&self.0, &address)
    }
}

/// The kernel writes to the pages whose addresses are in the fill ring. Each page in the fill ring
/// is in `posted`, so no other code owns the page. A page leaves `posted` only when the kernel
/// returns the page through the rx ring, or when the socket is closed.
#[derive(Debug)]
pub(super) struct OpenSocket {
    rx: Ring<Descriptor>,
    fill: Ring<u64>,
    posted: Posted,
    /// The field `socket` must be dropped last.
    socket: Socket,
}

impl AsFd for OpenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }
}

impl OpenSocket {
    /// `shared` is the first socket with the same memory region, or `None` for the first socket.
    pub(super) fn bind(&self, place: InterfaceQueue, how: How, shared: Option<&Self>) -> io::Result<()> {
        self.socket.bind(place, how, shared.map(Self::as_fd))
    }

    #[inline]
    pub(super) fn room(&mut self) -> u32 {
        self.fill.room()
    }

    /// Puts a page into the fill ring. The kernel sees the page only after [`show`](Self::show).
    /// The result is `Err` with the page if the page belongs to another memory region, or if the
    /// ring has no room.
    #[inline]
    pub(super) fn post(&mut self, page: Page) -> Result<(), Page> {
        if self.fill.room() == 0 {
            return Err(page);
        }
        let address = self.posted.post(page)?;
        self.fill.push(address);
        Ok(())
    }

    #[inline]
    pub(super) fn page_mut<'p>(&'p self, page: &'p mut Page) -> &'p mut [u8] {
        self.posted.region().page_mut(page)
    }

    #[inline]
    pub(super) fn show(&mut self) {
        self.fill.publish();
    }

    #[inline]
    pub(super) fn posted(&self) -> usize {
        self.posted.out()
    }

    #[inline]
    pub(super) fn filled(&mut self) -> u32 {
        self.rx.filled()
    }

    /// Takes the next filled page. The result is `Err` if the descriptor's address was not posted,
    /// so that the caller skips the descriptor.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Result<FilledChunk, BadAddress>> {
        let descriptor = self.rx.pop()?;
        let Descriptor { address, len, .. } = descriptor;
        let goes_on = descriptor.goes_on();
        let Some((page, within)) = self.posted.take(address & ((1 << OFFSET_SHIFT) - 1)) else {
            return Some(Err(BadAddress { goes_on }));
        };
        let offset = within + (address >> OFFSET_SHIFT) as u32;
        Some(Ok(FilledChunk { page, offset, len, goes_on }))
    }

    #[inline]
    pub(super) fn release(&mut self) {
        self.rx.consumed();
    }

    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Makes the driver check the fill ring. In busy-poll mode, the driver also polls for frames.
    pub(super) fn wake_up(&self) {
        let fd = self.as_fd().as_raw_fd();
        let null = std::ptr::null_mut();
        // Ignore an error: if the interface is down or deleted, the queue's watch notices it.
        // SAFETY: the call has length 0 and null pointers, so the kernel writes nothing.
        unsafe { libc::recvfrom(fd, null, 0, libc::MSG_DONTWAIT, null.cast(), null.cast()) };
    }

    pub(super) fn statistics(&self) -> io::Result<Statistics> {
        get(&self.socket.0, libc::SOL_XDP, libc::XDP_STATISTICS)
    }

    /// Returns true if a frame has arrived, but the driver has not reported its NAPI instance, as
    /// busy polling requires. A veth does not report its NAPI instance since Linux 6.13.
    pub(super) fn has_no_napi(&self) -> bool {
        get::<u32>(&self.socket.0, libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID).is_ok_and(|id| id == 0)
    }

    pub(super) fn is_zero_copy(&self) -> bool {
        get::<u32>(&self.socket.0, libc::SOL_XDP, libc::XDP_OPTIONS)
            .is_ok_and(|options| options & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Closes the socket and returns its pages, except those of a zero-copy socket, to which the
    /// driver may still write. When the kernel reports a deleted interface (`is_deleted`), the
    /// kernel has already taken the memory away from the driver (`xsk_notifier`), so the pages can
    /// be returned.
    pub(super) fn close(self, is_deleted: bool) -> Option<Posted> {
        let is_in_use = self.is_zero_copy() && !is_deleted;
        let Self { rx, fill, posted, socket } = self;
        // The rings keep the socket open. Closing waits for kernel code that fills pages.
        drop((rx, fill));
        drop(socket);
        (!is_in_use).then_some(posted)
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct BadAddress {
    pub(super) goes_on: bool,
}

pub(super) fn drop_capabilities() -> io::Result<()> {
    /// `_LINUX_CAPABILITY_VERSION_3`, in which each set of capabilities has 64 bits.
    const VERSION: u32 = 0x2008_0522;
    let mut header = [VERSION, 0];
    // The effective, permitted and inheritable capabilities, in two parts of 32 bits each.
    let none = [0_u32; 6];
    // SAFETY: the arrays have the layout and the length of `struct __user_cap_header_struct` and of
    // two
    // `struct __user_cap_data_struct`. The kernel writes only the version.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), none.as_ptr()) };
    checked(result as c_int)
}

/// Waits until every CPU has finished the network processing that was in progress at the call.
/// Returns false if the kernel does not support this `membarrier` command.
pub(super) fn wait_for_receivers() -> bool {
    // The kernel's receive path runs under RCU, and this call waits for a grace period.
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) == 0 }
}
