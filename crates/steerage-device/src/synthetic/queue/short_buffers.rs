use steerage::{
    DeviceError,
    device::{Completions, Gather, Page, Region},
    limits::{HEADROOM, SEGMENTS_MAX},
};

use super::SyntheticQueue;

#[derive(Debug)]
pub(super) struct ShortBuffers {
    pub(super) buffer: usize,
    /// The frame that is being handed over, its length, and the number of bytes that were handed
    /// over.
    frame: Box<[u8]>,
    len: usize,
    done: usize,
    begun: Gather,
}

impl ShortBuffers {
    pub(super) fn new(buffer: usize, room: usize) -> Self {
        Self { buffer, frame: vec![0; room].into(), len: 0, done: 0, begun: Gather::default() }
    }

    pub(super) fn segments_max(&self) -> usize {
        self.frame.len().div_ceil(self.buffer).min(SEGMENTS_MAX)
    }

    pub(super) fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        self.begun.close(region, pages);
    }

    fn hand_over(&mut self, out: &mut Completions<'_>) -> bool {
        while self.done < self.len {
            let Some(mut page) = out.take_page() else { return false };
            let part = &self.frame[self.done..self.len.min(self.done + self.buffer)];
            out.page_mut(&mut page)[HEADROOM..][..part.len()].copy_from_slice(part);
            out.gather(&mut self.begun, page, HEADROOM, part.len());
            self.done += part.len();
        }
        out.push_gathered(&mut self.begun, None);
        true
    }
}

impl SyntheticQueue {
    pub(super) fn push_parts(
        &mut self,
        parts: &mut ShortBuffers,
        out: &mut Completions<'_>,
        count: usize,
    ) -> Result<usize, DeviceError> {
        for pushed in 0..count {
            if parts.done == parts.len {
                parts.len = self.write_next(&mut parts.frame).ok_or_else(|| self.no_room())?;
                parts.done = 0;
            }
            if !parts.hand_over(out) {
                return Ok(pushed);
            }
        }
        Ok(count)
    }
}
