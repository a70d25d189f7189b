mod short_buffers;

use std::io;

use steerage::{
    DeviceError,
    device::{Capabilities, Completion, Completions, Page, Polled, Region, RxQueue},
    limits::{HEADROOM, POLL_BUDGET},
};

use short_buffers::ShortBuffers;

use super::frame::{Places, Template};
use super::sample::Sampler;
use super::{RING, Share, SyntheticOptions};
use crate::schedule::Schedule;

/// A frame that was not generated yet, but whose flow was already drawn (chosen at random).
#[derive(Clone, Copy, Debug, Default)]
struct NextFrame {
    /// The flow's number within this queue.
    flow: u32,
    number: u64,
}

/// Flows are drawn in one step, so that cache misses in the tables of the flows overlap.
const AHEAD: usize = POLL_BUDGET;

pub(super) struct SyntheticQueue {
    name: String,
    sampler: Sampler,
    /// For each flow, the number of frames for which this flow was drawn (chosen at random) so far.
    numbers: Box<[u64]>,
    ahead: [NextFrame; AHEAD],
    ahead_at: usize,

    places: Places,
    templates: Box<[Template]>,
    /// A flow's number in the device is `first` plus its number in this queue times `stride`.
    first: u32,
    stride: u32,

    schedule: Option<Schedule>,
    /// The number of frames after which the queue ends. Lost frames are included.
    limit: u64,
    gone: u64,
    parts: Option<ShortBuffers>,
}

impl SyntheticQueue {
    pub(super) fn new(options: &SyntheticOptions, queue: usize, sampler: Sampler, share: Share) -> Self {
        let mut queue = Self {
            name: options.name.clone(),
            numbers: vec![0; sampler.flows as usize].into(),
            sampler,
            ahead: [NextFrame::default(); AHEAD],
            ahead_at: AHEAD,
            places: Places::new(options.seed),
            templates: options.mix.iter().map(|kind| Template::new(*kind, options.size)).collect(),
            first: queue as u32,
            stride: options.queues as u32,
            schedule: options.rate.map(|rate| share.schedule(rate)),
            limit: options.packets.map_or(u64::MAX, |packets| share.of(packets)),
            gone: 0,
            parts: None,
        };
        queue.parts = options.buffer.map(|buffer| ShortBuffers::new(buffer, queue.room()));
        queue
    }

    fn room(&self) -> usize {
        self.templates.iter().map(Template::room).max().unwrap_or(0)
    }

    /// The sequence of flows does not depend on how many frames each poll takes.
    fn draw(&mut self) {
        let mut flows = [0; AHEAD];
        self.sampler.draw(&mut flows);
        for (next, flow) in self.ahead.iter_mut().zip(flows) {
            let number = &mut self.numbers[flow as usize];
            *next = NextFrame { flow, number: *number };
            *number += 1;
        }
        self.ahead_at = 0;
    }

    /// Returns the number of delivered frames, which is less than `count` if no page is free.
    #[inline(always)]
    fn push(&mut self, out: &mut Completions<'_>, count: usize) -> Result<usize, DeviceError> {
        for pushed in 0..count {
            let Some(mut page) = out.take_page() else { return Ok(pushed) };
            let room = out.page_mut(&mut page).get_mut(HEADROOM..).unwrap_or_default();
            let Some(len) = self.write_next(room) else {
                out.give_page(page);
                return Err(self.no_room());
            };
            out.push(Completion::new(page, HEADROOM, len), len);
        }
        Ok(count)
    }

    /// Writes the next frame, and returns its length. Returns `None` if `room` is too short.
    #[inline(always)]
    fn write_next(&mut self, room: &mut [u8]) -> Option<usize> {
        if self.ahead_at == AHEAD {
            self.draw();
        }
        let next = self.ahead[self.ahead_at];
        let kinds = self.templates.len() as u32;
        let template = &self.templates[if kinds == 1 { 0 } else { next.flow % kinds } as usize];
        let flow = next.flow * self.stride + self.first;
        template.write(room, self.places, flow, next.number)?;
        self.ahead_at += 1;
        Some(template.len())
    }

    #[cold]
    fn no_room(&self) -> DeviceError {
        let cause = io::Error::other(format!("the pages are too small for {} bytes", self.room()));
        DeviceError::new(&self.name, "write a frame", cause).advise("use a smaller `size`")
    }
}

impl RxQueue for SyntheticQueue {
    fn capabilities(&self) -> Capabilities {
        let mut can = match &self.parts {
            None => Capabilities::pages(self.room()),
            Some(parts) => Capabilities::pages(parts.buffer).segments(parts.segments_max()),
        };
        can.can_wait = self.schedule.is_none();
        can
    }

    fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        self.parts.iter_mut().for_each(|parts| parts.close(region, pages));
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let left = self.limit - self.gone;
        let mut due = match &mut self.schedule {
            Some(schedule) => schedule.due(out.now()).saturating_sub(self.gone).min(left),
            None => left,
        };
        if self.schedule.is_some() && due > RING {
            out.lost(due - RING);
            self.gone += due - RING;
            due = RING;
        }
        let count = budget.min(usize::try_from(due).unwrap_or(usize::MAX));
        let pushed = match self.parts.take() {
            None => self.push(out, count)? as u64,
            Some(mut parts) => {
                let pushed = self.push_parts(&mut parts, out, count);
                self.parts = Some(parts);
                pushed? as u64
            }
        };
        self.gone += pushed;
        out.prefetch_pages(budget);
        Ok(match &self.schedule {
            _ if self.gone == self.limit => Polled::Ended,
            Some(schedule) if due == pushed => Polled::NotBefore(schedule.time_of(self.gone)),
            _ => Polled::More,
        })
    }
}
