use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use steerage_core::completions::Completions;
use steerage_core::device::{Capabilities, DeviceError};
use steerage_core::limits::HEADROOM;
use steerage_core::rx::{Input, Polled, RxQueue};
use steerage_core::tx::{Outgoing, Output, Sent, TxQueue};
use steerage_flow::{LinkType, WallTime};
use steerage_mem::{Completion, FRAME_BYTES_MAX, FrameHeader};

/// A frame for a test.
///
/// ```
/// use steerage_flow::{LinkType, WallTime};
/// use steerage_testing::Frame; // steerage::testing::Frame
///
/// let plain: Frame = vec![0; 60].into();
/// assert_eq!((plain.link, plain.time), (LinkType::ETHERNET, None));
/// let raw = Frame::new([0x45; 40]).with_link(LinkType::RAW).with_time(WallTime::from_nanos(5));
/// assert_eq!((raw.bytes.len(), raw.wire_len), (40, 40));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// The bytes of the frame, from the link header on.
    pub bytes: Vec<u8>,
    /// The length on the wire in bytes, which exceeds the length of `bytes` if a capture truncated
    /// the frame.
    pub wire_len: usize,
    /// The type of the first header.
    pub link: LinkType,
    /// The time at which the frame was received, if the device records times.
    pub time: Option<WallTime>,
}

impl Frame {
    /// Creates a complete Ethernet frame without a receive time.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self { wire_len: bytes.len(), bytes, link: LinkType::ETHERNET, time: None }
    }

    /// Returns the frame with `link` as the type of its first header.
    #[must_use]
    pub fn with_link(self, link: LinkType) -> Self {
        Self { link, ..self }
    }

    /// Returns the frame with `time` as its receive time.
    #[must_use]
    pub fn with_time(self, time: WallTime) -> Self {
        Self { time: Some(time), ..self }
    }

    /// Returns the frame with the length `wire_len` on the wire, as if a capture had truncated it.
    #[must_use]
    pub fn with_wire_len(self, wire_len: usize) -> Self {
        Self { wire_len, ..self }
    }

    fn header(&self) -> FrameHeader {
        FrameHeader {
            nanos: self.time.map_or(FrameHeader::NO_TIME, WallTime::as_nanos),
            wire_len: self.wire_len.min(u32::MAX as usize) as u32,
            link: self.link.0,
            interface: 0,
        }
    }
}

impl<B: Into<Vec<u8>>> From<B> for Frame {
    fn from(bytes: B) -> Self {
        Self::new(bytes)
    }
}

/// Frames that were not received yet. All clones share the frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting(Arc<Mutex<Frames>>);

#[derive(Debug, Default)]
struct Frames {
    frames: VecDeque<Frame>,
    has_ended: bool,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, frame: Frame) {
        self.lock().frames.push_back(frame);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().frames.is_empty()
    }

    pub(crate) fn end(&self) {
        self.lock().has_ended = true;
    }

    pub(crate) fn into_input(self, frame_bytes_max: usize) -> Input {
        Input::new("frames", "memory", vec![Box::new(Queue { waiting: self, frame_bytes_max })])
    }
}

/// Creates an input that hands over the frames `frames` in this order, and then ends.
///
/// ```
/// let input = steerage_testing::input([vec![0; 60], vec![1; 1514]]); // steerage::testing::input
/// assert_eq!(input.queues.len(), 1);
/// ```
pub fn input<F: Into<Frame>>(frames: impl IntoIterator<Item = F>) -> Input {
    let waiting = Waiting::default();
    frames.into_iter().for_each(|frame| waiting.push(frame.into()));
    waiting.end();
    let longest = waiting.lock().frames.iter().map(|frame| frame.bytes.len()).max().unwrap_or(0);
    waiting.into_input(longest)
}

#[derive(Debug)]
struct Queue {
    waiting: Waiting,
    frame_bytes_max: usize,
}

impl RxQueue for Queue {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(self.frame_bytes_max.min(FRAME_BYTES_MAX)).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let mut waiting = self.waiting.lock();
        let link = waiting.frames.front().map_or(LinkType::ETHERNET, |frame| frame.link);
        out.set_link(link);
        // All frames that one poll returns have the same link type.
        while out.len() < budget && waiting.frames.front().is_some_and(|frame| frame.link == link) {
            let Some(mut page) = out.take_page() else { return Ok(Polled::More) };
            let Some(frame) = waiting.frames.pop_front() else { break };
            let bytes = out.page_mut(&mut page);
            bytes[HEADROOM - FrameHeader::BYTES..HEADROOM].copy_from_slice(&frame.header().to_bytes());
            let len = frame.bytes.len().min(bytes.len() - HEADROOM);
            bytes[HEADROOM..][..len].copy_from_slice(&frame.bytes[..len]);
            out.push(Completion::new(page, HEADROOM, len).with_header(), frame.wire_len);
        }
        let is_over = waiting.has_ended && waiting.frames.is_empty();
        Ok(if is_over { Polled::Ended } else { Polled::More })
    }
}

/// The packets that an output has sent. All clones share the packets.
#[derive(Clone, Debug, Default)]
pub struct Recorded(Arc<Mutex<Vec<Frame>>>);

impl Recorded {
    /// Returns the sent packets. The order of packets from different CPUs is not defined.
    pub fn packets(&self) -> Vec<Frame> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Creates an output that accepts every packet, and the record of its sent packets.
///
/// ```
/// let (output, recorded) = steerage_testing::output(); // steerage::testing::output
/// assert_eq!((output.kind, recorded.packets().len()), ("memory", 0));
/// ```
pub fn output() -> (Output, Recorded) {
    let recorded = Recorded::default();
    let shared = recorded.clone();
    (Output::new("recorded", "memory", move |_cpu| Ok(Box::new(shared.clone()))), recorded)
}

impl TxQueue for Recorded {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(packet) = packets.next_packet() {
            let received = packet.received();
            let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
            (sent.packets, sent.bytes) = (sent.packets + 1, sent.bytes + bytes.len() as u64);
            let (wire_len, link, time) = (received.wire_len, received.link, received.time);
            recorded.push(Frame { bytes, wire_len, link, time });
        }
        Ok(sent)
    }
}
