use std::io;

use super::{DAMAGED, DAMAGED_PACKED};
use steerage::{
    DeviceError, LinkType,
    device::{Lending, RecordForm, Spot},
};

#[derive(Debug)]
pub(super) struct Walk<'a> {
    /// The part of the block that was not handed over yet, up to the end of the window.
    pub(super) lending: Lending<'a>,
    /// All bytes of `lending` before this position have been handled.
    pub(super) at: usize,
    pub(super) room: usize,
    /// The recorded time up to which frames are due, in nanoseconds since 1970.
    pub(super) until: u64,
    /// The link type of the frames that this poll has handed over, if any.
    pub(super) link: Option<LinkType>,
    pub(super) met: Met,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    pub(super) packets: u64,
    pub(super) filtered: u64,
    pub(super) bad_times: u64,
    /// The time of the earliest packet, in nanoseconds since 1970. If no packet had a time,
    /// `earliest` is greater than `latest`.
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

    /// Hands over up to `room` frames. `next` returns the first item in the remaining bytes, or the
    /// reason why there are no more frames. `form` is the form of the records if the file can be
    /// read in place.
    #[inline(always)]
    pub(super) fn push_each(
        &mut self,
        form: Option<RecordForm>,
        mut next: impl FnMut(&[u8]) -> Result<Found, Stop>,
    ) -> Stop {
        let mut at = self.at;
        let end = self.lending.push_records(self.room, form, no_place, |bytes| {
            loop {
                match next(bytes.get(at..).unwrap_or_default())? {
                    Found::Packet { spot, behind } => return Ok(spot.further(std::mem::replace(&mut at, behind))),
                    Found::Other { bytes } => at += bytes,
                }
            }
        });
        self.at = at;
        end.unwrap_or(Stop::Full)
    }
}

pub(super) trait Sieve {
    /// Returns the number of bytes to hand over, or `None` if the filter removes the frame.
    ///
    /// # Errors
    /// [`Stop`] if the frame cannot be filtered, or if the filter has removed the maximum number of
    /// frames for one poll.
    fn wanted(&mut self, frame: &[u8], link: LinkType, wire_len: u32) -> Result<Option<usize>, Stop>;

    /// Tells the filters that the following frames belong to a section with this byte order.
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
    /// `behind` is the number of bytes to skip after the packet.
    Packet { spot: Spot, behind: usize },
    /// A number of bytes to skip.
    Other { bytes: usize },
}

/// The error for a packet outside of the block. This error cannot occur, because the reader checks
/// all positions, but an error is safer than a panic.
#[cold]
fn no_place() -> Stop {
    Stop::Wrong(Wrong::new("a packet lies outside of what was read".to_owned(), "report this as a fault"))
}

#[derive(Debug)]
pub(super) enum Stop {
    /// The maximum number of frames was handed over.
    Full,
    /// The record has at least `needs` bytes, but fewer bytes are available.
    Short { needs: usize },
    /// A number of bytes that contain no packets. The bytes need not be in memory at the same time.
    Skip { bytes: u64 },
    /// The link type of the next frame differs from that of the earlier frames in this poll.
    OtherLink,
    /// In a replay, the next frame is not due before this time.
    NotYet { nanos: u64 },
    /// The filter removed the maximum number of frames for one poll.
    Filtered,
    /// The next bytes of the capture are not a valid record.
    Wrong(Wrong),
}

#[derive(Debug)]
pub(super) struct Wrong {
    text: String,
    /// `None` if the capture is damaged.
    advice: Option<&'static str>,
}

impl Wrong {
    pub(super) fn new(text: String, advice: &'static str) -> Self {
        Self { text, advice: Some(advice) }
    }

    #[cold]
    pub(super) fn damaged(text: String) -> Self {
        Self { text, advice: None }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// If `packed` is true, the offset refers to the unpacked bytes and not to the file.
    pub(super) fn into_error(self, device: &str, offset: u64, packed: bool) -> DeviceError {
        let cause = io::Error::new(io::ErrorKind::InvalidData, self.text);
        let operation = if packed { "read the capture, unpacked," } else { "read the capture" };
        let advice = self.advice.unwrap_or(if packed { DAMAGED_PACKED } else { DAMAGED });
        DeviceError::new(device, operation, cause).at(offset).advise(advice)
    }
}
