//! The memory of an AF_PACKET ring, which is mapped twice: once to access the status of blocks, and
//! once to lend frames. The kernel's description of a frame is read through the mapping from which
//! the frame is lent. If the description were read through the mapping for the status, each cache
//! that is indexed by virtual address would have a miss.
//!
//! Frames are lent from *places*. A place is an address range with the size of a block, at which a
//! block of the ring is mapped. A copy can replace the block while its frames are lent: handlers
//! see the same bytes, and the kernel gets its block back. After a block was copied, its later
//! frames are lent from another place (address range). A place takes no memory, but a copy of a
//! block does.

use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use steerage::device::{Blocks, Claim, Completions, Lending, move_over};
use steerage::flow::wire::ethertype;

use crate::sys::map;

/// The size of `struct virtio_net_hdr`, which is right before a frame (packet(7), PACKET_VNET_HDR).
const OFFLOADS_BYTES: usize = 10;

/// Offsets in `struct tpacket_block_desc`.
const STATUS_AT: usize = 8;
const FRAMES_AT: usize = 12;
const FIRST_AT: usize = 16;
const USED_AT: usize = 20;

/// The kernel checks the frame size, but TPACKET_V3 does not use it.
const FRAME_BYTES: u32 = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::af_packet) struct Shape {
    pub(in crate::af_packet) blocks: usize,
    pub(in crate::af_packet) places: usize,
    /// The limit on lent frames that wait for CPUs, in the units of [`Blocks::shared`].
    pub(in crate::af_packet) units: Option<u32>,
    /// The size of a block in bytes: a power of two, and a multiple of the page size.
    pub(in crate::af_packet) block_bytes: usize,
    pub(in crate::af_packet) timeout_millis: u32,
    pub(in crate::af_packet) hash: bool,
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
            tp_feature_req_word: if self.hash { libc::TP_FT_REQ_FILL_RXHASH } else { 0 },
        }
    }

    fn bytes(&self) -> usize {
        self.blocks * self.block_bytes
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::af_packet) struct Filled {
    pub(in crate::af_packet) frames: u32,
    pub(in crate::af_packet) first: usize,
    pub(in crate::af_packet) used: usize,
}

/// The size of `struct tpacket3_hdr`, and offsets in it.
const HEADER_BYTES: usize = 48;
const NEXT_AT: usize = 0;
const SECONDS_AT: usize = 4;
const NANOS_AT: usize = 8;
const CAPTURED_AT: usize = 12;
const LEN_AT: usize = 16;
const FRAME_STATUS_AT: usize = 20;
const MAC_AT: usize = 24;
const RXHASH_AT: usize = 28;
const VLAN_TCI_AT: usize = 32;
const VLAN_TPID_AT: usize = 36;

#[derive(Clone, Copy, Debug)]
pub(in crate::af_packet) struct Frame {
    /// The offset of the frame in the bytes that were passed to `read`.
    pub(in crate::af_packet) at: usize,
    pub(in crate::af_packet) len: usize,
    pub(in crate::af_packet) wire_len: u32,
    pub(in crate::af_packet) nanos: u64,
    pub(in crate::af_packet) hash: u32,
    /// The VLAN tag (type and contents) that was removed from the frame, in the frame's byte order.
    pub(in crate::af_packet) tag: Option<[u8; 4]>,
    pub(in crate::af_packet) offloads: Option<[u8; OFFLOADS_BYTES]>,
    /// The distance in bytes to the next frame's description.
    pub(in crate::af_packet) next: usize,
}

impl Frame {
    /// Reads the kernel's description of a frame, at the offset `at`. Returns `None` if the
    /// description or the frame is not within `bytes`.
    #[inline(always)]
    pub(in crate::af_packet) fn read(bytes: &[u8], at: usize, offloads: bool) -> Option<Self> {
        let header: &[u8; HEADER_BYTES] = bytes.get(at..)?.first_chunk()?;
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (start, len) = (at + usize::from(half(MAC_AT)), word(CAPTURED_AT) as usize);
        if start.checked_add(len)? > bytes.len() {
            return None;
        }
        let status = word(FRAME_STATUS_AT);
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            // Old kernels do not report the type of the VLAN tag.
            let is_typed = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let tpid = if is_typed { half(VLAN_TPID_AT) } else { ethertype::VLAN };
            let ([a, b], [c, d]) = (tpid.to_be_bytes(), (word(VLAN_TCI_AT) as u16).to_be_bytes());
            [a, b, c, d]
        });
        let offloads = if offloads { bytes[..start].last_chunk().copied() } else { None };
        Some(Self {
            at: start,
            len,
            wire_len: word(LEN_AT),
            nanos: u64::from(word(SECONDS_AT)) * 1_000_000_000 + u64::from(word(NANOS_AT)),
            hash: word(RXHASH_AT),
            tag,
            offloads,
            next: word(NEXT_AT) as usize,
        })
    }
}

#[derive(Debug)]
struct View {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a view is only an address range. Code that uses the mapping is responsible for how it
// accesses the bytes.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    fn map(bytes: usize, socket: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        match socket {
            Some(socket) => Self::new(bytes, access, libc::MAP_SHARED, socket.as_raw_fd()),
            None => Self::new(bytes, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        }
    }

    fn reserve(bytes: usize) -> io::Result<Self> {
        Self::new(bytes, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
    }

    fn new(bytes: usize, access: c_int, flags: c_int, fd: c_int) -> io::Result<Self> {
        Ok(Self { base: map(bytes, access, flags, fd, 0)?, bytes })
    }

    fn at(&self, at: usize) -> *mut u8 {
        assert!(at < self.bytes, "outside of the ring");
        // SAFETY: `at` is within the mapping, as checked above.
        unsafe { self.base.as_ptr().add(at) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the whole range belongs to this view, whatever is mapped in it, and no code
        // reaches it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A second mapping of a whole ring, from which single blocks are moved to their places.
#[derive(Debug)]
struct Spare {
    base: NonNull<u8>,
    block_bytes: usize,
    there: Box<[bool]>,
}

// SAFETY: as for `View`.
unsafe impl Send for Spare {}

impl Drop for Spare {
    fn drop(&mut self) {
        for (block, _) in self.there.iter().enumerate().filter(|(_, there)| **there) {
            // SAFETY: this block of our own mapping is still in its place. The gaps between the
            // blocks are not unmapped, because other mappings may have been created in them.
            unsafe { libc::munmap(self.base.as_ptr().add(block * self.block_bytes).cast(), self.block_bytes) };
        }
    }
}

/// The memory of one socket's ring.
///
/// The kernel writes to a block only while the block's status says that the kernel owns the block.
/// Blocks are read and lent only between [`filled`](Self::filled) and
/// [`give_back`](Self::give_back). A block with lent frames is returned to the kernel only after a
/// copy has replaced it.
#[derive(Debug)]
pub(in crate::af_packet) struct Memory {
    shape: Shape,
    status: View,
    /// The places, which stay mapped as long as the memory region of the lent frames exists.
    lent: Arc<View>,
    /// Gives access to the memory of the lent blocks. No code outside this struct gets `claim`.
    claim: Option<Claim>,
    spare: Option<Spare>,
}

impl Memory {
    pub(in crate::af_packet) fn map(socket: BorrowedFd<'_>, shape: Shape) -> io::Result<Self> {
        let status = View::map(shape.bytes(), Some(socket))?;
        let lent = Arc::new(View::reserve(shape.places.max(shape.blocks) * shape.block_bytes)?);
        let blocks = View::map(shape.bytes(), Some(socket))?;
        // SAFETY: both mappings are new, and have these bytes.
        unsafe { move_over(blocks.base.as_ptr(), lent.at(0), shape.bytes())? };
        std::mem::forget(blocks);
        Ok(Self { shape, status, lent, claim: None, spare: None })
    }

    pub(in crate::af_packet) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the places (address ranges for lending) as `Blocks`; fails at a second call. Copies
    /// of blocks may together take as much memory as the ring.
    pub(in crate::af_packet) fn blocks(&mut self) -> io::Result<Blocks> {
        if self.claim.is_some() {
            return Err(io::Error::other("its memory was given away before"));
        }
        let (lent, shape) = (Arc::clone(&self.lent), &self.shape);
        let (places, memory) = (self.lent.bytes / shape.block_bytes, 2 * shape.bytes());
        // SAFETY: the view has as many bytes as the places together, and is unmapped when its last
        // `Arc` is gone. The region owns one of these `Arc`s. The view becomes a `Blocks` only
        // here, and only once: `self.claim` is `None` before this call and `Some` after it. The
        // claim stays in `self`. Memory is accessed by the claim in `lending` alone, for a place
        // that shows a block which the kernel has filled. The kernel does not write to such a block
        // before the block is given back. The block is given back when no frame of the place is
        // lent, or after `rescue` has put equal bytes where the frames are read. A place shows
        // another block only when no frame of the place is lent.
        let made = unsafe { Blocks::foreign(self.lent.base, places, shape.block_bytes, lent, memory) };
        let (blocks, claim) = made.map_err(io::Error::other)?;
        self.claim = Some(claim);
        Ok(match shape.units {
            Some(units) => blocks.shared(units),
            None => blocks,
        })
    }

    pub(in crate::af_packet) fn own<'o>(&self, out: &'o mut Completions<'_>) -> Option<&'o mut Blocks> {
        out.blocks(self.claim.as_ref()?)
    }

    /// Sets how much lent memory a place counts as, in the units of [`Blocks::weigh`].
    pub(in crate::af_packet) fn weigh(&self, blocks: &mut Blocks, place: usize, units: u32) {
        self.claim.iter().for_each(|claim| blocks.weigh(claim, place, units));
    }

    /// Returns the first `used` bytes of a filled block, at the address range `place`. `None` if
    /// the kernel owns the block, or if `out` belongs to another ring.
    pub(in crate::af_packet) fn lending<'o>(
        &self,
        out: &'o mut Completions<'_>,
        (block, place): (usize, usize),
        used: usize,
    ) -> Option<Lending<'o>> {
        let claim = self.claim.as_ref().filter(|_| self.is_filled(block))?;
        out.lending(claim, place, used)
    }

    fn word(&self, block: usize, at: usize) -> &AtomicU32 {
        assert!(at % 4 == 0 && at + 4 <= self.shape.block_bytes);
        // SAFETY: within the mapping and aligned, since a block is whole pages. The kernel also
        // accesses the status word, so this process accesses it as an atomic. The mapping lives as
        // long as `self`.
        unsafe { AtomicU32::from_ptr(self.status.at(block * self.shape.block_bytes + at).cast()) }
    }

    pub(in crate::af_packet) fn is_filled(&self, block: usize) -> bool {
        // `Acquire` pairs with the kernel's barrier before its write of the status.
        self.word(block, STATUS_AT).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Returns the contents of a filled block. An invalid length of the contents is replaced by the
    /// block's length.
    pub(in crate::af_packet) fn filled(&self, block: usize) -> Option<Filled> {
        if !self.is_filled(block) {
            return None;
        }
        // `Relaxed` suffices, because the `Acquire` load above makes these fields visible.
        let word = |at| self.word(block, at).load(Ordering::Relaxed);
        let used = (word(USED_AT) as usize).min(self.shape.block_bytes);
        Some(Filled { frames: word(FRAMES_AT), first: word(FIRST_AT) as usize, used })
    }

    pub(in crate::af_packet) fn give_back(&mut self, block: usize) {
        // `Release` pairs with the kernel's read of the status before it fills the block. All reads
        // of the block by this process happen before this store.
        self.word(block, STATUS_AT).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }

    /// Returns the bytes of a filled block that is mapped at no place, so that its frames can be
    /// copied.
    pub(in crate::af_packet) fn unlent(&self, block: usize, used: usize) -> &[u8] {
        if !self.is_filled(block) {
            return &[];
        }
        let base = self.status.at(block * self.shape.block_bytes);
        // SAFETY: within the mapping, which lives as long as `self`. The kernel does not write to a
        // filled block, and `give_back` needs `&mut self`. Without a place, no other code of this
        // process reaches the block.
        unsafe { std::slice::from_raw_parts(base, used.min(self.shape.block_bytes)) }
    }

    /// Replaces the block at a place by a copy of its first `used` bytes, so that the block can be
    /// returned. A thread that reads the block's frames always sees the same bytes.
    pub(in crate::af_packet) fn rescue(&self, place: usize, used: usize) -> io::Result<()> {
        let bytes = self.shape.block_bytes;
        let place = self.lent.at(place * bytes);
        let copy = View::map(bytes, None)?;
        // SAFETY: both ranges have `bytes` bytes and do not overlap. The source is the mapping for
        // lending, because the frame headers were written to this mapping. No code writes to the
        // source, because no `Tail` of a block exists during this call.
        unsafe { std::ptr::copy_nonoverlapping(place, copy.base.as_ptr(), used.min(bytes)) };
        // SAFETY: as above. Frames are read only in the first `used` bytes, which are the same in
        // both mappings.
        unsafe { move_over(copy.base.as_ptr(), place, bytes)? };
        std::mem::forget(copy);
        Ok(())
    }

    /// Maps a block at the address range `place`, from which no frame may be lent at that time.
    pub(in crate::af_packet) fn show(&mut self, socket: BorrowedFd<'_>, block: usize, place: usize) -> io::Result<()> {
        let Shape { blocks, block_bytes, .. } = self.shape;
        // A ring can only be mapped as a whole. The whole ring is mapped here, and later calls of
        // `show` take their blocks from this mapping.
        if !self.spare.as_ref().is_some_and(|spare| spare.there[block]) {
            let view = View::map(self.shape.bytes(), Some(socket))?;
            self.spare = Some(Spare { base: view.base, block_bytes, there: vec![true; blocks].into() });
            std::mem::forget(view);
        }
        let Some(spare) = &mut self.spare else { return Ok(()) };
        // SAFETY: the block is within the spare's mapping, in which nobody reads. No frame of the
        // place is lent, so no code reads there either.
        unsafe {
            let from = spare.base.as_ptr().add(block * block_bytes);
            move_over(from, self.lent.at(place * block_bytes), block_bytes)?;
        }
        spare.there[block] = false;
        Ok(())
    }
}
