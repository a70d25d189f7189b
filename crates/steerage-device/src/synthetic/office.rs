//! The profile `office`. Its frames look like a capture at an office's router.
//!
//! Clients look up names and fetch pages, some over IPv6 and some in VLANs. Some make calls, some
//! look up a name that does not exist, and the first one uploads a backup that never ends. A heap
//! holds all open conversations, ordered by the time of their next frame. Each frame is written
//! directly into its page.

mod conversation;
mod data;
mod frame;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use steerage::{
    DeviceError, LinkType,
    device::{Capabilities, Completion, Completions, FrameHeader, Polled, RxQueue},
    limits::HEADROOM,
};

use super::sample::Chance;
use conversation::{Conversation, Kind};
use frame::{FRAME_BYTES_MAX, Frame};

/// The time of the first frame: 2026-01-01 09:00 UTC.
const START: u64 = 1_767_258_000 * 1_000_000_000;

/// The longest time between the starts of two conversations. The average is half of that.
const PAUSE_MAX: u64 = 160_000_000;

/// The number of clients.
const CLIENTS: usize = 48;

/// The most open conversations. Most last for less than a second, so there are few.
const CONVERSATIONS_MAX: usize = 256;

/// The first ephemeral port of IANA's range, and the number of even ports in it. RTP uses even
/// ports (RFC 3550, 11).
const PORT_FIRST: u16 = 49_152;
const PORTS: u16 = 8_192;

/// The frames of the profile, in order.
#[derive(Debug)]
pub(super) struct Office {
    chance: Chance,
    under_way: BinaryHeap<Reverse<Conversation>>,
    /// When the next conversation begins. The next field is its number.
    next_begins: u64,
    next_number: u64,
    /// The time of the last frame.
    now: u64,
    /// The number of ports that each client has used.
    ports_used: [u16; CLIENTS],
}

impl Office {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            chance: Chance::new(seed),
            under_way: BinaryHeap::with_capacity(CONVERSATIONS_MAX),
            next_begins: START,
            next_number: 0,
            now: START,
            ports_used: [0; CLIENTS],
        }
    }

    /// The next frame and its time, in nanoseconds since 1970.
    fn next(&mut self) -> (u64, Frame) {
        while self.under_way.len() < CONVERSATIONS_MAX
            && self.under_way.peek().is_none_or(|first| self.next_begins <= first.0.due)
        {
            self.begin();
        }
        let mut first = self.under_way.peek_mut().expect("one was begun if there was none");
        let conversation = &mut first.0;
        self.now = conversation.due;
        let frame = conversation.next(&mut self.chance);
        if conversation.is_over() {
            PeekMut::pop(first);
        }
        (self.now, frame)
    }

    fn begin(&mut self) {
        let chance = &mut self.chance;
        let client = chance.below(CLIENTS as u64) as usize;
        let port = PORT_FIRST + 2 * self.ports_used[client];
        self.ports_used[client] = (self.ports_used[client] + 1) % PORTS;
        let kind = match (self.next_number, chance.below(16)) {
            (0, _) => Kind::Upload,
            (_, 0) => Kind::Call,
            (_, 1) => Kind::Missing,
            _ => Kind::Web,
        };
        let due = self.next_begins.max(self.now);
        self.under_way.push(Reverse(Conversation::new(self.next_number, kind, due, client as u8, port, chance)));
        self.next_number += 1;
        self.next_begins = due + chance.below(PAUSE_MAX);
    }
}

/// The receive queue of the profile.
pub(super) struct OfficeQueue {
    office: Office,
    /// The number of frames still to come.
    left: u64,
}

impl OfficeQueue {
    pub(super) fn new(seed: u64, packets: Option<u64>) -> Self {
        Self { office: Office::new(seed), left: packets.unwrap_or(u64::MAX) }
    }
}

impl RxQueue for OfficeQueue {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES_MAX).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let count = budget.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        for _ in 0..count {
            let Some(mut page) = out.take_page() else { return Ok(Polled::More) };
            let (nanos, frame) = self.office.next();
            let (head, room) = out.page_mut(&mut page).split_at_mut(HEADROOM);
            let len = frame.write(room);
            let link = LinkType::ETHERNET.0;
            let header = FrameHeader { nanos, wire_len: len as u32, link, interface: 0 };
            head[HEADROOM - FrameHeader::BYTES..].copy_from_slice(&header.to_bytes());
            out.push(Completion::new(page, HEADROOM, len).with_header(), len);
            self.left -= 1;
        }
        Ok(if self.left == 0 { Polled::Ended } else { Polled::More })
    }
}
