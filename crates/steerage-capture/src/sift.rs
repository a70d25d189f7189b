use steerage::LinkType;

use super::walk::{Sieve, Stop, Wrong};
use crate::filter::{FileFilters, FrameFilter, FrameKind};

/// The number of frames that a filter may remove in one poll. The limit bounds the time of a poll,
/// because a filter takes at most a few microseconds per frame.
const TAKEN_OUT_MAX: u32 = 1024;

const HOW_TO_FILTER: &str = "leave the filter out, or filter frames of one link type";

pub(super) struct Sifting<'a> {
    filters: &'a mut FileFilters,
    big_endian: bool,
    taken_out: u32,
}

impl<'a> Sifting<'a> {
    pub(super) fn new(filters: &'a mut FileFilters, big_endian: bool) -> Self {
        Self { filters, big_endian, taken_out: 0 }
    }

    fn program(&mut self, link: LinkType) -> Result<&FrameFilter, Stop> {
        let program = self.filters.program(FrameKind::new(link, self.big_endian));
        program.map_err(|why| Stop::Wrong(Wrong::new(why, HOW_TO_FILTER)))
    }
}

impl Sieve for Sifting<'_> {
    fn section(&mut self, big_endian: bool) {
        self.big_endian = big_endian;
    }

    #[inline]
    fn wanted(&mut self, frame: &[u8], link: LinkType, wire_len: u32) -> Result<Option<usize>, Stop> {
        if self.taken_out == TAKEN_OUT_MAX {
            return Err(Stop::Filtered);
        }
        match self.program(link)?.run(frame, wire_len) as usize {
            0 => {
                self.taken_out += 1;
                Ok(None)
            }
            bytes => Ok(Some(bytes.min(frame.len()))),
        }
    }
}
