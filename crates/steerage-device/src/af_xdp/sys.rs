//! The system calls of AF_XDP and of its program, and the memory that is shared with the kernel. All of this device's
//! own `unsafe` is here.
//!
//! Layouts and numbers are those of the kernel's `linux/if_xdp.h`, `linux/bpf.h` and `linux/ethtool.h`.

use std::ffi::{c_int, c_ulong};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use steerage::device::{Page, Posted, Region};

mod bpf;
mod ring;
mod send;

pub(super) use bpf::{ByCpu, Link, Map, Mode, Program, ProgramInfo, link_of};
use ring::{Descriptor, Ring};
pub(super) use send::{Completions, Rings, Sender, Unsent};

const SOL_XDP: c_int = 283;
const XDP_MMAP_OFFSETS: c_int = 1;
const XDP_RX_RING: c_int = 2;
const XDP_UMEM_REG: c_int = 4;
const XDP_UMEM_FILL_RING: c_int = 5;
const XDP_UMEM_COMPLETION_RING: c_int = 6;
const XDP_STATISTICS: c_int = 7;
const XDP_OPTIONS: c_int = 8;
const XDP_OPTIONS_ZEROCOPY: u32 = 1;
const XDP_PGOFF_RX_RING: i64 = 0;
const XDP_UMEM_PGOFF_FILL_RING: i64 = 0x1_0000_0000;
const XDP_UMEM_UNALIGNED_CHUNK_FLAG: u32 = 1;
const XDP_SHARED_UMEM: u16 = 1;
const XDP_COPY: u16 = 1 << 1;
const XDP_ZEROCOPY: u16 = 1 << 2;
const XDP_USE_NEED_WAKEUP: u16 = 1 << 3;
const XDP_USE_SG: u16 = 1 << 4;
const XDP_PKT_CONTD: u32 = 1;
/// In unaligned mode the upper 16 bits of an address are how far into its chunk the frame begins.
const OFFSET_SHIFT: u32 = 48;
const SO_PREFER_BUSY_POLL: c_int = 69;
const SO_BUSY_POLL_BUDGET: c_int = 70;
const MEMBARRIER_CMD_GLOBAL: c_int = 1;
const SIOCETHTOOL: c_ulong = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// The kernel wants a completion ring, for what is sent, also of those who only receive, and the other way round: as small as
/// one can be.
pub(super) const FEWEST: u32 = 2;

/// What the kernel has counted since the socket was made: `struct xdp_statistics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Statistics {
    /// Frames for which there was no page, or that were longer than a chunk.
    pub(super) rx_dropped: u64,
    /// Descriptors that were none.
    pub(super) rx_invalid: u64,
    tx_invalid: u64,
    /// Frames for which the rx ring had no room.
    pub(super) rx_ring_full: u64,
    /// Times that a page was wanted and the fill ring had none.
    pub(super) fill_ring_empty: u64,
    tx_ring_empty: u64,
}

/// `struct xdp_umem_reg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UmemRegistration {
    address: u64,
    bytes: u64,
    chunk_bytes: u32,
    headroom: u32,
    flags: u32,
    tx_metadata_bytes: u32,
}

/// `struct sockaddr_xdp`.
#[repr(C)]
struct SocketAddress {
    family: u16,
    flags: u16,
    interface: u32,
    queue: u32,
    shared: u32,
}

/// `struct xdp_mmap_offsets`: where in each ring's memory its parts are.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MmapOffsets {
    rx: ring::RingOffsets,
    tx: ring::RingOffsets,
    fill: ring::RingOffsets,
    completion: ring::RingOffsets,
}

/// Where a socket is to receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct InterfaceQueue {
    pub(super) interface: u32,
    pub(super) queue: u32,
}

/// How a socket's memory is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// How many descriptors its rings have: a power of two.
    pub(super) ring: u32,
    /// What of a page the kernel writes at most, in bytes.
    pub(super) chunk_bytes: u32,
}

/// How a socket is bound.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct How {
    pub(super) zero_copy: bool,
    /// Frames longer than a chunk come in several.
    pub(super) several: bool,
}

/// A page that the kernel has filled, or a part of a frame.
#[derive(Debug)]
pub(super) struct FilledChunk {
    pub(super) page: Page,
    pub(super) offset: u32,
    pub(super) len: u32,
    /// The frame goes on in the next.
    pub(super) goes_on: bool,
}

/// An AF_XDP socket that is not bound to anything yet.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl Socket {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Has the socket work with the pages of `region`, which it registers with the kernel unless another socket has.
    pub(super) fn with_memory(self, region: &Arc<Region>, shape: Shape, rings: Rings) -> io::Result<OpenSocket> {
        let (rx, fill) = self.prepare(region, shape, rings)?;
        Ok(OpenSocket { rx, fill, posted: Posted::new(Arc::clone(region)), socket: self })
    }

    /// Tells the kernel of the memory.
    fn register(&self, region: &Arc<Region>, shape: Shape) -> io::Result<()> {
        if shape.chunk_bytes as usize > region.page_bytes() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the pages are shorter than a chunk"));
        }
        let registration = UmemRegistration {
            address: region.base().as_ptr().expose_provenance() as u64,
            bytes: region.bytes() as u64,
            chunk_bytes: shape.chunk_bytes,
            headroom: 0,
            flags: XDP_UMEM_UNALIGNED_CHUNK_FLAG,
            tx_metadata_bytes: 0,
        };
        // The kernel keeps the memory for itself, and writes what of it is posted: see `OpenSocket::post`.
        self.set(SOL_XDP, XDP_UMEM_REG, &registration)
    }

    fn prepare(&self, region: &Arc<Region>, shape: Shape, rings: Rings) -> io::Result<(Ring<Descriptor>, Ring<u64>)> {
        if rings.register {
            self.register(region, shape)?;
        }
        self.set(SOL_XDP, XDP_UMEM_FILL_RING, &shape.ring)?;
        self.set(SOL_XDP, XDP_UMEM_COMPLETION_RING, &rings.completions)?;
        self.set(SOL_XDP, XDP_RX_RING, &shape.ring)?;
        let offsets: MmapOffsets = self.get(XDP_MMAP_OFFSETS)?;
        let rx = Ring::map(self.0.as_fd(), XDP_PGOFF_RX_RING, offsets.rx, shape.ring)?;
        let fill = Ring::map(self.0.as_fd(), XDP_UMEM_PGOFF_FILL_RING, offsets.fill, shape.ring)?;
        Ok((rx, fill))
    }

    fn bind(&self, place: InterfaceQueue, how: How, shared: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mode = if how.zero_copy { XDP_ZEROCOPY } else { XDP_COPY };
        let flags = mode | XDP_USE_NEED_WAKEUP | if how.several { XDP_USE_SG } else { 0 };
        let address = SocketAddress {
            family: libc::AF_XDP as u16,
            // How is then settled by the first.
            flags: if shared.is_some() { XDP_SHARED_UMEM } else { flags },
            interface: place.interface,
            queue: place.queue,
            shared: shared.map_or(0, |first| first.as_raw_fd() as u32),
        };
        let (at, len) = (std::ptr::from_ref(&address).cast(), size_of::<SocketAddress>() as libc::socklen_t);
        // SAFETY: `len` bytes at `at` are the address.
        checked(unsafe { libc::bind(self.0.as_raw_fd(), at, len) })
    }

    fn is_zero_copy(&self) -> bool {
        self.get::<u32>(XDP_OPTIONS).is_ok_and(|options| options & XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// `T` is a number or a structure of the layout that the kernel wants for `option`.
    fn set<T: Copy>(&self, level: c_int, option: c_int, value: &T) -> io::Result<()> {
        let (at, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
        // SAFETY: the kernel reads `len` bytes, which are those of `value`.
        checked(unsafe { libc::setsockopt(self.0.as_raw_fd(), level, option, at, len) })
    }

    fn get<T: Copy + Default>(&self, option: c_int) -> io::Result<T> {
        let mut value = T::default();
        let mut len = size_of::<T>() as libc::socklen_t;
        let at = std::ptr::from_mut(&mut value).cast();
        // SAFETY: the kernel writes at most `len` bytes, which are those of `value`; it is only used with types of plain
        // numbers, for which any bytes will do.
        checked(unsafe { libc::getsockopt(self.0.as_raw_fd(), SOL_XDP, option, at, &raw mut len) })?;
        Ok(value)
    }
}

/// How many queues an interface has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queues {
    pub(super) receive: u32,
    pub(super) send: u32,
}

/// How many queues the interface has now, asked by any socket that knows of interfaces. `None` where its driver does not say.
pub(super) fn queues(socket: BorrowedFd<'_>, name: &str) -> Option<Queues> {
    // `struct ethtool_channels`: the command, four maxima, and how many there are for receiving, sending, other things and for
    // both at once.
    let mut channels = [0u32; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    // SAFETY: all zeros is a request; its name stays ended by a zero, since the last byte is left alone.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = channels.as_mut_ptr().cast();
    // SAFETY: the kernel follows the pointer to `channels`, which is as large as it takes it to be, and lives.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) }).ok()?;
    let [_, _, _, _, _, receive, send, _, both] = std::hint::black_box(channels);
    let queues = Queues { receive: receive.saturating_add(both), send: send.saturating_add(both) };
    Some(queues).filter(|queues| queues.receive > 0 && queues.send > 0)
}

/// An AF_XDP socket with its rings and its memory.
///
/// What the kernel writes: the pages whose addresses were put into the fill ring. Each of them is in `posted`, so that nobody
/// else has it, and comes out of there only when the kernel gives it back by the rx ring, or when the socket is closed.
#[derive(Debug)]
pub(super) struct OpenSocket {
    rx: Ring<Descriptor>,
    fill: Ring<u64>,
    posted: Posted,
    /// Goes last.
    socket: Socket,
}

impl AsFd for OpenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }
}

impl OpenSocket {
    /// Begins to receive from a queue. Of several on one memory, those after the first say whose it is.
    pub(super) fn bind(&self, place: InterfaceQueue, how: How, shared: Option<&Self>) -> io::Result<()> {
        self.socket.bind(place, how, shared.map(Self::as_fd))
    }

    /// How many pages may be posted now.
    #[inline]
    pub(super) fn room(&mut self) -> u32 {
        self.fill.room()
    }

    /// Puts a page into the fill ring; the kernel sees it after [`show`](Self::show). `Err` returns a page that is of other
    /// memory, or for which there is no room.
    #[inline]
    pub(super) fn post(&mut self, page: Page) -> Result<(), Page> {
        if self.fill.room() == 0 {
            return Err(page);
        }
        let address = self.posted.post(page)?;
        self.fill.push(address);
        Ok(())
    }

    /// Shows the kernel what was posted.
    #[inline]
    pub(super) fn show(&mut self) {
        self.fill.publish();
    }

    /// How many pages the kernel has.
    #[inline]
    pub(super) fn posted(&self) -> usize {
        self.posted.out()
    }

    /// How many descriptors there are to be [taken](Self::take).
    #[inline]
    pub(super) fn filled(&mut self) -> u32 {
        self.rx.filled()
    }

    /// The next filled page. `Err` for one that says of an address that was not posted: it is overlooked.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Result<FilledChunk, BadAddress>> {
        let Descriptor { address, len, options } = self.rx.pop()?;
        let goes_on = options & XDP_PKT_CONTD != 0;
        let Some((page, within)) = self.posted.take(address & ((1 << OFFSET_SHIFT) - 1)) else {
            return Some(Err(BadAddress { goes_on }));
        };
        let offset = within + (address >> OFFSET_SHIFT) as u32;
        Some(Ok(FilledChunk { page, offset, len, goes_on }))
    }

    /// Gives the kernel the room of what was taken.
    #[inline]
    pub(super) fn release(&mut self) {
        self.rx.consumed();
    }

    /// Whether the driver waits to be told that there are pages again.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Has the driver look for pages, and for frames where it is polled by those who want them.
    pub(super) fn wake_up(&self) {
        let fd = self.as_fd().as_raw_fd();
        let null = std::ptr::null_mut();
        // What is wrong with the socket is seen by `take_error`.
        // SAFETY: nothing is written anywhere: of no bytes, and from nobody.
        unsafe { libc::recvfrom(fd, null, 0, libc::MSG_DONTWAIT, null.cast(), null.cast()) };
    }

    /// Has the driver be polled by those who want frames, for so long at a time, up to so many frames.
    pub(super) fn busy_poll(&self, time: Duration, budget: u32) -> io::Result<()> {
        let micros = time.as_micros().clamp(1, i32::MAX as u128) as c_int;
        self.socket.set(libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1)?;
        self.socket.set(libc::SOL_SOCKET, libc::SO_BUSY_POLL, &micros)?;
        self.socket.set(libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &budget)
    }

    pub(super) fn statistics(&self) -> io::Result<Statistics> {
        self.socket.get(XDP_STATISTICS)
    }

    pub(super) fn is_zero_copy(&self) -> bool {
        self.socket.is_zero_copy()
    }

    /// Closes the socket. Returns the pages that it had. Of a socket without a copy there are none: its driver may write to
    /// them for a while, so they stay out of use until the memory ends.
    pub(super) fn close(self) -> Option<Posted> {
        let zero_copy = self.is_zero_copy();
        let Self { rx, fill, posted, socket } = self;
        // The rings keep the socket open. When all three are gone the kernel has waited for everybody who was filling pages.
        drop((rx, fill));
        drop(socket);
        (!zero_copy).then_some(posted)
    }
}

/// The kernel said that it filled a page that it was not given.
#[derive(Clone, Copy, Debug)]
pub(super) struct BadAddress {
    pub(super) goes_on: bool,
}

/// Returns when everything that a CPU was doing for the network as it was called is done. False where the kernel can't say.
pub(super) fn wait_for_receivers() -> bool {
    // The kernel's receive path runs under RCU, and this waits for a grace period.
    // SAFETY: takes numbers only.
    unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) == 0 }
}

/// What a system call that returns nothing but success has said.
fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
