//! [`Gather`] assembles a frame that a device receives in several buffers.

use crate::page::{Completion, Page};
use crate::region::Region;

/// A frame in several buffers, which may arrive in different polls. A device keeps a `Gather`
/// between polls, and returns its pages when the device is closed ([`close`](Self::close)).
///
/// [Guide](https://github.com/steerage/steerage/blob/main/docs/devices.md#frames-in-several-buffers).
#[derive(Debug, Default)]
pub struct Gather {
    frame: Option<Completion>,
    /// If set, the frame's remaining buffers are skipped.
    broken: Option<Broken>,
    skipped: usize,
}

/// The reason why a frame is not handed over, under which `Completions` (steerage-core) counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The device lost a part of the frame, or the frame has too many parts or too many bytes.
    Lost,
    /// No page was free for a part of the frame.
    NoPage,
}

/// The result of [`Gather::finish`]: a frame of several buffers.
#[derive(Debug, Default)]
pub struct Gathered {
    /// The frame, or the parts that had arrived before it became incomplete, if any.
    pub frame: Option<Completion>,
    /// For an incomplete frame, the reason, and how many bytes of the frame arrived.
    pub broken: Option<(Broken, usize)>,
}

impl Gather {
    /// Returns true if no buffer of a frame has arrived yet.
    pub fn is_empty(&self) -> bool {
        self.frame.is_none() && self.broken.is_none()
    }

    /// Adds `len` bytes at `offset` of `page`, a page of `region`.
    ///
    /// # Errors
    /// Returns the page if the frame is broken, perhaps because this page could not be added.
    pub fn add(&mut self, region: &Region, page: Page, offset: usize, len: usize) -> Result<(), Page> {
        if self.skips(len) {
            return Err(page);
        }
        let Some(frame) = &mut self.frame else {
            self.frame = Some(Completion::new(page, offset, len));
            return Ok(());
        };
        region.append(frame, page, offset, len).inspect_err(|_| self.break_off(Broken::Lost, len))
    }

    /// If the frame is broken, counts a buffer of `len` bytes as skipped and returns true.
    pub fn skips(&mut self, len: usize) -> bool {
        if self.broken.is_some() {
            self.skipped = self.skipped.saturating_add(len);
        }
        self.broken.is_some()
    }

    /// Marks the frame as broken for the reason `why`, and counts `len` bytes as skipped. A frame
    /// that is already broken keeps its first reason.
    pub fn break_off(&mut self, why: Broken, len: usize) {
        self.broken.get_or_insert(why);
        self.skipped = self.skipped.saturating_add(len);
    }

    /// Ends a frame whose last buffer has arrived, and returns the frame.
    pub fn finish(&mut self, region: &Region) -> Gathered {
        let Self { frame, broken, skipped } = std::mem::take(self);
        let arrived = frame.as_ref().map_or(0, |frame| region.total_len(frame));
        Gathered { frame, broken: broken.map(|why| (why, arrived.saturating_add(skipped))) }
    }

    /// Abandons an unfinished frame, and appends its pages to `pages`, as `RxQueue::close` must.
    pub fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        if let Some(frame) = std::mem::take(self).frame {
            region.take_apart(frame, |page, _, _| pages.push(page));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::SEGMENTS_MAX;

    #[test]
    fn a_frame_is_whole_or_broken_with_all_of_its_bytes() {
        let (region, mut pages) = Region::map(SEGMENTS_MAX + 2, 256).unwrap();
        let mut gather = Gather::default();
        for _ in 0..3 {
            gather.add(&region, pages.pop().unwrap(), 0, 100).unwrap();
        }
        let whole = gather.finish(&region);
        assert!(whole.broken.is_none() && gather.is_empty());
        let whole = whole.frame.unwrap();
        assert_eq!(region.total_len(&whole), 300);
        region.take_apart(whole, |page, _, _| pages.push(page));

        for _ in 0..SEGMENTS_MAX {
            gather.add(&region, pages.pop().unwrap(), 0, 100).unwrap();
        }
        let spare = gather.add(&region, pages.pop().unwrap(), 0, 7).unwrap_err();
        gather.break_off(Broken::NoPage, 1);
        let spare = gather.add(&region, spare, 0, 5).unwrap_err();
        let broken = gather.finish(&region);
        assert_eq!(broken.broken, Some((Broken::Lost, SEGMENTS_MAX * 100 + 13)));
        gather = Gather { frame: broken.frame, ..Gather::default() };
        gather.close(&region, &mut pages);
        pages.push(spare);
        assert_eq!(pages.len(), SEGMENTS_MAX + 2);
        assert!(gather.is_empty());
    }
}
