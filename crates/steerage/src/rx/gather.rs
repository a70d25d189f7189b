//! Frames that a device receives into several buffers.

use steerage_mem::hash::FlowHash;
use steerage_mem::{Completion, Page, Region};

use super::Completions;
use super::completions::on_the_wire;

/// A frame of several buffers, as far as it has come. A device keeps one from buffer to buffer, and from poll to poll, since a
/// frame's last buffer may come later than its first; at its end the pages that are still in it are to [go home](Self::close).
#[derive(Debug, Default)]
pub struct Gather(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Empty,
    Begun(Completion),
    /// It cannot be handed over any more, for that reason; what of it has yet to come is passed over.
    Broken(Why, usize),
}

#[derive(Clone, Copy, Debug)]
enum Why {
    Lost,
    NoPage,
}

impl Gather {
    /// Whether no part of a frame has come.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, State::Empty)
    }

    /// Gives the frame up: its pages, which are `region`'s, go to `pages`. For [`RxQueue::close`](super::RxQueue::close).
    pub fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        if let State::Begun(frame) = std::mem::take(&mut self.0) {
            region.take_apart(frame, |page, _, _| pages.push(page));
        }
    }
}

impl Completions<'_> {
    /// Adds a buffer to a frame: its `len` bytes at `offset` of `page`. The first is the frame's head, which its headers are in. If
    /// it is too much for a frame ([`SEGMENTS_MAX`](crate::SEGMENTS_MAX), [`FRAME_BYTES_MAX`](crate::FRAME_BYTES_MAX)), all of the
    /// frame is lost, counted once its [last](Self::push_gathered) buffer has come.
    pub fn gather(&mut self, frame: &mut Gather, page: Page, offset: u32, len: usize) {
        match &mut frame.0 {
            State::Empty => frame.0 = State::Begun(Completion::new(page, offset, len)),
            State::Begun(begun) => {
                if let Err(page) = self.pool.region().append(begun, page, offset, len) {
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

    /// As [`gather`](Self::gather), of a page that was posted in a ring of the device's: returns the page to post in its place, as
    /// [`rx_finish`](Self::rx_finish) does. Where none is to be had in exchange, all of the frame drops, counted (`no_page`).
    pub fn rx_finish_part(&mut self, frame: &mut Gather, page: Page, offset: u32, len: usize) -> Page {
        if let State::Broken(_, bytes) = &mut frame.0 {
            *bytes = bytes.saturating_add(len);
            return page;
        }
        let Some(other) = self.pool.take() else {
            self.break_off(frame, Why::NoPage, len);
            return page;
        };
        self.gather(frame, page, offset, len);
        other
    }

    /// A buffer of the frame was lost, and with it the frame.
    pub fn spoil(&mut self, frame: &mut Gather) {
        self.break_off(frame, Why::Lost, 0);
    }

    /// Hands a frame over whose last buffer has come, with its hash if the device computes one, or counts it as dropped if it is
    /// not whole or does not lie in its pages. False if it did not hand one over.
    pub fn push_gathered(&mut self, frame: &mut Gather, hash: Option<FlowHash>) -> bool {
        match std::mem::take(&mut frame.0) {
            State::Begun(mut begun) => {
                if let Some(hash) = hash {
                    begun.set_hash(hash);
                }
                let bytes = self.total_len(&begun);
                return self.push_if_sound(begun, bytes);
            }
            State::Broken(Why::Lost, _) => self.lost(1),
            State::Broken(Why::NoPage, bytes) => {
                self.no_page += 1;
                self.wire_bytes += on_the_wire(bytes);
            }
            State::Empty => {}
        }
        false
    }

    fn break_off(&mut self, frame: &mut Gather, why: Why, more: usize) {
        frame.0 = match std::mem::take(&mut frame.0) {
            State::Begun(begun) => {
                let bytes = self.total_len(&begun).saturating_add(more);
                self.pool.recycle_chain(begun);
                State::Broken(why, bytes)
            }
            State::Empty => State::Broken(why, more),
            broken @ State::Broken(..) => broken,
        };
    }

    fn total_len(&self, frame: &Completion) -> usize {
        self.pool.region().total_len(frame)
    }
}
