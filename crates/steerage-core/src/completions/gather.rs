use steerage_flow::FlowHash;
use steerage_mem::Page;
use steerage_mem::gather::{Broken, Gather};

use super::{Completions, on_the_wire};

impl Completions<'_> {
    /// Adds a buffer, `len` bytes at `offset` of `page`, to a frame. The first buffer contains all
    /// headers. A frame that becomes too long ([`FRAME_BYTES_MAX`](steerage_mem::FRAME_BYTES_MAX))
    /// or has too many buffers ([`SEGMENTS_MAX`](steerage_mem::SEGMENTS_MAX)) is lost, and counted
    /// when its [last](Self::push_gathered) buffer has arrived.
    pub fn gather(&mut self, frame: &mut Gather, page: Page, offset: usize, len: usize) {
        if let Err(page) = frame.add(self.pages.pool.region(), page, offset, len) {
            self.give_page(page);
        }
    }

    /// Like [`gather`](Self::gather), but for a page of the device's ring. Returns a page for the
    /// ring, as [`rx_finish`](Self::rx_finish) does. If no page is free, the frame is dropped
    /// (`no_page`).
    pub fn rx_finish_part(&mut self, frame: &mut Gather, page: Page, offset: usize, len: usize) -> Page {
        if frame.skips(len) {
            return page;
        }
        let Some(other) = self.pages.pool.take() else {
            frame.break_off(Broken::NoPage, len);
            return page;
        };
        self.gather(frame, page, offset, len);
        other
    }

    /// Reports that one buffer of a frame was lost. The whole frame then counts as lost.
    pub fn spoil(&mut self, frame: &mut Gather) {
        frame.break_off(Broken::Lost, 0);
    }

    /// Hands over a frame after its last buffer has arrived, with the hash of the device, if any.
    /// Returns false if the frame is incomplete or does not lie within its pages, and was dropped
    /// and counted. A short frame is copied to one page, as in [`rx_finish`](Self::rx_finish).
    pub fn push_gathered(&mut self, frame: &mut Gather, hash: Option<FlowHash>) -> bool {
        let gathered = frame.finish(self.pages.pool.region());
        if let Some((why, bytes)) = gathered.broken {
            match why {
                Broken::Lost => self.lost(1),
                Broken::NoPage => {
                    self.counts.no_page += 1;
                    self.counts.wire_bytes += on_the_wire(bytes);
                }
            }
            gathered.frame.into_iter().for_each(|frame| self.pages.take_home(frame));
            return false;
        }
        let Some(mut frame) = gathered.frame else { return false };
        let bytes = self.pages.memory.total_len(&frame);
        if frame.is_chained() && bytes <= self.copybreak {
            if let Some(copy) = self.pages.pool.copy_out(frame.offset(), |_, to| self.pages.memory.copy_to(&frame, to))
            {
                self.pages.take_home(std::mem::replace(&mut frame, copy));
            }
        }
        self.push_if_sound(frame.with_hash(hash.map(|hash| hash.0)), bytes)
    }
}
