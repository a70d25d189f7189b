//! [`Gather`] assembles a frame that a device receives in several buffers.

use crate::page::{Completion, Page};
use crate::region::Region;

/// A frame in several buffers, some of which may not have arrived yet. A device keeps a `Gather`
/// between polls, because the last buffer of a frame may arrive in a later poll than the first
/// buffer. When the device is closed, it returns the pages that are still in its `Gather`
/// ([`close`](Self::close)).
///
/// The documentation of `steerage::device` has an example. See also the
/// [guide](https://github.com/steerage/steerage/blob/main/docs/devices.md#frames-in-several-buffers).
#[derive(Debug, Default)]
pub struct Gather {
    frame: Option<Completion>,
    /// The reason why the frame will not be handed over to the receive path. If a reason is set,
    /// the frame's remaining buffers are skipped.
    broken: Option<Broken>,
    skipped: usize,
}

/// The reason why a frame of several buffers is not handed over to the receive path. `Completions`
/// of the crate `steerage-core` counts the lost frame under this reason.
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
    /// The frame, or the parts of the frame that had arrived before it became incomplete. `None`
    /// if no part of the frame had arrived.
    pub frame: Option<Completion>,
    /// If the frame is incomplete, the reason why it is incomplete, and how many bytes of the frame
    /// arrived.
    pub broken: Option<(Broken, usize)>,
}

impl Gather {
    /// Returns true if no buffer of a frame has arrived yet.
    pub fn is_empty(&self) -> bool {
        self.frame.is_none() && self.broken.is_none()
    }

    /// Adds `len` bytes at `offset` of `page` to the frame. `page` is a page of `region`.
    ///
    /// # Errors
    /// Returns the page if the frame does not need it: the frame was already broken, or the frame
    /// became broken because this page could not be added.
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

    /// Marks the frame as broken (incomplete), and counts `len` bytes as skipped. If the frame is
    /// already broken, the first reason is kept.
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

    /// Abandons an unfinished frame, and appends the frame's pages to `pages`. The pages belong to
    /// `region`. A device calls `close` in its `RxQueue::close`, which has the same arguments.
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
