//! A receive queue: its socket, its pages, and its counts of lost frames.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use steerage::{
    Affinity, DeviceError, Timestamp,
    device::{Capabilities, Completions, DeviceCounts, Filled, Fit, Gather, Opened, Page, Polled, Region, RxQueue},
    flow::FlowHash,
    limits::SEGMENTS_MAX,
};
use steerage_netlink::Rtnetlink;

use super::HEADROOM_BYTES;
use super::bind::chunk_bytes;
use super::bond;
use super::device::Device;
use super::metadata::{META_BYTES, Metadata};
use super::sys::{self, ByCpu, FilledChunk, OpenSocket};
use pace::{BusyPolling, Coalescing};
use watch::{News, Watch};

mod pace;
mod watch;

/// The minimum interval between two checks for lost frames and the interface's state. Each check
/// takes a few system calls.
const LOOK: Duration = Duration::from_millis(5);

/// The time after which the queue checks for free pages again, if almost no page is posted. Without
/// posted pages, no frame arrives that could wake the CPU.
const PAGES_LOOK: Duration = Duration::from_micros(100);

/// Up to this many posted pages count as almost no posted page.
const POSTED_FEW: usize = 16;

/// The stage of a queue's life.
#[derive(Debug)]
enum Stage {
    /// The queue has no pages yet.
    New,
    /// The queue has a socket. Frames go to the socket from the first poll on.
    Ready(OpenSocket),
    /// Frames go to the socket.
    Open(OpenSocket),
    /// Frames no longer go to the socket. The queue ends after it has handed over the remaining
    /// frames. With `Some`, the queue ends with this error.
    Ending(OpenSocket, Option<DeviceError>),
    Ended,
}

/// A frame of several parts that has not arrived completely.
#[derive(Debug, Default)]
struct Begun {
    frame: Gather,
    /// The hash of the first part.
    hash: Option<FlowHash>,
}

/// The kernel's counts for a socket, in addition to lost frames, with the kernel's names (Linux,
/// net/core/xsk of ynl and `struct xdp_statistics`).
///
/// A frame is lost if the rx ring is full. Each time that the fill ring is empty, a frame is lost
/// or has to wait. An invalid descriptor in the fill ring is a page that the kernel does not use.
///
/// steerage itself computes the last count: the frames that the driver received while it had
/// forgotten the program.
const COUNTS: [&str; 4] = ["rx_ring_full", "rx_fill_ring_empty_descs", "rx_invalid_descs", "unseen_by_program"];

/// The index of the last count.
const UNSEEN: usize = 3;

/// One socket and its rings.
#[derive(Debug)]
pub(super) struct Queue {
    device: Arc<Device>,
    number: u32,
    /// The packets that the device's hashes keep together, if the device hashes.
    hash: Option<Affinity>,
    stage: Stage,
    events: Epoll,
    watch: Watch,
    /// True if frames go to the socket. Frames do not go to the socket while the queue's interface
    /// is a port that its bond does not use.
    receives: bool,
    /// The longest frame that the queue can receive, in bytes.
    longest: usize,
    begun: Begun,
    looked: Timestamp,
    /// The position of a frame in a page.
    fit: Fit,
    /// The number of received frames that the ledger counts as handed over or dropped, and the
    /// number of frames that the kernel lost.
    counted: u64,
    lost: u64,
    passed: u64,
    /// The lost frames that the socket's statistics have reported.
    told: u64,
    invalid: u64,
    counts: Arc<DeviceCounts>,
    starved: bool,
    by_cpu: ByCpu,
    coalescing: Option<Coalescing>,
    busy_polling: Option<BusyPolling>,
    /// True if a frame has shown that busy polling reaches the driver.
    is_polled: bool,
}

impl Queue {
    pub(super) fn new(device: Arc<Device>, number: u32, hash: Option<Affinity>, tells: bool) -> io::Result<Self> {
        let watch = Watch::new(&device, tells)?;
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        watch.add_to(&events)?;
        Ok(Self {
            receives: Self::receives_now(&device)?,
            fit: Fit::new(device.frame_bytes_max()),
            coalescing: device.coalesce.map(Coalescing::new),
            busy_polling: device.busy_poll.map(BusyPolling::new),
            is_polled: false,
            device,
            number,
            hash,
            stage: Stage::New,
            events,
            watch,
            longest: 0,
            begun: Begun::default(),
            looked: Timestamp::ZERO,
            counted: 0,
            lost: 0,
            passed: 0,
            told: 0,
            invalid: 0,
            counts: Arc::new(DeviceCounts::new(&COUNTS)),
            starved: false,
            by_cpu: ByCpu::new(),
        })
    }

    /// Returns true if frames are wanted in the current state of the interface. The kernel reports
    /// later changes.
    fn receives_now(device: &Device) -> io::Result<bool> {
        let Some(bond) = device.bond else { return Ok(true) };
        Ok(bond::uses(bond, &Rtnetlink::open()?.link_at(device.index)?))
    }

    /// Fills up the fill ring. A received frame is replaced by another page at once. Therefore the
    /// fill ring is full except at the start, or if too few pages were free at the start.
    fn refill(&mut self, out: &mut Completions<'_>) {
        let (Stage::Ready(ready) | Stage::Open(ready)) = &mut self.stage else { return };
        let missing = (self.device.ring as usize).saturating_sub(ready.posted()).min(ready.room() as usize);
        self.starved = false;
        if missing == 0 {
            return;
        }
        let known = self.device.program.functions.any();
        let posted = out.refill(missing, self.fit, |page| post(ready, page, known));
        self.starved = posted < missing && ready.posted() < POSTED_FEW;
        ready.show();
    }

    /// Takes the frames that have arrived, up to the budget. Returns true if more frames may have
    /// arrived.
    fn receive(&mut self, out: &mut Completions<'_>, budget: usize) -> bool {
        let ends = matches!(self.stage, Stage::Ending(..));
        let (Stage::Ready(ready) | Stage::Open(ready) | Stage::Ending(ready, _)) = &mut self.stage else {
            return false;
        };
        let (filled, known) = (ready.filled(), self.device.program.functions.any());
        for _ in 0..filled {
            if out.len() >= budget {
                break;
            }
            let page = match ready.take() {
                Some(Ok(chunk)) if self.begun.frame.is_empty() && !chunk.goes_on => {
                    let FilledChunk { mut page, offset, len, .. } = chunk;
                    let (offset, len) = (offset as usize, len as usize);
                    self.counted += 1;
                    if known {
                        Metadata::before(out.page_mut(&mut page), offset).hand_over(out, page, offset, len)
                    } else {
                        out.rx_finish(page, offset, Filled::whole(len))
                    }
                }
                Some(Ok(chunk)) => {
                    let goes_on = chunk.goes_on;
                    let page = gather(out, &mut self.begun, chunk, known);
                    self.counted += u64::from(!goes_on);
                    page
                }
                Some(Err(bad)) => {
                    self.invalid += 1;
                    out.spoil(&mut self.begun.frame);
                    if !bad.goes_on {
                        hand_over(out, &mut self.begun);
                        self.counted += 1;
                    }
                    continue;
                }
                None => break,
            };
            // The pages that a zero-copy socket has when it is closed are lost.
            if let Err(page) = if ends { Err(page) } else { post(ready, page, known) } {
                out.give_page(page);
            }
        }
        // An idle poll writes to no memory of the kernel.
        if filled > 0 {
            ready.release();
            ready.show();
        }
        out.len() >= budget || ready.filled() > 0
    }

    /// Reads from the kernel how many frames were lost, and checks for changes of the interface.
    fn look(&mut self, out: &mut Completions<'_>) -> Result<(), DeviceError> {
        self.looked = out.now();
        self.look_for_napi();
        self.count_lost(out)?;
        if self.watch.is_second() {
            self.count_passed(out)?;
            let handled = self.counted + self.passed;
            if let Some(error) = self.watch.look_for_program(&self.device, handled, &mut self.by_cpu, &self.counts)? {
                self.end(Some(error));
            }
        }
        match self.watch.look(&self.device, self.longest) {
            News::Nothing => {}
            News::Receives(receives) => self.follow(receives),
            News::Ends(error) => self.end(error),
        }
        Ok(())
    }

    /// Lets frames of a bond's port go to the socket, or to the kernel.
    fn follow(&mut self, receives: bool) {
        if std::mem::replace(&mut self.receives, receives) == receives {
            return;
        }
        if self.watch.tells() {
            tracing::info!(device = %self.device.name, receives, "the bond changed the use of its port");
        }
        if receives {
            return;
        }
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Open(ready) => {
                // The map's entry may be gone already, together with the interface.
                let _ = self.device.program.sockets.clear(self.device.first_key + self.number);
                Stage::Ready(ready)
            }
            stage => stage,
        };
    }

    /// Counts the frames that the socket has lost since the last call.
    fn count_lost(&mut self, out: &mut Completions<'_>) -> Result<(), DeviceError> {
        let (Stage::Ready(ready) | Stage::Open(ready) | Stage::Ending(ready, _)) = &self.stage else { return Ok(()) };
        let counted = ready.statistics().map_err(|e| self.device.error("read the socket's statistics", e))?;
        let all = counted.rx_dropped + counted.rx_ring_full;
        let new = all.saturating_sub(self.told);
        self.told = all;
        for (nth, count) in [counted.rx_ring_full, counted.fill_ring_empty, counted.rx_invalid].into_iter().enumerate()
        {
            self.counts.raise_to(nth, count);
        }
        self.lost += new;
        out.lost(new);
        Ok(())
    }

    /// Counts the frames that the program has left to the kernel.
    fn count_passed(&mut self, out: &mut Completions<'_>) -> Result<(), DeviceError> {
        let passed = self.device.program.counters.sum(2 * (self.device.first_key + self.number) + 1, &mut self.by_cpu);
        let passed = passed.map_err(|e| self.device.error("read the program's counters", e))?;
        out.passed(passed.saturating_sub(self.passed));
        self.passed = passed;
        Ok(())
    }

    /// Sends all further frames to the kernel.
    fn end(&mut self, why: Option<DeviceError>) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Ready(ready) | Stage::Open(ready) => {
                // The map's entry may be gone already, together with the interface.
                let _ = self.device.program.sockets.clear(self.device.first_key + self.number);
                if !sys::wait_for_receivers() {
                    tracing::debug!(device = %self.device.name, "the kernel cannot say when its receivers are done");
                }
                Stage::Ending(ready, why)
            }
            Stage::New => Stage::Ended,
            stage @ (Stage::Ending(..) | Stage::Ended) => stage,
        };
    }

    /// Ends the queue after it has handed over all frames. Counts the lost frames and takes the
    /// pages back from the socket.
    fn settle(&mut self, out: &mut Completions<'_>) -> Result<Polled, DeviceError> {
        self.count_lost(out)?;
        let Stage::Ending(ready, why) = std::mem::replace(&mut self.stage, Stage::Ended) else {
            return Ok(Polled::Ended);
        };
        // If only the first parts of a frame have arrived, the frame will not be completed.
        out.spoil(&mut self.begun.frame);
        self.begun = Begun::default();
        if let Some(mut posted) = ready.close() {
            posted.take_all().for_each(|page| out.give_page(page));
        }
        self.count_passed(out)?;
        // Frames that the program redirected, but that were neither received nor counted as lost:
        // the socket was not in the map at that time.
        let taken = self.device.program.counters.sum(2 * (self.device.first_key + self.number), &mut self.by_cpu);
        let taken = taken.map_err(|e| self.device.error("read the program's counters", e))?;
        let missing = taken.saturating_sub(self.counted + self.lost);
        self.lost += missing;
        out.lost(missing);
        let Self { invalid, lost, number, .. } = *self;
        tracing::info!(device = %self.device.name, queue = number, lost, missing, invalid, "packets are taken no more");
        why.map_or(Ok(Polled::Ended), Err)
    }
}

impl RxQueue for Queue {
    fn capabilities(&self) -> Capabilities {
        let mut can =
            Capabilities::pages(0).fit(self.fit).segments(self.device.segments_max()).posted(self.device.ring as usize);
        can.hash = self.hash;
        can
    }

    fn open(&mut self, region: &Arc<Region>) -> Result<Opened, DeviceError> {
        let ready = self.device.ready(self.number, region)?;
        self.events
            .add(&ready, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLERR, 0))
            .map_err(|e| self.device.error("wait for the socket", e.into()))?;
        let mode = self.device.mode(&ready);
        let parts = if self.device.takes_several() { SEGMENTS_MAX } else { 1 };
        self.longest = parts * (chunk_bytes(region) as usize - HEADROOM_BYTES);
        self.stage = Stage::Ready(ready);
        let mut opened = Opened::in_mode(mode);
        opened.counts = Some(Arc::clone(&self.counts));
        Ok(opened)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.refill(out);
        if matches!(self.stage, Stage::Ready(_)) && self.receives {
            self.activate()?;
        }
        let more = self.receive(out, budget);
        if matches!(self.stage, Stage::Ending(..) | Stage::Ended) {
            return if more { Ok(Polled::More) } else { self.settle(out) };
        }
        if out.now().since(self.looked) >= LOOK {
            self.look(out)?;
        }
        if let Stage::Ready(ready) | Stage::Open(ready) = &self.stage {
            let is_due = self.busy_polling.as_mut().is_some_and(|busy| busy.is_due(out.now(), !out.is_empty(), more));
            if ready.needs_wakeup() || is_due {
                ready.wake_up();
            }
        }
        Ok(match (more, self.starved) {
            (false, true) => Polled::NotBefore(out.now() + PAGES_LOOK),
            (false, false) if !matches!(self.stage, Stage::Ending(..)) && self.device.busy_poll.is_none() => {
                let (arrived, ring) = (self.counted, self.device.ring);
                let wait = self.coalescing.as_mut().and_then(|waits| waits.after_poll(out.now(), arrived, ring));
                wait.map_or(Polled::Drained, |wait| Polled::Coalesce(out.now() + wait))
            }
            _ => Polled::More,
        })
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.0.as_fd())
    }

    fn stop(&mut self) -> bool {
        self.end(None);
        true
    }

    fn close(&mut self, region: &Region, pages: &mut Vec<Page>) {
        // Frames that arrived but were not delivered are no longer wanted.
        self.end(None);
        self.begun.frame.close(region, pages);
        if let Stage::Ending(ready, _) = std::mem::replace(&mut self.stage, Stage::Ended) {
            let posted = ready.close();
            posted.into_iter().for_each(|mut posted| pages.extend(posted.take_all()));
        }
    }
}

impl Queue {
    /// Starts the redirection of frames to the socket. Ends busy polling that does not reach the
    /// driver. Without busy polling, only the kernel's timer runs the driver, because the driver's
    /// interrupts are deferred.
    fn look_for_napi(&mut self) {
        let Stage::Open(ready) = &self.stage else { return };
        if self.is_polled || self.counted == 0 || self.busy_polling.is_none() {
            return;
        }
        self.is_polled = true;
        if ready.has_no_napi() {
            self.busy_polling = None;
            let device = &self.device.name;
            tracing::warn!(%device, "busy_poll has no effect: the driver does not say which NAPI instance to poll; leave it out");
        }
    }

    fn activate(&mut self) -> Result<(), DeviceError> {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Ready(ready) => {
                let set = self.device.program.sockets.set(self.device.first_key + self.number, ready.as_fd());
                set.map_err(|e| self.device.error("give the program its socket", e))?;
                Stage::Open(ready)
            }
            stage => stage,
        };
        Ok(())
    }
}

#[inline(always)]
fn post(ready: &mut OpenSocket, mut page: Page, known: bool) -> Result<(), Page> {
    if known {
        // Clear the old bytes in front of the frame, because they are not metadata of the next frame.
        let before = HEADROOM_BYTES - META_BYTES..HEADROOM_BYTES;
        ready.page_mut(&mut page).get_mut(before).into_iter().for_each(|before| before.fill(0));
    }
    ready.post(page)
}

/// Adds a part to the current frame, or begins a frame. Hands the frame over after its last part.
/// Returns the page to post instead. The card's time is not read for
/// frames that consist of several parts.
#[cold]
fn gather(out: &mut Completions<'_>, begun: &mut Begun, part: FilledChunk, known: bool) -> Page {
    let FilledChunk { mut page, offset, len, goes_on } = part;
    let (mut offset, mut len) = (offset as usize, len as usize);
    if begun.frame.is_empty() && known {
        let metadata = Metadata::before(out.page_mut(&mut page), offset);
        begun.hash = metadata.hash;
        (offset, len) = metadata.with_tag(out.page_mut(&mut page), offset, len);
    }
    let page = out.rx_finish_part(&mut begun.frame, page, offset, len);
    if !goes_on {
        hand_over(out, begun);
    }
    page
}

fn hand_over(out: &mut Completions<'_>, begun: &mut Begun) {
    let hash = std::mem::take(&mut begun.hash);
    out.push_gathered(&mut begun.frame, hash);
}
