//! What the readers of both formats have in common.

use std::io;

use steerage::{
    DeviceError, LinkType,
    device::{Lending, Spot},
};

/// Where a walk is, and what it has met.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    /// What of the block has yet to be handed over, up to the window's end.
    pub(super) lending: Lending<'a>,
    /// How far into that everything is dealt with.
    pub(super) at: usize,
    /// The most frames to hand over.
    pub(super) room: usize,
    /// Frames of later times than this are not due yet, in nanoseconds since 1970.
    pub(super) until: u64,
    /// The link type of the frames handed over in this poll, if any were.
    pub(super) link: Option<LinkType>,
    pub(super) met: Met,
}

/// What a walk has met.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    pub(super) packets: u64,
    /// Packets that the filter took out.
    pub(super) filtered: u64,
    /// Packets whose time stamp is out of range, so that they have no time.
    pub(super) bad_times: u64,
    /// In nanoseconds since 1970; `earliest > latest` where no packet had a time.
    pub(super) earliest: u64,
    pub(super) latest: u64,
}

impl Met {
    pub(super) const NOTHING: Self = Self { packets: 0, filtered: 0, bad_times: 0, earliest: u64::MAX, latest: 0 };

    /// Counts a packet with a time.
    #[inline(always)]
    pub(super) fn packet_at(&mut self, nanos: u64) {
        self.packets += 1;
        self.earliest = self.earliest.min(nanos);
        self.latest = self.latest.max(nanos);
    }
}

impl Walk<'_> {
    /// What has yet to be walked.
    #[inline(always)]
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        self.lending.bytes().get_mut(self.at..).unwrap_or_default()
    }

    /// Hands over frames that lie one behind the other, as many as there is room for: `next` says what the bytes that have yet to
    /// be walked begin with, or why there is no more.
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

/// Decides which frames are handed over.
pub(super) trait Sieve {
    /// How many bytes of the frame are wanted. `None` if it is taken out.
    ///
    /// # Errors
    /// Why the frame cannot be looked at, or that as many were taken out as one walk may.
    fn wanted(&mut self, frame: &[u8], link: LinkType, wire_len: u32) -> Result<Option<usize>, Stop>;

    /// The frames that follow are of a section in this byte order.
    #[inline(always)]
    fn section(&mut self, _big_endian: bool) {}
}

/// Everything is wanted, whole.
pub(super) struct All;

impl Sieve for All {
    #[inline(always)]
    fn wanted(&mut self, frame: &[u8], _: LinkType, _: u32) -> Result<Option<usize>, Stop> {
        Ok(Some(frame.len()))
    }
}

/// What the bytes to be walked begin with.
pub(super) enum Found {
    /// A packet, and so many bytes behind it that are of no interest.
    Packet { spot: Spot, behind: usize },
    /// So many bytes of no interest.
    Other { bytes: usize },
}

/// Not to be reached, since the walks check their spans. An error rather than a panic.
#[cold]
fn no_place() -> Stop {
    Stop::Wrong(Wrong::new("a packet lies outside of what was read".to_owned(), "report this as a fault"))
}

/// Why a walk ended.
#[derive(Debug)]
pub(super) enum Stop {
    /// As many frames as there was room for.
    Full,
    /// The record has at least `needs` bytes, and fewer follow.
    Short { needs: usize },
    /// The next `bytes` bytes hold nothing of interest, and more than need be in memory at once.
    Skip { bytes: u64 },
    /// The next frame is of another link type than those before it in this poll.
    OtherLink,
    /// The next frame is not due before this time.
    NotYet { nanos: u64 },
    /// The filter took out as many frames as one poll looks at.
    Filtered,
    /// What follows is no record.
    Wrong(Wrong),
}

/// What is wrong with a file, and what to do.
#[derive(Debug)]
pub(super) struct Wrong {
    text: String,
    advice: &'static str,
}

impl Wrong {
    pub(super) fn new(text: String, advice: &'static str) -> Self {
        Self { text, advice }
    }

    /// `packed`: the offset is not one of the file itself.
    pub(super) fn into_error(self, device: &str, offset: u64, packed: bool) -> DeviceError {
        let cause = io::Error::new(io::ErrorKind::InvalidData, self.text);
        let operation = if packed { "read the capture, unpacked," } else { "read the capture" };
        DeviceError::new(device, operation, cause).at(offset).advise(self.advice)
    }
}
