//! The memory of a ring, mapped twice: once for the kernel's headers, and once to lend frames from.
//!
//! The second mapping of a block can be replaced by a copy while its frames are lent. The reader of a frame sees the
//! same bytes, and the kernel gets its block back.

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use steerage::device::{Blocks, Claim, Completions, Lending};

use crate::memory::GIVEN;

const TP_STATUS_KERNEL: u32 = 0;
const TP_STATUS_USER: u32 = 1;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
const TP_FT_REQ_FILL_RXHASH: c_uint = 1;

/// `struct virtio_net_hdr`, which packet sockets put right before a frame (packet(7), PACKET_VNET_HDR).
const OFFLOADS_BYTES: usize = 10;

/// What a tag is by default (IEEE 802.1Q), where an old kernel does not say.
const TPID_DEFAULT: u16 = 0x8100;

/// Where `struct tpacket_block_desc` has what is read of it.
const STATUS_AT: usize = 8;
const FRAMES_AT: usize = 12;
const FIRST_AT: usize = 16;
const USED_AT: usize = 20;

/// What the ring's frames are made up of for the old versions of the interface: it is checked and not used.
const FRAME_BYTES: u32 = 2048;

/// How a ring is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::af_packet) struct Shape {
    pub(in crate::af_packet) blocks: usize,
    /// A power of two and whole pages.
    pub(in crate::af_packet) block_bytes: usize,
    pub(in crate::af_packet) timeout_millis: u32,
    /// Have the kernel note its hash of each frame's flow.
    pub(in crate::af_packet) hash: bool,
    /// A `virtio_net_hdr` stands before each frame.
    pub(in crate::af_packet) offloads: bool,
}

impl Shape {
    pub(super) fn request(&self) -> libc::tpacket_req3 {
        let (block_bytes, blocks) = (self.block_bytes as c_uint, self.blocks as c_uint);
        libc::tpacket_req3 {
            tp_block_size: block_bytes,
            tp_block_nr: blocks,
            tp_frame_size: FRAME_BYTES,
            tp_frame_nr: block_bytes / FRAME_BYTES * blocks,
            tp_retire_blk_tov: self.timeout_millis,
            tp_sizeof_priv: 0,
            tp_feature_req_word: if self.hash { TP_FT_REQ_FILL_RXHASH } else { 0 },
        }
    }

    fn bytes(&self) -> usize {
        self.blocks * self.block_bytes
    }
}

/// A block that the kernel has filled.
#[derive(Clone, Copy, Debug)]
pub(in crate::af_packet) struct Filled {
    pub(in crate::af_packet) frames: u32,
    /// Where in it the first frame's header is.
    pub(in crate::af_packet) first: usize,
    /// How much of it is used.
    pub(in crate::af_packet) used: usize,
}

/// `struct tpacket3_hdr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    next_offset: u32,
    sec: u32,
    nsec: u32,
    snaplen: u32,
    len: u32,
    status: u32,
    mac: u16,
    net: u16,
    rxhash: u32,
    vlan_tci: u32,
    vlan_tpid: u16,
    padding: u16,
}

/// What the kernel says of a frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::af_packet) struct Frame {
    /// Where in its block it begins, and how long it is.
    pub(in crate::af_packet) at: usize,
    pub(in crate::af_packet) len: usize,
    pub(in crate::af_packet) wire_len: u32,
    pub(in crate::af_packet) nanos: u64,
    pub(in crate::af_packet) hash: u32,
    /// The VLAN tag that was taken out of it, type and contents as they stood there.
    pub(in crate::af_packet) tag: Option<[u8; 4]>,
    /// What the kernel says of its offloads, if it was asked.
    pub(in crate::af_packet) offloads: Option<[u8; OFFLOADS_BYTES]>,
    /// How far it is to the next frame's header.
    pub(in crate::af_packet) next: usize,
}

/// A whole ring, mapped.
#[derive(Debug)]
struct View {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range. What is done with its bytes is the business of those who do it.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    fn map(bytes: usize, socket: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let (flags, fd): (c_int, c_int) = match socket {
            Some(socket) => (libc::MAP_SHARED, socket.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap gave the null address"))?;
        Ok(Self { base, bytes })
    }

    /// Byte `at`, which must lie within it.
    fn at(&self, at: usize) -> *mut u8 {
        assert!(at < self.bytes, "outside of the ring");
        // SAFETY: within the mapping, as was checked.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: all of the range is this view's, whatever is mapped in it, and nobody reaches it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A whole ring, mapped once more, of which blocks have been taken away.
#[derive(Debug)]
struct Spare {
    base: NonNull<u8>,
    block_bytes: usize,
    there: Box<[bool]>,
}

// SAFETY: as `View`.
unsafe impl Send for Spare {}

impl Drop for Spare {
    fn drop(&mut self) {
        for (block, _) in self.there.iter().enumerate().filter(|(_, there)| **there) {
            // SAFETY: a block of our own mapping that is still in its place. The gaps are not touched: they may be
            // somebody else's by now.
            unsafe { libc::munmap(self.base.as_ptr().add(block * self.block_bytes).cast(), self.block_bytes) };
        }
    }
}

/// The memory of one socket's ring.
///
/// The kernel writes a block only while its status says that it is the kernel's. What is read here of a block, and what is
/// lent of it, is asked for between [`filled`](Self::filled) and [`give_back`](Self::give_back); a block of which frames are
/// out is given back only once a copy lies in its place.
#[derive(Debug)]
pub(in crate::af_packet) struct Memory {
    shape: Shape,
    /// What is said to the kernel, and read of what it says.
    status: View,
    /// Where frames are lent from. It lives as long as the region that they are read through.
    lent: Arc<View>,
    /// To the blocks in it, once they were given away. It stays here.
    claim: Option<Claim>,
    spare: Option<Spare>,
}

impl Memory {
    /// Maps the ring of `socket`, which has the shape.
    pub(in crate::af_packet) fn map(socket: BorrowedFd<'_>, shape: Shape) -> io::Result<Self> {
        let status = View::map(shape.bytes(), Some(socket))?;
        let lent = Arc::new(View::map(shape.bytes(), Some(socket))?);
        Ok(Self { shape, status, lent, claim: None, spare: None })
    }

    pub(in crate::af_packet) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The blocks to lend frames from: given away once. As much again as they have is what the copies may take.
    pub(in crate::af_packet) fn blocks(&mut self) -> io::Result<Blocks> {
        if self.claim.is_some() {
            return Err(io::Error::other(GIVEN));
        }
        let (lent, shape) = (Arc::clone(&self.lent), &self.shape);
        // SAFETY: the view has as many bytes as the blocks together, and is unmapped when its last `Arc`, one of which the
        // region owns, is gone. These are the only blocks made of it, since there is no claim yet, and the claim stays in `self`.
        // It is used in `lending` alone, for a block that the kernel has filled: the kernel does not write that before it is
        // given back. It is given back when no frame of it is out, or when `rescue` has put equal bytes where they are read.
        let made = unsafe { Blocks::foreign(self.lent.base, shape.blocks, shape.block_bytes, lent, shape.bytes()) };
        let (blocks, claim) = made.map_err(io::Error::other)?;
        self.claim = Some(claim);
        Ok(blocks)
    }

    /// The blocks, if they are those that the queue is polled with.
    pub(in crate::af_packet) fn own<'o>(&self, out: &'o mut Completions<'_>) -> Option<&'o mut Blocks> {
        out.blocks(self.claim.as_ref()?)
    }

    /// The first `used` bytes of a filled block, to be handed over. `None` if the kernel has the block, or if the queue is polled with
    /// other blocks.
    pub(in crate::af_packet) fn lending<'o>(
        &self,
        out: &'o mut Completions<'_>,
        block: usize,
        used: usize,
    ) -> Option<Lending<'o>> {
        let claim = self.claim.as_ref().filter(|_| self.is_filled(block))?;
        out.lending(claim, block, used)
    }

    fn word(&self, block: usize, at: usize) -> &AtomicU32 {
        assert!(at % 4 == 0 && at + 4 <= self.shape.block_bytes);
        // SAFETY: within the mapping, aligned (a block is whole pages), and shared with the kernel, for which an atomic is
        // made. It lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.status.at(block * self.shape.block_bytes + at).cast()) }
    }

    /// Whether the kernel has filled the block and not got it back.
    pub(in crate::af_packet) fn is_filled(&self, block: usize) -> bool {
        // Acquire: pairs with the kernel's barrier before it writes the status; what it wrote before is then seen.
        self.word(block, STATUS_AT).load(Ordering::Acquire) & TP_STATUS_USER != 0
    }

    /// What the block holds, if it is filled. Of what the kernel says nothing is believed that is outside of the block.
    pub(in crate::af_packet) fn filled(&self, block: usize) -> Option<Filled> {
        if !self.is_filled(block) {
            return None;
        }
        // Relaxed: seen by the acquire before.
        let word = |at| self.word(block, at).load(Ordering::Relaxed);
        let used = (word(USED_AT) as usize).min(self.shape.block_bytes);
        Some(Filled { frames: word(FRAMES_AT), first: word(FIRST_AT) as usize, used })
    }

    /// Gives a filled block back to the kernel.
    pub(in crate::af_packet) fn give_back(&self, block: usize) {
        // Release: pairs with the kernel's reading of the status before it fills the block: what was read here was read
        // before.
        self.word(block, STATUS_AT).store(TP_STATUS_KERNEL, Ordering::Release);
    }

    /// What the kernel says of the frame whose header is at `at` of a filled block. `None` if it is not within its first
    /// `used` bytes.
    #[inline]
    pub(in crate::af_packet) fn frame(&self, block: usize, at: usize, used: usize) -> Option<Frame> {
        let used = used.min(self.shape.block_bytes);
        if at % align_of::<Header>() != 0 || at.checked_add(size_of::<Header>())? > used {
            return None;
        }
        // SAFETY: aligned and within the block, as was checked; any bytes are a header, and the kernel does not write them
        // while the block is filled.
        let header: Header = unsafe { self.status.at(block * self.shape.block_bytes + at).cast::<Header>().read() };
        let start = at + usize::from(header.mac);
        let len = header.snaplen as usize;
        if start.checked_add(len)? > used {
            return None;
        }
        let tag = (header.status & TP_STATUS_VLAN_VALID != 0).then(|| {
            let told = header.status & TP_STATUS_VLAN_TPID_VALID != 0;
            let tpid = if told { header.vlan_tpid } else { TPID_DEFAULT };
            let ([a, b], [c, d]) = (tpid.to_be_bytes(), (header.vlan_tci as u16).to_be_bytes());
            [a, b, c, d]
        });
        let offloads = start.checked_sub(OFFLOADS_BYTES).filter(|_| self.shape.offloads).map(|before| {
            let mut told = [0; OFFLOADS_BYTES];
            self.copy_to(block, before, &mut told);
            told
        });
        Some(Frame {
            offloads,
            at: start,
            len,
            wire_len: header.len,
            nanos: u64::from(header.sec) * 1_000_000_000 + u64::from(header.nsec),
            hash: header.rxhash,
            tag,
            next: header.next_offset as usize,
        })
    }

    /// Copies bytes of a filled block, from `at` on. False if they are not all within it.
    pub(in crate::af_packet) fn copy_to(&self, block: usize, at: usize, to: &mut [u8]) -> bool {
        if at >= self.shape.block_bytes || to.len() > self.shape.block_bytes - at {
            return false;
        }
        let from = self.status.at(block * self.shape.block_bytes + at);
        // SAFETY: within the block, as was checked; `to` is no part of a ring, and the kernel does not write a filled block.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        true
    }

    /// Puts a copy of the block's first `used` bytes where its frames are lent from, so that it can be given back to the
    /// kernel. Whoever reads them meanwhile sees them as they were.
    pub(in crate::af_packet) fn rescue(&self, block: usize, used: usize) -> io::Result<()> {
        let bytes = self.shape.block_bytes;
        let place = self.lent.at(block * bytes);
        let copy = View::map(bytes, None)?;
        // SAFETY: both are as long, and apart. From where frames are lent, since their headers were written there. Nobody
        // writes there: no `Tail` of a block is held while this is called.
        unsafe { std::ptr::copy_nonoverlapping(place, copy.base.as_ptr(), used.min(bytes)) };
        move_over(copy.base.as_ptr(), place, bytes)?;
        // Nothing is left in its first place.
        std::mem::forget(copy);
        Ok(())
    }

    /// Has frames of the block lent from the ring again: none of it may be out.
    pub(in crate::af_packet) fn restore(&mut self, socket: BorrowedFd<'_>, block: usize) -> io::Result<()> {
        let Shape { blocks, block_bytes, .. } = self.shape;
        // A ring can be mapped as a whole only: what is not wanted now serves the next time.
        if !self.spare.as_ref().is_some_and(|spare| spare.there[block]) {
            let view = View::map(self.shape.bytes(), Some(socket))?;
            self.spare = Some(Spare { base: view.base, block_bytes, there: vec![true; blocks].into() });
            // The spare unmaps it, as far as it is still there.
            std::mem::forget(view);
        }
        let Some(spare) = &mut self.spare else { return Ok(()) };
        // SAFETY: within the spare's mapping.
        let from = unsafe { spare.base.as_ptr().add(block * block_bytes) };
        move_over(from, self.lent.at(block * block_bytes), block_bytes)?;
        spare.there[block] = false;
        Ok(())
    }
}

/// Moves the mapping of `bytes` at `from` to `to`, over what is mapped there: in one step for whoever reads there meanwhile.
fn move_over(from: *mut u8, to: *mut u8, bytes: usize) -> io::Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: both ranges are whole mappings of this module's own. What `to` shows before and after is the same wherever
    // somebody may be reading (`rescue`), or nobody is (`restore`).
    let moved = unsafe { libc::mremap(from.cast(), bytes, bytes, flags, to.cast::<libc::c_void>()) };
    if moved != libc::MAP_FAILED {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let mut resident = vec![0_u8; bytes.div_ceil(4096)];
    // SAFETY: it reads no memory, and writes a byte for each page to a vector that has as many (pages are 4 KiB or more).
    if unsafe { libc::mincore(to.cast(), bytes, resident.as_mut_ptr()) } != 0 {
        // The kernel had taken the old mapping away before it failed, and somebody may be about to read there.
        std::process::abort();
    }
    Err(error)
}
