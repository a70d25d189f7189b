//! Packets and batches. A packet's metadata is built only when needed, on the CPU that needs it.

mod shape;

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;

use crate::backlog::Source;
use crate::ids::{BucketId, CpuIndex, InputId, TxId, Verdict};
use crate::limits::{HANDLE_BUDGET, HEADROOM, OUTPUTS_MAX};
use crate::rps_map::bucket_of;
use steerage_flow::dissect::{Dissection, Dissections, dissect};
use steerage_flow::offload::{Offload, Segment};
use steerage_flow::{FlowHash, FlowKey, LinkType, WallTime};
use steerage_mem::ring::{Frame, Frames, Hand};
use steerage_mem::{FrameHeader, Kept as WrittenCopy, Spare, Stays};

pub use crate::ids::Positions;
pub use crate::kept::Kept;
pub use steerage_mem::{Behind, NoRoom, Segments, SegmentsMut};

use crate::kept::{link_of, time_of};

pub(crate) struct BatchContext<'a> {
    pub(crate) source: &'a Source,
    pub(crate) group: u16,
    pub(crate) spare: &'a Spare,
    pub(crate) dissections: &'a Dissections,
}

/// The verdicts of a batch by position, stored outside of the handler to survive a panic of the
/// handler.
#[derive(Debug)]
pub(crate) struct Actions {
    pub(crate) verdicts: [Verdict; HANDLE_BUDGET],
    pub(crate) copies: Vec<Option<WrittenCopy>>,
    /// True if the handler gave a verdict or wrote to a packet, or if packets were merged.
    pub(crate) acted: Cell<bool>,
}

impl Actions {
    pub(crate) fn new() -> Self {
        Self {
            verdicts: [Verdict::Consumed; HANDLE_BUDGET],
            copies: (0..HANDLE_BUDGET).map(|_| None).collect(),
            acted: Cell::new(false),
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.acted.take() {
            self.verdicts = [Verdict::Consumed; HANDLE_BUDGET];
            self.copies.fill_with(|| None);
        }
    }

    pub(crate) fn any(&self) -> bool {
        self.acted.get()
    }

    pub(crate) fn tally(&self, count: usize) -> Tally {
        let mut tally = Tally { discarded: 0, kept: 0, transmitted: [0; OUTPUTS_MAX] };
        for verdict in &self.verdicts[..count] {
            match verdict {
                Verdict::Consumed => {}
                Verdict::Discarded => tally.discarded += 1,
                Verdict::Kept => tally.kept += 1,
                Verdict::Transmitted(to) => tally.transmitted[usize::from(to.0)] += 1,
            }
        }
        tally
    }

    pub(crate) fn each(&self) -> (std::slice::Iter<'_, Verdict>, std::slice::Iter<'_, Option<WrittenCopy>>) {
        (self.verdicts.iter(), self.copies.iter())
    }
}

pub(crate) struct Tally {
    pub(crate) discarded: u64,
    pub(crate) kept: u64,
    pub(crate) transmitted: [u8; OUTPUTS_MAX],
}

const _: () = assert!(HANDLE_BUDGET <= u8::MAX as usize && OUTPUTS_MAX > u8::MAX as usize);

/// A batch: up to [`HANDLE_BUDGET`] packets of one queue, in order of arrival.
///
/// With `Builder::coalesce`, consecutive segments of a flow are merged into a
/// [super-frame](Packet::offload): [`data`](Packet::data) returns its headers,
/// [`segments`](Packet::segments) the payloads, and [`parts`](Packet::parts) splits it. A
/// super-frame has the position of its first segment, and its verdict applies to every merged
/// frame.
pub struct Batch<'a> {
    frames: Hand<'a>,
    actions: &'a mut Actions,
    context: BatchContext<'a>,
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch of {} packets of queue {}", self.len(), self.queue())
    }
}

impl<'a> Batch<'a> {
    #[inline(always)]
    pub(crate) fn new(frames: Hand<'a>, actions: &'a mut Actions, context: BatchContext<'a>) -> Self {
        Self { frames, actions, context }
    }

    /// Returns the number of packets in the batch.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns true if the batch is empty. A handler is never called with an empty batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of the input that received the packets.
    pub fn input(&self) -> InputId {
        self.context.source.input
    }

    /// Returns the number of the receive queue, counted over all inputs as in
    /// [`Snapshot::queues`](steerage_ledger::Snapshot::queues).
    pub fn queue(&self) -> usize {
        self.context.source.queue
    }

    /// Calls `read` with the position and the fields of each common packet: an Ethernet frame in
    /// one part that needs no offload work. `read` gets only packets that, like the batch's first
    /// packet, have a record of their time and wire length, or have none. `read` returns true if it
    /// has finished the packet. Returns the positions of all other packets, for
    /// [`iter_mut`](Self::iter_mut).
    ///
    /// `read_common` costs about half as much as iterating over all packets, and suits packet
    /// functions that read the whole batch before they act on it.
    #[inline(always)]
    pub fn read_common(&mut self, mut read: impl FnMut(usize, Received<'_>) -> bool) -> Positions {
        const _: () = assert!(HANDLE_BUDGET <= u64::BITS as usize, "each packet of a batch has a bit");
        if self.actions.acted.get() {
            return Positions(((1_u128 << self.len().min(HANDLE_BUDGET)) - 1) as u64);
        }
        let read = |nth: usize, data: &[u8], header: FrameHeader| {
            let (link, time, wire_len) = (LinkType::ETHERNET, time_of(&header), header.wire_len as usize);
            read(nth, Received { data, total_len: data.len(), link, time, wire_len })
        };
        Positions(self.frames.read_common(LinkType::ETHERNET.code(), read))
    }

    /// Iterates over the packets of the batch, from the first packet at each call. Verdicts that
    /// were given in earlier iterations remain. A packet that the handler has kept is empty in
    /// later iterations.
    #[inline]
    pub fn iter_mut(&mut self) -> Packets<'_> {
        let Actions { verdicts, copies, acted } = &mut *self.actions;
        Packets {
            frames: self.frames.frames(),
            verdicts: verdicts.iter_mut(),
            copies: self.context.source.copies.then(|| copies.iter_mut()),
            acted,
            context: &self.context,
        }
    }
}

/// Allows `for packet in batch`, or `for packet in &mut *batch` to use the batch after the loop.
///
/// ```
/// # mod steerage { pub use steerage_core::packet::*; }
/// use steerage::Batch;
///
/// /// Discards short packets, and returns the length of the others.
/// fn without_short(batch: &mut Batch<'_>) -> usize {
///     for packet in &mut *batch {
///         if packet.total_len() < 64 {
///             packet.discard();
///         }
///     }
///     let mut bytes = 0;
///     for packet in batch {
///         bytes += packet.total_len();
///     }
///     bytes
/// }
/// ```
impl<'a> IntoIterator for &'a mut Batch<'_> {
    type Item = Packet<'a>;
    type IntoIter = Packets<'a>;

    fn into_iter(self) -> Packets<'a> {
        self.iter_mut()
    }
}

/// Iterates over the packets of a batch: see [`Batch::iter_mut`].
pub struct Packets<'a> {
    frames: Frames<'a>,
    verdicts: std::slice::IterMut<'a, Verdict>,
    /// The writable copies of frames. `None` if all frames lie in pages of the pool and are not
    /// merged.
    copies: Option<std::slice::IterMut<'a, Option<WrittenCopy>>>,
    acted: &'a Cell<bool>,
    context: &'a BatchContext<'a>,
}

impl fmt::Debug for Packets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} packets", self.frames.len())
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'a>> {
        let frame = self.frames.next()?;
        let verdict = self.verdicts.next()?;
        let copy = self.copies.as_mut().and_then(Iterator::next);
        Some(Packet(Stays(InBatch { frame, verdict, copy, acted: self.acted, context: self.context })))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.frames.size_hint()
    }
}

impl ExactSizeIterator for Packets<'_> {}

#[inline(always)]
pub(crate) fn received<'p>(frame: &'p Frame<'_>, written: Option<&'p WrittenCopy>) -> Received<'p> {
    let ((header, data), behind) = match written {
        Some(copy) => ((copy.header(), &**copy), copy.behind_bytes(frame)),
        None => (frame.with_header(), 0),
    };
    let link = link_of(frame.link(), || header);
    let total_len = if frame.is_chained() { frame.total_len() } else { data.len() + behind };
    let (time, wire_len) = header.map_or((None, total_len), |header| (time_of(&header), header.wire_len as usize));
    Received { data, total_len, link, time, wire_len }
}

/// Iterates over the packets of a super-frame (a merged packet): see [`Packet::parts`].
pub type Parts<'a> = steerage_flow::offload::Segments<'a, Behind<'a>>;

pub(crate) fn parts<'p>(frame: &'p Frame<'_>, written: Option<&'p WrittenCopy>, offload: &Offload) -> Parts<'p> {
    let (front, behind) = WrittenCopy::split(written, frame, offload.header_bytes());
    Parts::of_pieces(offload, front, behind)
}

#[inline(always)]
pub(crate) fn offload(frame: &Frame<'_>, written: Option<&WrittenCopy>) -> Option<Offload> {
    if frame.has_extra() { offload_of(frame, written) } else { None }
}

#[cold]
fn offload_of(frame: &Frame<'_>, written: Option<&WrittenCopy>) -> Option<Offload> {
    let merged = written.and_then(WrittenCopy::record);
    let offload = Offload::from_bytes(merged.or_else(|| frame.extra())?)?;
    let Some(copy) = written else { return Some(offload) };
    offload.shifted(copy.len() as isize - copy.front()? as isize)
}

/// One packet of a batch. A packet that is dropped without a verdict counts as consumed.
///
/// ```
/// # mod steerage { pub use {steerage_core::{ids::*, packet::*}, steerage_flow::*}; }
/// use steerage::{Batch, TxId};
///
/// /// Sends packets to port 53 to an output, and drops the others.
/// fn dns_only(batch: &mut Batch<'_>, to: TxId) {
///     for packet in batch.iter_mut() {
///         let destination = packet.flow_key().and_then(|key| key.destination());
///         if destination.is_some_and(|end| end.port() == 53) { packet.transmit(to) } else { packet.discard() }
///     }
/// }
/// ```
///
/// A packet must stay on the thread of its batch, unless the handler [keeps](Self::keep) it:
///
/// ```compile_fail,E0277
/// # mod steerage { pub use steerage_core::packet::*; }
/// use std::thread;
/// use steerage::Batch;
///
/// fn on_other_threads(batch: &mut Batch<'_>) {
///     thread::scope(|scope| {
///         for packet in batch {
///             scope.spawn(move || println!("{} bytes", packet.total_len()));
///         }
///     });
/// }
/// ```
pub struct Packet<'a>(Stays<InBatch<'a>>);

/// The type that the compiler's error message names if a program sends a packet to another thread.
struct InBatch<'a> {
    frame: Frame<'a>,
    verdict: &'a mut Verdict,
    copy: Option<&'a mut Option<WrittenCopy>>,
    acted: &'a Cell<bool>,
    context: &'a BatchContext<'a>,
}

impl fmt::Debug for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet of {} bytes", self.total_len())
    }
}

/// All readable fields of a packet: see [`Packet::received`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Received<'p> {
    /// See [`Packet::data`].
    pub data: &'p [u8],
    /// See [`Packet::total_len`].
    pub total_len: usize,
    /// See [`Packet::link`].
    pub link: LinkType,
    /// See [`Packet::time`].
    pub time: Option<WallTime>,
    /// See [`Packet::wire_len`].
    pub wire_len: usize,
}

impl Packet<'_> {
    /// Returns the frame's bytes, beginning with the link header. If the frame has several
    /// [parts](Self::segments), returns the bytes of the first part, which contains all headers.
    #[inline]
    pub fn data(&self) -> &[u8] {
        match self.written() {
            Some(copy) => copy,
            None => self.0.frame.bytes(),
        }
    }

    #[inline(always)]
    fn written(&self) -> Option<&WrittenCopy> {
        if !self.0.acted.get() {
            return None;
        }
        self.0.copy.as_deref().and_then(Option::as_ref)
    }

    /// Returns the frame's bytes and all fields that the device recorded about the frame. One call
    /// of `received` costs half as much as separate calls for these fields.
    #[inline(always)]
    pub fn received(&self) -> Received<'_> {
        received(&self.0.frame, self.written())
    }

    /// Like [`data`](Self::data), but writable. A lent frame (in memory of the device) is first
    /// copied to a page. Of a super-frame (a merged packet), only the headers are copied and
    /// writable; [`segments`](Self::segments) returns both headers and payload.
    ///
    /// # Errors
    /// [`NoRoom`] if no page is free for the copy, or if the frame is longer than a page.
    pub fn data_mut(&mut self) -> Result<&mut [u8], NoRoom> {
        self.forget_dissection();
        if self.0.frame.is_writable() {
            return self.0.frame.bytes_mut().ok_or(NoRoom::Taken);
        }
        self.copy_mut(None).map(|copy| &mut **copy)
    }

    fn copy_mut(&mut self, most: Option<usize>) -> Result<&mut WrittenCopy, NoRoom> {
        if !matches!(self.0.copy, Some(Some(_))) {
            let copied = self.copied(most)?;
            self.0.acted.set(true);
            **self.0.copy.as_mut().ok_or(NoRoom::Taken)? = Some(copied);
        }
        self.0.copy.as_mut().and_then(|copy| copy.as_mut()).ok_or(NoRoom::Taken)
    }

    /// Returns the time at which the device received the frame, if recorded.
    #[inline]
    pub fn time(&self) -> Option<WallTime> {
        time_of(&self.header()?)
    }

    /// Returns the length of the frame on the wire, in bytes (a capture file may contain only a
    /// part of the frame), or the received length if the device did not record the wire length.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.header().map_or_else(|| self.total_len(), |header| header.wire_len as usize)
    }

    /// Returns the number of the device's interface that received the frame, if recorded.
    #[inline]
    pub fn interface(&self) -> Option<u16> {
        self.header().map(|header| header.interface)
    }

    #[inline]
    fn header(&self) -> Option<FrameHeader> {
        self.written().map_or_else(|| self.0.frame.header(), WrittenCopy::header)
    }

    /// Returns the offload work that the frame still needs: for a super-frame, which represents
    /// several packets, and for a packet with an incomplete checksum. Writing to a packet that is
    /// no super-frame completes the checksum; afterwards, `offload` returns `None` for this packet.
    #[inline(always)]
    pub fn offload(&self) -> Option<Offload> {
        offload(&self.0.frame, self.written())
    }

    /// The verdict so far.
    #[inline]
    pub fn verdict(&self) -> Verdict {
        *self.0.verdict
    }

    /// Returns the parsed headers of the frame: the flow, the tunnels, and the offsets of the
    /// headers and the payload. The result is cached until the handler writes to the packet.
    /// `Builder::layers` sets whether the headers inside of tunnels are parsed.
    pub fn dissection(&self) -> impl Deref<Target = Dissection> + '_ {
        let layers = self.0.context.source.hasher.layers();
        self.0.context.dissections.get_or(self.0.frame.nth(), || dissect(self.data(), self.link(), layers))
    }

    fn forget_dissection(&mut self) {
        self.0.context.dissections.forget(self.0.frame.nth());
    }

    /// Returns the packet's flow key, or `None` if the packet is not an IP packet.
    pub fn flow_key(&self) -> Option<FlowKey> {
        let dissection = self.dissection();
        dissection.is_flow.then_some(dissection.key)
    }

    /// Returns the hash by which steerage steers the packet's flow, computed from the frame's bytes
    /// if steering did not need the hash. Call `flow_hash` before you change the headers.
    #[inline]
    pub fn flow_hash(&self) -> FlowHash {
        self.0
            .frame
            .hash()
            .map(FlowHash)
            .unwrap_or_else(|| self.0.context.source.hasher.hash_one(self.0.frame.bytes(), self.link()))
    }

    /// Returns the type of the frame's first header, which [`dissect`] needs.
    #[inline]
    pub fn link(&self) -> LinkType {
        link_of(self.0.frame.link(), || self.header())
    }

    /// Sets the type of the packet's first header, which outputs check, after you have removed or
    /// added a header at the front. If you need the flow hash, call [`flow_hash`](Self::flow_hash)
    /// before `set_link`. Types without a name in [`LinkType`] are ignored.
    #[inline]
    pub fn set_link(&mut self, link: LinkType) {
        self.forget_dissection();
        self.0.frame.set_link(link.code());
    }

    /// The packet's bucket. All flows of a bucket move to another CPU together.
    pub fn bucket(&self) -> BucketId {
        BucketId { group: self.0.context.group, bucket: bucket_of(self.flow_hash()) }
    }

    /// Discards the packet. A discarded packet does not count as lost.
    pub fn discard(mut self) {
        if *self.0.verdict == Verdict::Consumed {
            self.0.acted.set(true);
            *self.0.verdict = Verdict::Discarded;
        }
    }

    /// Sends the packet to the output `to` after the handler has returned. If the output has no
    /// room, the packet is dropped as `tx_full`. If the output cannot send the packet or does not
    /// exist, the packet is dropped as `tx_refused`.
    pub fn transmit(mut self, to: TxId) {
        if *self.0.verdict == Verdict::Consumed {
            self.0.acted.set(true);
            *self.0.verdict = Verdict::Transmitted(to);
        }
    }

    /// Takes the packet out of its batch for later use. The kept packet is owned and `Send`. When
    /// it is dropped, on any thread, its pages return to the pool. A lent frame (in memory of the
    /// device) is copied.
    ///
    /// # Errors
    /// Returns the packet itself if the queue's limit of kept packets is reached, if no page is
    /// free for a copy, or if the packet has a verdict already. A super-frame cannot be kept, but
    /// each of its packets can: [`keep_part`](Self::keep_part).
    pub fn keep(mut self) -> Result<Kept, Self> {
        let is_super_frame = |told: Option<Offload>| told.is_some_and(|told| told.is_super_frame());
        let is_super_frame = self.written().map_or(is_super_frame(self.offload()), |copy| copy.front().is_some());
        if *self.0.verdict != Verdict::Consumed || is_super_frame {
            return Err(self);
        }
        let (link, home) = (self.0.frame.link(), self.home());
        let mut kept = match self.0.copy.as_mut().and_then(|copy| copy.take()) {
            Some(copy) => copy,
            None if self.0.frame.is_lent() => match self.copied(None) {
                Ok(copy) => copy,
                Err(_) => return Err(self),
            },
            None => match self.0.0.context.source.kept_pages.keep(self.0.0.frame) {
                Ok(kept) => kept,
                Err(frame) => return Err(Self(Stays(InBatch { frame, ..self.0.0 }))),
            },
        };
        kept.set_link(link);
        self.0.0.acted.set(true);
        *self.0.0.verdict = Verdict::Kept;
        Ok(Kept { frame: kept, home })
    }

    /// Copies the first `most` bytes of a longer frame. Copies any other frame as a whole, but only
    /// the headers of a super-frame.
    fn copied(&self, most: Option<usize>) -> Result<WrittenCopy, NoRoom> {
        let (bytes, header, told) = (self.0.frame.bytes(), self.0.frame.header(), offload(&self.0.frame, None));
        if let Some(cut) = most.and_then(|most| bytes.len().checked_sub(most)).filter(|cut| *cut > 0) {
            return self.copy_of(&[&bytes[..bytes.len() - cut]], header.map(|header| header.shorter(cut)));
        }
        let front = told.filter(Offload::is_super_frame).map(|told| told.header_bytes().min(bytes.len()));
        let mut copy = self.copy_of(&[&bytes[..front.unwrap_or(bytes.len())]], header)?;
        told.inspect(|told| told.finish(&mut copy));
        Ok(copy.of_front(front.unwrap_or(0)))
    }

    fn copy_of(&self, parts: &[&[u8]], header: Option<FrameHeader>) -> Result<WrittenCopy, NoRoom> {
        #[cfg(test)]
        if crate::page_cache::fault::is_due() {
            return Err(NoRoom::NoPage);
        }
        let (spare, kept_pages) = (self.0.context.spare, &self.0.context.source.kept_pages);
        let len = || parts.iter().map(|part| part.len()).sum();
        spare.copy(kept_pages, HEADROOM, header, parts).ok_or_else(|| NoRoom::for_copy(len(), HEADROOM, kept_pages))
    }

    /// Keeps a copy of one packet of a super-frame. The copy is owned and `Send`.
    ///
    /// # Errors
    /// [`NoRoom`] if no page is free, if the packet is too long, or if too many packets are kept.
    pub fn keep_part(&self, part: &Segment<'_>) -> Result<Kept, NoRoom> {
        let header = self.0.frame.header().map(|header| FrameHeader { wire_len: part.len() as u32, ..header });
        let mut kept = self.copy_of(&[part.header(), part.payload()], header)?;
        kept.set_link(self.0.frame.link());
        Ok(Kept { frame: kept, home: self.home() })
    }

    fn home(&self) -> Option<(CpuIndex, u16)> {
        self.0.context.source.sends.map(|cpu| (cpu, bucket_of(self.flow_hash())))
    }
}
