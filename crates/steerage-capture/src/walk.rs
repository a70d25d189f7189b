//! Code that the readers of both formats share.

use std::io;

use steerage::{
    DeviceError, LinkType,
    device::{Lending, Spot},
};

#[derive(Debug)]
pub(super) struct Walk<'a> {
    pub(super) lending: Lending<'a>,
    /// The position in `lending`. All earlier bytes are done.
    pub(super) at: usize,
    /// The maximum number of frames to deliver.
    pub(super) room: usize,
    /// Frames with later times are not due yet. In nanoseconds since 1970.
    pub(super) until: u64,
    pub(super) link: Option<LinkType>,
    pub(super) met: Met,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    pub(super) packets: u64,
    pub(super) filtered: u64,
    /// Packets whose time stamp is out of range, so that they have no time.
    pub(super) bad_times: u64,
    /// In nanoseconds since 1970. If no packet had a time, `earliest > latest`.
    pub(super) earliest: u64,
    pub(super) latest: u64,
}

impl Met {
    pub(super) const NOTHING: Self = Self { packets: 0, filtered: 0, bad_times: 0, earliest: u64::MAX, latest: 0 };

    #[inline(always)]
    pub(super) fn packet_at(&mut self, nanos: u64) {
        self.packets += 1;
        self.earliest = self.earliest.min(nanos);
        self.latest = self.latest.max(nanos);
    }
}

impl Walk<'_> {
    #[inline(always)]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        self.lending.bytes().get_mut(self.at..).unwrap_or_default()
    }

    /// Delivers consecutive frames while there is room. `next` returns what the remaining bytes
    /// begin with, or the reason for which there are no more frames.
    #[inline(always)]
    pub(super) fn push_each(&mut self, mut next: impl FnMut(&mut [u8]) -> Result<Found, Stop>) -> Stop {
        let mut at = self.at;
        let end = self.lending.push_each(self.room, no_place, |bytes| {
            loop {
                match next(bytes.get_mut(at..).unwrap_or_default())? {
                    Found::Packet { spot, behind } => return Ok(spot.further(std::mem::replace(&mut at, behind))),
                    Found::Other { bytes } => at += bytes,
                }
            }
        });
        self.at = at;
        end.unwrap_or(Stop::Full)
    }
}

/// Decides which frames are delivered.
pub(super) trait Sieve {
    /// The number of wanted bytes of the frame. `None` if the filter removes the frame.
    ///
    /// # Errors
    /// [`Stop`] if the frame cannot be filtered, or if the walk has removed as many frames as it
    /// may.
    fn wanted(&mut self, frame: &[u8], link: LinkType, wire_len: u32) -> Result<Option<usize>, Stop>;

    #[inline(always)]
    fn section(&mut self, _big_endian: bool) {}
}

pub(super) struct All;

impl Sieve for All {
    #[inline(always)]
    fn wanted(&mut self, frame: &[u8], _: LinkType, _: u32) -> Result<Option<usize>, Stop> {
        Ok(Some(frame.len()))
    }
}

pub(super) enum Found {
    /// A packet, followed by this many bytes to skip.
    Packet { spot: Spot, behind: usize },
    /// This many bytes to skip.
    Other { bytes: usize },
}

/// The walks check their spans, so this case is impossible. The function returns an error instead
/// of causing a panic.
#[cold]
fn no_place() -> Stop {
    Stop::Wrong(Wrong::new("a packet lies outside of what was read".to_owned(), "report this as a fault"))
}

/// The reason for which a walk ended.
#[derive(Debug)]
pub(super) enum Stop {
    /// The walk delivered as many frames as there was room for.
    Full,
    /// The record has at least `needs` bytes, but fewer are available.
    Short { needs: usize },
    /// The next `bytes` bytes contain nothing relevant, and need not be in memory at once.
    Skip { bytes: u64 },
    /// The next frame's link type differs from that of earlier frames in this poll.
    OtherLink,
    /// The next frame is not due before this time.
    NotYet { nanos: u64 },
    /// The filter removed as many frames as one poll may check.
    Filtered,
    /// The next bytes are not a record.
    Wrong(Wrong),
}

#[derive(Debug)]
pub(super) struct Wrong {
    text: String,
    advice: &'static str,
}

impl Wrong {
    pub(super) fn new(text: String, advice: &'static str) -> Self {
        Self { text, advice }
    }

    /// If `packed` is set, the offset refers to the unpacked bytes and not to the file.
    pub(super) fn into_error(self, device: &str, offset: u64, packed: bool) -> DeviceError {
        let cause = io::Error::new(io::ErrorKind::InvalidData, self.text);
        let operation = if packed { "read the capture, unpacked," } else { "read the capture" };
        DeviceError::new(device, operation, cause).at(offset).advise(self.advice)
    }
}
