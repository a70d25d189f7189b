//! Frames that a device receives into several buffers.

use steerage_mem::{Completion, Page, Region};

use super::{Completions, on_the_wire};
use steerage_flow::FlowHash;

/// A frame of several buffers, of which some have arrived. A device keeps a `Gather` from buffer to buffer and from
/// poll to poll, because the last buffer of a frame may arrive in a later poll than the first. When the device is
/// closed, it gives back the pages that are still in it ([`close`](Self::close)).
///
/// The guide has an [example](https://github.com/steerage/steerage/blob/main/docs/devices.md#frames-in-several-buffers).
#[derive(Debug, Default)]
pub struct Gather(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Empty,
    Begun(Completion),
    /// The frame cannot be handed over any more, for this reason, and had this many bytes so far. Its remaining
    /// buffers are skipped.
    Broken(Why, usize),
}

#[derive(Clone, Copy, Debug)]
enum Why {
    Lost,
    NoPage,
}

impl Gather {
    /// Whether no buffer of a frame has arrived yet.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, State::Empty)
    }

    /// Gives up the frame. Its pages, which belong to `region`, are appended to `pages`. For
    /// [`RxQueue::close`](crate::rx::RxQueue::close).
    pub fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        if let State::Begun(frame) = std::mem::take(&mut self.0) {
            region.take_apart(frame, |page, _, _| pages.push(page));
        }
    }
}

impl Completions<'_> {
    /// Adds a buffer to a frame: the `len` bytes at `offset` of `page`. The first buffer is the head of the frame and
    /// contains the headers. If the frame becomes too long ([`FRAME_BYTES_MAX`](steerage_mem::FRAME_BYTES_MAX)) or
    /// has too many buffers ([`SEGMENTS_MAX`](steerage_mem::SEGMENTS_MAX)), the whole frame is lost. It is counted
    /// when its [last](Self::push_gathered) buffer has arrived.
    pub fn gather(&mut self, frame: &mut Gather, page: Page, offset: usize, len: usize) {
        match &mut frame.0 {
            State::Empty => frame.0 = State::Begun(Completion::new(page, offset, len)),
            State::Begun(begun) => {
                if let Err(page) = self.pages.pool.region().append(begun, page, offset, len) {
                    self.give_page(page);
                    self.break_off(frame, Why::Lost, len);
                }
            }
            State::Broken(_, bytes) => {
                *bytes = bytes.saturating_add(len);
                self.give_page(page);
            }
        }
    }

    /// Like [`gather`](Self::gather), for a page that was posted in a ring of the device. Returns the page to post in
    /// its place, as [`rx_finish`](Self::rx_finish) does. If no other page is free, the whole frame is dropped,
    /// counted (`no_page`).
    pub fn rx_finish_part(&mut self, frame: &mut Gather, page: Page, offset: usize, len: usize) -> Page {
        if let State::Broken(_, bytes) = &mut frame.0 {
            *bytes = bytes.saturating_add(len);
            return page;
        }
        let Some(other) = self.pages.pool.take() else {
            self.break_off(frame, Why::NoPage, len);
            return page;
        };
        self.gather(frame, page, offset, len);
        other
    }

    /// Reports that a buffer of the frame was lost. The whole frame is then lost.
    pub fn spoil(&mut self, frame: &mut Gather) {
        self.break_off(frame, Why::Lost, 0);
    }

    /// Hands over a frame whose last buffer has arrived, with its hash if the device computes one. A frame that is
    /// incomplete or does not lie in its pages is counted as dropped instead. Returns whether a frame was handed
    /// over.
    pub fn push_gathered(&mut self, frame: &mut Gather, hash: Option<FlowHash>) -> bool {
        match std::mem::take(&mut frame.0) {
            State::Begun(mut begun) => {
                if let Some(hash) = hash {
                    begun.set_hash(hash.0);
                }
                let bytes = self.total_len(&begun);
                return self.push_if_sound(begun, bytes);
            }
            State::Broken(Why::Lost, _) => self.lost(1),
            State::Broken(Why::NoPage, bytes) => {
                self.counts.no_page += 1;
                self.counts.wire_bytes += on_the_wire(bytes);
            }
            State::Empty => {}
        }
        false
    }

    fn break_off(&mut self, frame: &mut Gather, why: Why, more: usize) {
        frame.0 = match std::mem::take(&mut frame.0) {
            State::Begun(begun) => {
                let bytes = self.total_len(&begun).saturating_add(more);
                self.pages.pool.recycle_chain(begun);
                State::Broken(why, bytes)
            }
            State::Empty => State::Broken(why, more),
            broken @ State::Broken(..) => broken,
        };
    }

    fn total_len(&self, frame: &Completion) -> usize {
        self.pages.pool.region().total_len(frame)
    }
}
