//! A receive queue of an interface. Each queue has one packet socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use steerage::flow::wire::{ethernet, vlan};
use steerage::{
    Affinity, DeviceError, Timestamp,
    device::{Capabilities, Completion, Completions, FrameHeader, Lending, Opened, Polled, Region, RxQueue, Spot},
    flow::{FlowHash, offload::Offload},
    limits::{DRAIN_MAX, HEADROOM},
};
use steerage_netlink::Rtnetlink;

use super::interface::Interface;
use super::program;
use super::ring::{Current, Ring};
use super::sys::{Frame, Socket};
use super::{AfPacketOptions, COPY_BYTES_MAX};
use crate::offloads::vnet;
use crate::vlan_tag;

/// The interval at which a busy queue reads drops and errors from the kernel, with two system
/// calls. A queue whose ring may have overflowed also reads the kernel's count of drops when the
/// ring is empty.
const LOOK: Duration = Duration::from_millis(100);

/// The interval at which a queue without frames reads its socket's events.
const EVENTS_LOOK: Duration = Duration::from_millis(5);

/// The interval at which an ending queue checks for frames that the kernel has not passed on.
const END_LOOK: Duration = Duration::from_millis(5);

/// The interval at which the queue checks an interface that is down.
const DOWN_LOOK: Duration = Duration::from_millis(20);

/// The maximum time for which a stopping queue waits for room in CPU backlogs.
const STOP_PATIENCE: Duration = Duration::from_millis(DRAIN_MAX.as_millis() as u64 / 2);

/// The maximum number of bytes per poll. Finished blocks return to the kernel only between two
/// polls, so a few unlimited polls of super-frames would lend the whole ring to handlers.
const POLL_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Down,
    Gone,
}

#[derive(Debug)]
pub(super) struct Queue {
    interface: Interface,
    /// `offloads`: the kernel describes the offloads of each frame. `whole`: super-frames stay
    /// whole.
    offloads: bool,
    whole: bool,
    card_time: bool,
    promiscuous: bool,
    /// States whether the kernel's hash is the same for both directions of a flow. `None`: steerage
    /// computes the hashes.
    hash: Option<Affinity>,
    socket: Socket,
    kernel: Rtnetlink,
    /// Edge-triggered epoll: a block whose frames are in use keeps the socket readable, and a
    /// level-triggered epoll would report the socket again and again.
    events: Epoll,
    ring: Ring,
    current: Option<Current>,
    /// `accepted`: the number of frames that the kernel had put into the ring at the last check.
    /// `met`: the number of frames that the queue has read from the ring.
    accepted: u64,
    met: u64,
    freezes: u64,
    link: Link,
    looked: Timestamp,
    /// True if frames have arrived since the events of the socket were last read.
    came: bool,
    read_events: Timestamp,
    was_full: bool,
    stopping: bool,
    /// `stopped`: the time of the stop. `hurries`: the queue no longer waits for room in CPU
    /// backlogs.
    stopped: Option<Timestamp>,
    hurries: bool,
    /// The maximum time from the arrival of a frame until the kernel passes on the frame's block.
    patience: Duration,
    give_up: Option<Timestamp>,
}

impl Queue {
    pub(super) fn new(
        options: &AfPacketOptions,
        interface: Interface,
        hash: Option<Affinity>,
        socket: Socket,
        ring: Ring,
    ) -> io::Result<Self> {
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLERR | EpollFlags::EPOLLET;
        events.add(&socket, EpollEvent::new(flags, 0))?;
        let link = if interface.up { Link::Up } else { Link::Down };
        Ok(Self {
            interface,
            offloads: ring.has_offloads(),
            whole: options.offloads,
            card_time: options.card_time,
            promiscuous: options.promiscuous,
            hash,
            socket,
            kernel: Rtnetlink::open()?,
            events,
            ring,
            current: None,
            accepted: 0,
            met: 0,
            freezes: 0,
            link,
            looked: Timestamp::ZERO,
            came: true,
            read_events: Timestamp::ZERO,
            was_full: false,
            stopping: false,
            stopped: None,
            hurries: false,
            // Wait longer than one timeout: the kernel may restart the block timer with each block,
            // and the machine may be busy.
            patience: 4 * options.block_timeout + Duration::from_millis(500),
            give_up: None,
        })
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.interface.name.clone(), operation, cause)
    }

    fn begin(&mut self, out: &mut Completions<'_>) -> Result<bool, DeviceError> {
        let Some(blocks) = self.ring.own(out) else { return Err(self.error("lend frames", no_blocks())) };
        let begun = self.ring.begin(blocks, self.socket.as_fd());
        if begun.is_some() {
            let rescued = self.ring.rescue(blocks);
            out.copied(rescued);
            self.came = true;
        }
        self.current = begun;
        Ok(self.current.is_some())
    }

    /// Delivers up to `room` frames of the current block. Returns the number of processed or lost
    /// frames.
    fn walk(&mut self, out: &mut Completions<'_>, room: usize) -> usize {
        let Some(mut current) = self.current else { return 0 };
        let most = room.min(current.frames as usize);
        let walked = if current.place.is_some() {
            self.lend(out, &mut current, most)
        } else {
            self.copy(out, &mut current, most)
        };
        self.met += walked as u64;
        current.frames -= (walked as u32).min(current.frames);
        self.current = Some(current);
        if current.frames == 0 {
            self.ring.end(&current);
            self.current = None;
        }
        walked
    }

    /// Lends frames of the ring to handlers, without a copy. Returns the number of processed
    /// frames. After an invalid frame description, the positions of the block's later frames are
    /// unknown: the later frames are lost, and count as processed.
    fn lend(&self, out: &mut Completions<'_>, current: &mut Current, count: usize) -> usize {
        let before = out.len();
        let is_whole = match self.ring.lending(out, current) {
            Some(lending) if self.offloads => self.lend_with_offloads(lending, current, count),
            Some(lending) => self.lend_plain(lending, current, count),
            None => false,
        };
        let met = if is_whole { count } else { current.frames as usize };
        out.lost((met + before - out.len()) as u64);
        met
    }

    fn lend_plain(&self, mut lending: Lending<'_>, current: &mut Current, count: usize) -> bool {
        // The position of the next frame's description, counted from the end of the last lent
        // frame. A position before the first byte is invalid: the subtraction wraps around, and no
        // frame is found.
        let mut at = current.at.wrapping_sub(lending.offset());
        let (hashes, tags) = (self.hash.is_some(), !self.interface.cooked);
        let invalid = lending.push_each(
            count,
            || (),
            |bytes| {
                let frame = Frame::read(bytes, at, false).ok_or(())?;
                at = at.wrapping_add(frame.next).wrapping_sub(frame.at + frame.len);
                let (mut start, mut len) = (frame.at, frame.len);
                if let Some(tag) = frame.tag.filter(|_| tags) {
                    if vlan_tag::put_back(bytes, start, len, tag) {
                        (start, len) = (start - vlan::BYTES, len + vlan::BYTES);
                    }
                }
                let spot = Spot::new(start, len, self.header(&frame, len - frame.len));
                Ok(spot.with_hash(hashes.then_some(frame.hash)))
            },
        );
        current.at = at.wrapping_add(lending.offset());
        invalid.is_none()
    }

    fn lend_with_offloads(&self, mut lending: Lending<'_>, current: &mut Current, count: usize) -> bool {
        for _ in 0..count {
            let at = current.at.wrapping_sub(lending.offset());
            let Some(frame) = Frame::read(lending.bytes(), at, true) else { return false };
            current.at = current.at.wrapping_add(frame.next);
            self.lend_one(&mut lending, &frame);
        }
        true
    }

    #[inline(always)]
    fn lend_one(&self, lending: &mut Lending<'_>, frame: &Frame) -> bool {
        let (mut at, mut len) = (frame.at, frame.len);
        // Read the kernel's offload data before the frame header overwrites that data.
        let mut offload = None;
        if let Some(told) = &frame.offloads {
            let bytes = &mut lending.bytes()[at..at + len];
            if !self.whole || frame.wire_len as usize > frame.len {
                if !vnet::finish_merged(told, bytes) {
                    return false;
                }
            } else {
                let Ok(read) = Offload::from_virtio(told, bytes, self.interface.link) else { return false };
                offload = read;
            }
        }
        if let Some(tag) = frame.tag.filter(|_| !self.interface.cooked) {
            if vlan_tag::put_back(lending.bytes(), at, len, tag) {
                (at, len) = (at - vlan::BYTES, len + vlan::BYTES);
                offload = offload.and_then(|offload| offload.shifted(vlan::BYTES as isize));
            }
        }
        let (hash, header) = (self.hash.map(|_| FlowHash(frame.hash)), self.header(frame, len - frame.len));
        match offload {
            Some(offload) => lending.push_offload(at, len, (header, offload), hash),
            None => lending.push_hashed(at, len, header, hash),
        }
    }

    #[cold]
    fn copy(&self, out: &mut Completions<'_>, current: &mut Current, count: usize) -> usize {
        let (mut copied, mut met) = (0, 0);
        let bytes = self.ring.unlent(current);
        while met < count {
            let Some(frame) = Frame::read(bytes, current.at, self.offloads) else { break };
            met += 1;
            copied += usize::from(self.copy_one(out, bytes, &frame));
            current.at = current.at.wrapping_add(frame.next);
        }
        let met = if met < count { current.frames as usize } else { met };
        out.lost((met - copied) as u64);
        out.copied(copied as u64);
        met
    }

    /// Copies one frame to a page. Returns false if the frame is lost. A super-frame that does not
    /// fit into a page is lost; any other frame is cut to the length of the page.
    fn copy_one(&self, out: &mut Completions<'_>, bytes: &[u8], frame: &Frame) -> bool {
        let tag = frame.tag.filter(|_| !self.interface.cooked && frame.len >= ethernet::TYPE_AT);
        let tag_bytes = tag.map_or(0, |_| vlan::BYTES);
        let len = (frame.len + tag_bytes).min(out.frame_bytes_max());
        let merged = |told: &[u8; vnet::HEADER_BYTES_MIN]| told[1] != 0 && frame.len > out.frame_bytes_max();
        if self.whole && frame.offloads.as_ref().is_some_and(merged) {
            return false;
        }
        let Some(mut page) = out.take_page() else { return false };
        let header = self.header(frame, tag_bytes);
        let (headroom, to) = out.page_mut(&mut page).split_at_mut(HEADROOM);
        if let Some(before) = headroom.last_chunk_mut() {
            *before = header.to_bytes();
        }
        let to = &mut to[..len];
        // The offsets in the kernel's offload data refer to the frame without the VLAN tag.
        let untagged = &mut to[tag_bytes..];
        let is_whole = untagged.len() == frame.len;
        untagged.copy_from_slice(&bytes[frame.at..][..untagged.len()]);
        let finished = frame.offloads.filter(|_| is_whole).is_none_or(|told| vnet::finish_merged(&told, untagged));
        if let Some(tag) = tag {
            to.copy_within(vlan::BYTES..vlan::BYTES + ethernet::TYPE_AT, 0);
            to[ethernet::TYPE_AT..ethernet::TYPE_AT + vlan::BYTES].copy_from_slice(&tag);
        }
        if !finished {
            out.give_page(page);
            return false;
        }
        let mut completion = Completion::new(page, HEADROOM, len).with_header();
        if self.hash.is_some() {
            completion.set_hash(frame.hash);
        }
        out.push(completion, header.wire_len as usize);
        true
    }

    /// `tag_bytes` is the length of the VLAN tag that was reinserted into the frame, or 0.
    fn header(&self, frame: &Frame, tag_bytes: usize) -> FrameHeader {
        FrameHeader {
            nanos: frame.nanos,
            wire_len: frame.wire_len.saturating_add(tag_bytes as u32),
            link: self.interface.link.0,
            interface: 0,
        }
    }

    fn look(&mut self, out: &mut Completions<'_>) -> Result<(), DeviceError> {
        (self.looked, self.was_full) = (out.now(), false);
        let counted = self.socket.statistics().map_err(|e| self.error("read the socket's statistics", e))?;
        self.accepted += u64::from(counted.packets.saturating_sub(counted.drops));
        out.lost(u64::from(counted.drops));
        self.freezes += u64::from(counted.freezes);
        let wrong = self.socket.take_error().map_err(|e| self.error("read the socket's error", e))?;
        if wrong.is_some() || self.link == Link::Down {
            self.look_at_link();
        }
        Ok(())
    }

    fn look_at_link(&mut self) {
        let link = match self.kernel.link_at(self.interface.index) {
            Ok(link) if link.up => Link::Up,
            Ok(_) => Link::Down,
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Link::Gone,
            Err(_) => Link::Down,
        };
        if link != self.link {
            match link {
                Link::Up => tracing::info!(device = %self.interface.name, "the interface is up again"),
                Link::Down => {
                    tracing::warn!(device = %self.interface.name, "the interface is down; going on when it is up")
                }
                Link::Gone => tracing::warn!(device = %self.interface.name, "the interface is gone"),
            }
            self.link = link;
        }
    }

    fn drained(&mut self, out: &mut Completions<'_>) -> Result<Polled, DeviceError> {
        let now = out.now();
        let is_usual = self.link == Link::Up && !self.stopping;
        if is_usual && !self.came && now.since(self.read_events) < EVENTS_LOOK {
            return Ok(Polled::Drained);
        }
        // The kernel reports the next event only after the process has read this event.
        let mut event = [EpollEvent::empty()];
        let events = self.events.wait(&mut event, EpollTimeout::ZERO);
        let has_failed = events.is_ok_and(|count| count > 0) && event[0].events().contains(EpollFlags::EPOLLERR);
        (self.came, self.read_events) = (false, now);
        if has_failed || !is_usual || self.was_full || now.since(self.looked) >= LOOK {
            self.look(out)?;
        }
        // The kernel may have passed on a block just before the events were read.
        if self.ring.is_ready() {
            return Ok(Polled::More);
        }
        if self.stopping || self.link == Link::Gone {
            return self.ended(out);
        }
        Ok(if self.link == Link::Down { Polled::NotBefore(now + DOWN_LOOK) } else { Polled::Drained })
    }

    /// Frames whose blocks the kernel does not pass on in time count as lost.
    fn ended(&mut self, out: &mut Completions<'_>) -> Result<Polled, DeviceError> {
        let now = out.now();
        let hidden = self.accepted.saturating_sub(self.met);
        let give_up = *self.give_up.get_or_insert(now + self.patience);
        if hidden > 0 && now < give_up {
            return Ok(Polled::NotBefore(now + END_LOOK));
        }
        out.lost(hidden);
        self.met += hidden;
        if self.link == Link::Gone && !self.stopping {
            let cause = io::Error::from_raw_os_error(libc::ENODEV);
            return Err(self.error("go on listening", cause).advise("the interface was deleted"));
        }
        Ok(Polled::Ended)
    }
}

impl RxQueue for Queue {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::blocks(self.interface.frame_bytes_max.min(COPY_BYTES_MAX));
        can.hash = self.hash;
        can
    }

    fn open(&mut self, _region: &Arc<Region>) -> Result<Opened, DeviceError> {
        let blocks =
            self.ring.blocks().map_err(|cause| self.error("lend its ring", cause).advise("open a queue once"))?;
        let mut opened = Opened::lending(blocks);
        opened.mode = self.card_time.then_some("card time");
        Ok(opened)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(self.interface.link);
        let Some(blocks) = self.ring.own(out) else { return Err(self.error("lend frames", no_blocks())) };
        self.was_full |= self.ring.may_have_been_full();
        self.ring.give_back(blocks);
        if self.stopping {
            let since = *self.stopped.get_or_insert(out.now());
            self.hurries = out.now().since(since) > STOP_PATIENCE;
        }
        let (mut room, before) = (budget, out.counts.wire_bytes);
        while room > 0 {
            if self.current.is_none() && !self.begin(out)? {
                return self.drained(out);
            }
            room = room.saturating_sub(self.walk(out, room));
            if out.counts.wire_bytes - before >= POLL_BYTES {
                break;
            }
        }
        if out.now().since(self.looked) >= LOOK {
            self.look(out)?;
        }
        // If `room` is not 0, the poll ended at `POLL_BYTES`: the frames that handlers have
        // finished must be returned before the next frames are lent.
        Ok(if room > 0 { Polled::NotBefore(out.now()) } else { Polled::More })
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.0.as_fd())
    }

    fn has_room(&self) -> bool {
        self.ring.has_room() && !self.hurries
    }

    fn stop(&mut self) -> bool {
        // With the filter `NOTHING`, the kernel adds no frames to the ring. Frames already in the
        // ring arrive when the timeout of their block expires.
        self.stopping = self.socket.attach(&program::NOTHING).is_ok();
        self.stopping
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The kernel keeps the socket as long as its ring is mapped. Attach a filter that accepts
        // no frames, to save the kernel's time.
        let _ = self.socket.attach(&program::NOTHING);
        if self.promiscuous {
            let _ = self.socket.promiscuous(self.interface.index, false);
        }
        if self.freezes > 0 {
            tracing::info!(device = %self.interface.name, times = self.freezes, "the ring was full");
        }
    }
}

fn no_blocks() -> io::Error {
    io::Error::other("the blocks that it is polled with are not those that it brought")
}
