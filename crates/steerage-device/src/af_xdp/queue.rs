//! A receive queue of AF_XDP: its socket, its pages, and its counts of lost frames.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use steerage::{
    Affinity, DeviceError, Timestamp,
    device::{Capabilities, Completions, DeviceCounts, Filled, Fit, Gather, Opened, Page, Polled, Region, RxQueue},
    flow::FlowHash,
};

use super::HEADROOM_BYTES;
use super::bond::View;
use super::device::Device;
use super::metadata::{META_BYTES, Metadata};
use super::sys::{self, ByCpu, FilledChunk, OpenSocket};
use pace::{BusyPolling, Coalescing};
use watch::Watch;

mod pace;
mod watch;

/// The minimum interval between two checks of lost frames and of the interface, which make a few
/// system calls.
const LOOK: Duration = Duration::from_millis(5);

/// The interval at which a queue with at most `POSTED_FEW` posted pages checks for free pages.
/// Without posted pages, no frame arrives that could wake the CPU.
const PAGES_LOOK: Duration = Duration::from_micros(100);

const POSTED_FEW: usize = 16;

#[derive(Debug)]
enum Stage {
    New,
    /// The queue has a socket, to which the XDP program sends frames from the first poll on.
    Ready(OpenSocket),
    Open(OpenSocket),
    /// The XDP program sends no more frames to the queue, and the queue hands over the remaining
    /// frames.
    Ending(Option<OpenSocket>, Then),
    Vacant,
    Ended,
}

#[derive(Debug)]
enum Then {
    End(Option<DeviceError>),
    /// The queue's port of the bond was deleted, and the queue waits for another port.
    AwaitPort,
}

#[derive(Debug, Default)]
struct Begun {
    frame: Gather,
    hash: Option<FlowHash>,
}

/// The kernel's counts other than lost frames, under Linux's names (`struct xdp_statistics`, and
/// net/core/xsk of ynl). If the rx ring is full, a frame is lost. If the fill ring is empty, a
/// frame is lost or delayed. The kernel does not use the page of an invalid descriptor.
/// `unseen_by_program` is steerage's own count of frames that the driver received while the driver
/// had lost the XDP program.
const COUNTS: [&str; 4] = ["rx_ring_full", "rx_fill_ring_empty_descs", "rx_invalid_descs", "unseen_by_program"];

/// The mode that a queue reports while it has no port of its bond.
const FREE: &str = "native, for a new port";

const UNSEEN: usize = 3;

#[derive(Debug)]
pub(super) struct Queue {
    device: Arc<Device>,
    number: u32,
    /// The queue's key in the BPF maps of the XDP program.
    key: u32,
    /// States whether the device's hash is the same for both directions of a flow. `None` if the
    /// device has no hashes.
    hash: Option<Affinity>,
    stage: Stage,
    events: Epoll,
    watch: Watch,
    /// The queue's view of the bond's table entry for its port. `None` if the interface is not a
    /// bond.
    view: Option<View>,
    /// `receives` is false while the bond does not use the queue's port.
    receives: bool,
    begun: Begun,
    looked: Timestamp,
    fit: Fit,
    /// `counted`: received frames, handed over or dropped. `lost`: frames that the kernel lost.
    counted: u64,
    lost: u64,
    passed: u64,
    /// The kernel's counts for the current socket that were already added to the counters of the
    /// queue and to `counts`: lost frames, then the first three counts of `COUNTS`.
    told: [u64; 4],
    invalid: u64,
    counts: Arc<DeviceCounts>,
    starved: bool,
    by_cpu: ByCpu,
    coalescing: Option<Coalescing>,
    busy_polling: Option<BusyPolling>,
    /// `is_polled`: a received frame has shown whether busy polling reaches the driver. `unpolled`:
    /// the frames that were counted before the current socket.
    is_polled: bool,
    unpolled: u64,
}

impl Queue {
    pub(super) fn new(
        device: Arc<Device>,
        number: u32,
        hash: Option<Affinity>,
        tells: bool,
        view: Option<View>,
    ) -> io::Result<Self> {
        let watch = Watch::new(&device, tells, view.is_some())?;
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        watch.add_to(&events)?;
        if let Some(view) = &view {
            events.add(view.event(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Self {
            key: number + view.as_ref().map_or(device.first_key, View::first_key),
            receives: view.as_ref().is_none_or(|view| view.state().receives),
            view,
            fit: Fit::new(device.frame_bytes_max()),
            coalescing: device.coalesce.map(Coalescing::new),
            busy_polling: device.busy_poll.map(BusyPolling::new),
            is_polled: false,
            unpolled: 0,
            device,
            number,
            hash,
            stage: Stage::New,
            events,
            watch,
            begun: Begun::default(),
            looked: Timestamp::ZERO,
            counted: 0,
            lost: 0,
            passed: 0,
            told: [0; 4],
            invalid: 0,
            counts: Arc::new(DeviceCounts::new(&COUNTS)),
            starved: false,
            by_cpu: ByCpu::new(),
        })
    }

    /// Fills the fill ring. `receive` replaces each received page at once, so the fill ring has
    /// room only at the start, or if free pages were missing.
    fn refill(&mut self, out: &mut Completions<'_>) {
        self.starved = false;
        let (Stage::Ready(ready) | Stage::Open(ready)) = &mut self.stage else { return };
        let missing = (self.device.ring as usize).saturating_sub(ready.posted()).min(ready.room() as usize);
        if missing == 0 {
            return;
        }
        let known = self.device.program.functions.any();
        let posted = out.refill(missing, self.fit, |page| post(ready, page, known));
        self.starved = posted < missing && ready.posted() < POSTED_FEW;
        ready.show();
    }

    fn receive(&mut self, out: &mut Completions<'_>, budget: usize) -> bool {
        let ends = matches!(self.stage, Stage::Ending(..));
        let (Stage::Ready(ready) | Stage::Open(ready) | Stage::Ending(Some(ready), _)) = &mut self.stage else {
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
            // An ending queue posts no page: a zero-copy socket loses its pages when it is closed.
            if let Err(page) = if ends { Err(page) } else { post(ready, page, known) } {
                out.give_page(page);
            }
        }
        // A poll that finds no frames must not write to memory that the kernel also uses.
        if filled > 0 {
            ready.release();
            ready.show();
        }
        out.len() >= budget || ready.filled() > 0
    }

    fn look(&mut self, out: &mut Completions<'_>) -> Result<(), DeviceError> {
        self.looked = out.now();
        self.look_for_napi();
        self.count_lost(out)?;
        if self.watch.is_second() {
            self.count_passed(out)?;
            let handled = (!matches!(self.stage, Stage::Vacant)).then_some(self.counted + self.passed);
            if let Some(error) = self.watch.look_for_program(&self.device, handled, &mut self.by_cpu, &self.counts)? {
                self.end(Some(error));
            }
        }
        if self.view.is_some() {
            self.look_for_port()?;
        } else if let Some(error) = self.watch.look(&self.device) {
            self.end(Some(error));
        }
        Ok(())
    }

    fn look_for_port(&mut self) -> Result<(), DeviceError> {
        let Some(view) = &mut self.view else { return Ok(()) };
        view.refresh();
        if let Some(error) = view.error() {
            self.end(Some(error));
            return Ok(());
        }
        let state = view.state();
        let other = state.port.as_ref().filter(|port| !Arc::ptr_eq(port, &self.device)).map(Arc::clone);
        let (is_here, receives) = (state.port.is_some() && other.is_none(), state.receives);
        match other {
            Some(port) if matches!(self.stage, Stage::Vacant) => self.move_to(port)?,
            _ if !is_here && matches!(self.stage, Stage::Ready(_) | Stage::Open(_)) => self.leave(Then::AwaitPort),
            _ => {}
        }
        self.follow(receives);
        Ok(())
    }

    fn move_to(&mut self, port: Arc<Device>) -> Result<(), DeviceError> {
        // `port` has no socket for this queue if `port` has fewer queues than its place (table
        // entry) in the bond.
        if let Some(ready) = port.socket_of(self.number) {
            self.listen_to(&ready)?;
            self.stage = Stage::Ready(ready);
        }
        (self.told, self.is_polled, self.unpolled) = ([0; 4], false, self.counted);
        self.busy_polling = port.busy_poll.map(BusyPolling::new);
        self.watch.restart();
        self.device = port;
        Ok(())
    }

    fn listen_to(&self, ready: &OpenSocket) -> Result<(), DeviceError> {
        let added = self.events.add(ready, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLERR, 0));
        added.map_err(|e| self.device.error("wait for the socket", e.into()))
    }

    /// Returns true if the socket's interface is a port of a bond and was deleted.
    fn is_deleted(&self) -> bool {
        let port = self.view.as_ref().map(|view| view.state().port.as_ref());
        port.is_some_and(|port| port.is_none_or(|port| !Arc::ptr_eq(port, &self.device)))
    }

    /// Makes a queue stop taking frames if its bond no longer uses the port (`receives` is false).
    fn follow(&mut self, receives: bool) {
        if std::mem::replace(&mut self.receives, receives) == receives {
            return;
        }
        if self.watch.tells {
            tracing::info!(device = %self.device.name, receives, "the bond changed the use of its port");
        }
        if receives {
            return;
        }
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Open(ready) => {
                // Ignore an error: the map's entry may have been removed with the interface.
                let _ = self.device.program.sockets.clear(self.key);
                Stage::Ready(ready)
            }
            stage => stage,
        };
    }

    fn count_lost(&mut self, out: &mut Completions<'_>) -> Result<(), DeviceError> {
        let (Stage::Ready(ready) | Stage::Open(ready) | Stage::Ending(Some(ready), _)) = &self.stage else {
            return Ok(());
        };
        let counted = ready.statistics().map_err(|e| self.device.error("read the socket's statistics", e))?;
        let lost = counted.rx_dropped + counted.rx_ring_full;
        let all = [lost, counted.rx_ring_full, counted.fill_ring_empty, counted.rx_invalid];
        let told = std::mem::replace(&mut self.told, all);
        let new = |nth: usize| all[nth].saturating_sub(told[nth]);
        (0..UNSEEN).for_each(|nth| self.counts.add(nth, new(nth + 1)));
        self.lost += new(0);
        out.lost(new(0));
        Ok(())
    }

    fn count_passed(&mut self, out: &mut Completions<'_>) -> Result<(), DeviceError> {
        let passed = self.device.program.counters.sum(2 * self.key + 1, &mut self.by_cpu);
        let passed = passed.map_err(|e| self.device.error("read the program's counters", e))?;
        out.passed(passed.saturating_sub(self.passed));
        self.passed = passed;
        Ok(())
    }

    fn end(&mut self, why: Option<DeviceError>) {
        self.leave(Then::End(why));
    }

    fn leave(&mut self, then: Then) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Ready(ready) | Stage::Open(ready) => {
                // Ignore an error: the map's entry may have been removed with the interface.
                let _ = self.device.program.sockets.clear(self.key);
                // The kernel waits for code that receives packets before it reports a deleted port.
                if !matches!(then, Then::AwaitPort) && !sys::wait_for_receivers() {
                    tracing::debug!(device = %self.device.name, "the kernel cannot say when its receivers are done");
                }
                Stage::Ending(Some(ready), then)
            }
            Stage::Vacant => Stage::Ending(None, then),
            Stage::New => Stage::Ended,
            Stage::Ending(ready, Then::AwaitPort) => Stage::Ending(ready, then),
            stage @ (Stage::Ending(..) | Stage::Ended) => stage,
        };
    }

    /// Ends a queue that has handed over all frames, or lets the queue wait for another port.
    fn settle(&mut self, out: &mut Completions<'_>) -> Result<Polled, DeviceError> {
        self.count_lost(out)?;
        let Stage::Ending(ready, then) = std::mem::replace(&mut self.stage, Stage::Ended) else {
            return Ok(Polled::Ended);
        };
        // The other parts of an incomplete frame will not arrive any more.
        out.spoil(&mut self.begun.frame);
        self.begun = Begun::default();
        if let Some(mut posted) = ready.and_then(|ready| ready.close(self.is_deleted())) {
            posted.take_all().for_each(|page| out.give_page(page));
        }
        self.count_passed(out)?;
        // `missing`: the frames that the XDP program redirected while the socket was not in the
        // map.
        let taken = self.device.program.counters.sum(2 * self.key, &mut self.by_cpu);
        let taken = taken.map_err(|e| self.device.error("read the program's counters", e))?;
        let missing = taken.saturating_sub(self.counted + self.lost);
        self.lost += missing;
        out.lost(missing);
        let Self { invalid, lost, number, .. } = *self;
        tracing::info!(device = %self.device.name, queue = number, lost, missing, invalid, "packets are taken no more");
        match then {
            Then::End(why) => why.map_or(Ok(Polled::Ended), Err),
            Then::AwaitPort => {
                self.stage = Stage::Vacant;
                Ok(Polled::More)
            }
        }
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
        let is_free = self.view.as_ref().is_some_and(|view| view.state().port.is_none());
        let mode = if is_free {
            self.stage = Stage::Vacant;
            FREE
        } else {
            let ready = self.device.ready(self.number, region)?;
            self.listen_to(&ready)?;
            let mode = self.device.mode(&ready);
            self.stage = Stage::Ready(ready);
            mode
        };
        if let Some(view) = &self.view {
            view.places().opened(region)?;
        }
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
        // Frames that have arrived but were not delivered are discarded.
        self.end(None);
        self.begun.frame.close(region, pages);
        let is_deleted = self.is_deleted();
        if let Stage::Ending(Some(ready), _) = std::mem::replace(&mut self.stage, Stage::Ended) {
            let posted = ready.close(is_deleted);
            posted.into_iter().for_each(|mut posted| pages.extend(posted.take_all()));
        }
    }
}

impl Queue {
    /// Ends busy polling if it does not reach the driver. The driver's interrupts are deferred for
    /// busy polling, so only the kernel's timer would run the driver.
    fn look_for_napi(&mut self) {
        let Stage::Open(ready) = &self.stage else { return };
        if self.is_polled || self.counted == self.unpolled || self.busy_polling.is_none() {
            return;
        }
        self.is_polled = true;
        if ready.has_no_napi() {
            self.busy_polling = None;
            self.device.polls_in_vain();
            let device = &self.device.name;
            tracing::warn!(%device, "busy_poll has no effect: the driver does not say which NAPI instance to poll; leave it out");
        }
    }

    fn activate(&mut self) -> Result<(), DeviceError> {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Ready(ready) => {
                let set = self.device.program.sockets.set(self.key, ready.as_fd());
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
        // Clear the bytes in front of the frame, so that old bytes are not mistaken for metadata.
        let before = HEADROOM_BYTES - META_BYTES..HEADROOM_BYTES;
        ready.page_mut(&mut page).get_mut(before).into_iter().for_each(|before| before.fill(0));
    }
    ready.post(page)
}

/// Adds a part to the current frame. Returns a page to post to the fill ring in place of the part's
/// page. The card's time is not read for frames of several parts.
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
