//! A receive queue: its socket, its pages, and its counts of lost frames.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use steerage::flow::wire::ethernet;
use steerage::{
    Affinity, DeviceError, Timestamp,
    device::{Capabilities, Completions, DeviceCounts, Filled, Fit, Gather, Opened, Page, Polled, Region, RxQueue},
    flow::FlowHash,
    limits::SEGMENTS_MAX,
};
use steerage_netlink::{Change, Changes, Entry, Link, Rtnetlink};

use super::bind::chunk_bytes;
use super::bond;
use super::device::Device;
use super::metadata::{META_BYTES, Metadata};
use super::sys::{self, ByCpu, FilledChunk, OpenSocket};
use super::{COALESCE_MIN, HEADROOM_BYTES};

/// The minimum interval between two checks for lost frames and the interface's state. Each check
/// takes a few system calls.
const LOOK: Duration = Duration::from_millis(5);

/// The interval at which the queue checks for the program and reads its counters. The kernel writes
/// one counter per CPU for each read.
const COUNTERS_LOOK: Duration = Duration::from_secs(1);

/// How soon the queue checks for free pages again if almost no page is posted. Without posted
/// pages, no frame arrives that could wake the CPU.
const PAGES_LOOK: Duration = Duration::from_micros(100);

/// The longest time for which a queue that polls busily leaves the driver alone while the ring has
/// frames. At 10 million packets per second, a card's ring of 2,048 frames holds 200 us.
const STALL_MAX: Duration = Duration::from_micros(150);

/// Up to this many posted pages count as almost no posted page.
const POSTED_FEW: usize = 16;

/// The part of a ring that may fill up while frames are coalesced: a quarter. If more frames arrive,
/// the next wait is half as long, so at a steady rate, less than half of the ring is full.
const COALESCE_PART: u64 = 4;

/// By how much the kernel prolongs a sleep (`PR_SET_TIMERSLACK` of prctl(2), and its default).
const TIMER_SLACK: Duration = Duration::from_micros(50);

/// The stage of a queue's life.
#[derive(Debug)]
enum Stage {
    /// The queue has no pages yet.
    New,
    /// The queue has a socket. Frames go to it from the first poll on.
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
const COUNTS: [&str; 3] = ["rx_ring_full", "rx_fill_ring_empty_descs", "rx_invalid_descs"];

/// One socket and its rings.
#[derive(Debug)]
pub(super) struct Queue {
    device: Arc<Device>,
    number: u32,
    /// The packets that the device's hashes keep together, if the device hashes.
    hash: Option<Affinity>,
    stage: Stage,
    events: Epoll,
    /// Reports changes of the interface, and of all interfaces if this queue watches the bond.
    changes: Changes,
    /// The interfaces that were added to the bond during the run.
    new_ports: Vec<u32>,
    /// A timer that fires every second, because no event reports that the program was detached.
    seconds: TimerFd,
    /// Whether the program was missing at the last check.
    missing: bool,
    /// Whether frames go to the socket. They do not while the queue's interface is a port that its
    /// bond does not use.
    receives: bool,
    up: bool,
    mtu: usize,
    /// The longest frame that the queue can receive, in bytes.
    longest: usize,
    /// Whether this queue logs changes on behalf of all queues of the interface.
    tells: bool,
    begun: Begun,
    looked: Timestamp,
    /// The position of a frame in a page.
    fit: Fit,
    /// The number of received frames that are in the ledger, as handed over or dropped, and the
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
}

/// When a queue that polls busily runs the driver.
#[derive(Clone, Copy, Debug)]
struct BusyPolling {
    /// The time between two runs of the driver while no frames arrive. Each run is a system call.
    interval: Duration,
    last: Timestamp,
}

impl BusyPolling {
    /// Whether the driver is due to run after a poll that `found` frames, and that left `more` frames
    /// in the ring. A poll that emptied the ring runs the driver at once, because more frames may be
    /// in the card's ring. After an empty poll, the interval decides. With more frames, the CPU
    /// handles them first, but lets the driver wait for at most [`STALL_MAX`], because the card's
    /// ring fills up meanwhile.
    fn is_due(&mut self, now: Timestamp, found: bool, more: bool) -> bool {
        let since = now.since(self.last);
        let is_due = match (found, more) {
            (_, true) => since >= STALL_MAX,
            (true, false) => true,
            (false, false) => since >= self.interval,
        };
        if is_due {
            self.last = now;
        }
        is_due
    }
}

/// For how long frames may wait, if the user allows it.
#[derive(Clone, Copy, Debug)]
struct Coalescing {
    longest: Duration,
    wait: Duration,
    /// Whether the last poll began a wait.
    waits: bool,
    /// The last poll with frames, and the number of frames that were delivered until then.
    last: Timestamp,
    delivered: u64,
}

impl Coalescing {
    fn new(longest: Duration) -> Self {
        Self { longest, wait: longest, waits: false, last: Timestamp::ZERO, delivered: 0 }
    }

    /// Returns how long frames may wait after a poll that emptied a ring of `ring` frames, with
    /// `delivered` frames in all. `None` if the CPU should wait for the next frame, because the poll
    /// found no frame, or because frames arrive at longer intervals than a wait lasts.
    fn after_poll(&mut self, now: Timestamp, delivered: u64, ring: u32) -> Option<Duration> {
        let arrived = delivered - std::mem::replace(&mut self.delivered, delivered);
        let waited = std::mem::replace(&mut self.waits, false);
        if arrived == 0 {
            return None;
        }
        let gap = now.since(std::mem::replace(&mut self.last, now));
        if waited {
            let is_full = arrived > u64::from(ring) / COALESCE_PART;
            let next = if is_full { self.wait / 2 } else { self.wait * 2 };
            self.wait = next.clamp(COALESCE_MIN, self.longest);
        }
        self.waits = waited || gap <= self.wait + TIMER_SLACK;
        self.waits.then_some(self.wait)
    }
}

impl Queue {
    pub(super) fn new(device: Arc<Device>, number: u32, hash: Option<Affinity>, tells: bool) -> io::Result<Self> {
        let watches_bond = device.bond.is_some() && device.first_key == 0 && tells;
        let changes = if watches_bond { Changes::of_links() } else { Changes::of_link(device.index) }?;
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        events.add(&changes, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        let seconds = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        seconds.set(Expiration::Interval(TimeSpec::from_duration(COUNTERS_LOOK)), TimerSetTimeFlags::empty())?;
        events.add(&seconds, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Self {
            seconds,
            missing: false,
            receives: Self::receives_now(&device)?,
            mtu: device.frame_bytes - ethernet::TAGGED_BYTES,
            fit: Fit::new(device.frame_bytes_max()),
            coalescing: device.coalesce.map(Coalescing::new),
            busy_polling: device.busy_poll.map(|interval| BusyPolling { interval, last: Timestamp::ZERO }),
            device,
            number,
            hash,
            stage: Stage::New,
            events,
            changes,
            new_ports: Vec::new(),
            up: true,
            longest: 0,
            tells,
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

    /// Whether frames are wanted in the current state of the interface. The changes that come later
    /// are reported.
    fn receives_now(device: &Device) -> io::Result<bool> {
        let Some(bond) = device.bond else { return Ok(true) };
        Ok(bond::uses(bond, &Rtnetlink::open()?.link_at(device.index)?))
    }

    /// Fills up the fill ring. A received frame is replaced by another page at once. So the ring
    /// has gaps only at the start, and as long as too few pages were free at the start.
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

    /// Takes the frames that have arrived, up to the budget. Returns whether more frames may have
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
        self.count_lost(out)?;
        // Read the timer when it has fired. An unread timer would keep the CPU awake.
        if self.seconds.wait().is_ok() {
            self.count_passed(out)?;
            self.look_for_program()?;
        }
        let (mut last, mut others) = (None, Vec::new());
        let index = self.device.index;
        let read = self.changes.read(&mut |change| match change.entry {
            Entry::Link(link) if link.index != index => others.push(link),
            _ => last = Some(change),
        });
        others.iter().for_each(|link| self.warn_of_new_port(link));
        if !read {
            // The next message about a change contains the whole state.
            tracing::debug!(device = %self.device.name, "changes were missed");
        }
        match last {
            Some(Change { entry: Entry::Link(link), is_there: true }) => self.changed(&link),
            Some(Change { is_there: false, .. }) => {
                if self.device.bond.is_some() {
                    tracing::warn!(device = %self.device.name, "the port of the bond was deleted");
                    self.end(None);
                    return Ok(());
                }
                let cause = io::Error::from_raw_os_error(libc::ENODEV);
                let error = self.device.error("go on receiving", cause).advise("the interface was deleted");
                self.end(Some(error));
            }
            _ => {}
        }
        Ok(())
    }

    /// Warns that the packets of a port that is new to the bond go to the kernel. A socket for such a
    /// port takes privileges and system calls that a packet thread no longer has.
    fn warn_of_new_port(&mut self, link: &Link) {
        let known = &self.device.program.ports.interfaces;
        let is_new = self.device.bond.is_some_and(|bond| link.controller == Some(bond));
        if is_new && !known.contains(&link.index) && !self.new_ports.contains(&link.index) {
            self.new_ports.push(link.index);
            let port = link.name.as_deref().unwrap_or_default();
            tracing::warn!(port, "the bond has a new port, whose packets go to the kernel until a new start");
        }
    }

    /// Checks whether the program is still attached. If the program is not attached, other software
    /// removed it, or the interface is being deleted. Netlink reports the deletion of the interface
    /// before the next check.
    fn look_for_program(&mut self) -> Result<(), DeviceError> {
        let is_there = self.device.program.attachment.is_attached();
        let is_there = is_there.map_err(|e| self.device.error("look for the XDP program", e))?;
        if !is_there && self.missing {
            let cause = io::Error::other("another program took the XDP program away");
            let error = self.device.error("go on receiving", cause).advise("start it again");
            self.end(Some(error));
        }
        self.missing = !is_there;
        Ok(())
    }

    fn changed(&mut self, link: &Link) {
        self.device.program.attachment.changed(link);
        if let Some(bond) = self.device.bond {
            self.follow(bond::uses(bond, link));
        }
        let mtu = link.mtu.unwrap_or(self.mtu);
        let before = (std::mem::replace(&mut self.up, link.up), std::mem::replace(&mut self.mtu, mtu));
        if !self.tells {
            return;
        }
        let (device, longest) = (&self.device.name, self.longest);
        match (before.0, self.up) {
            (false, true) => tracing::info!(%device, "the interface is up again"),
            (true, false) => tracing::warn!(%device, "the interface is down; going on when it is up"),
            _ => {}
        }
        if mtu != before.1 && mtu + ethernet::TAGGED_BYTES > longest {
            tracing::warn!(%device, mtu, longest, "the MTU was raised: frames longer than there is room for are lost until a new start");
        } else if mtu != before.1 {
            tracing::info!(%device, mtu, "the MTU was changed");
        }
    }

    /// Lets frames of a bond's port go to the socket, or to the kernel.
    fn follow(&mut self, receives: bool) {
        if std::mem::replace(&mut self.receives, receives) == receives {
            return;
        }
        if self.tells {
            tracing::info!(device = %self.device.name, receives, "the bond changed the use of its port");
        }
        if receives {
            return;
        }
        self.stage = match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Open(ready) => {
                // The entry may be gone already, together with the interface.
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
                // The entry may be gone already, together with the interface.
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
        // A frame whose first part has arrived will not be completed.
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
    /// Starts the redirection of frames to the socket.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait never leaves more than half of the ring full at a steady rate, and becomes longer when
    /// fewer frames arrive.
    #[test]
    fn a_ring_that_fills_up_shortens_the_wait() {
        const LONGEST: Duration = Duration::from_millis(8);
        let mut coalescing = Coalescing::new(LONGEST);
        let (ring, mut delivered, mut now) = (1024, 0, Timestamp::ZERO);
        // The numbers are frames per millisecond.
        for (rate, least, most) in [(20, 8.0, 8.0), (100, 2.0, 4.0), (1_000_000, 0.001, 0.001), (1, 8.0, 8.0)] {
            let mut wait = coalescing.wait;
            for _ in 0..20 {
                now = now + wait;
                delivered += ((f64::from(rate) * wait.as_secs_f64() * 1e3) as u64).max(1);
                wait = coalescing.after_poll(now, delivered, ring).unwrap();
            }
            let millis = wait.as_secs_f64() * 1e3;
            assert!(least <= millis && millis <= most, "{rate} frames per millisecond: {wait:?}");
        }
    }

    #[test]
    fn the_driver_runs_at_its_interval_and_after_a_stall() {
        let mut busy = BusyPolling { interval: Duration::from_micros(20), last: Timestamp::ZERO };
        let mut at = |micros, found, more| busy.is_due(Timestamp::ZERO + Duration::from_micros(micros), found, more);
        // After empty polls, the driver runs every 20 us.
        assert_eq!([5, 20, 25, 39, 40].map(|micros| at(micros, false, false)), [false, true, false, false, true]);
        // While the ring has frames, it runs after 150 us.
        assert_eq!([60, 189, 190, 300].map(|micros| at(micros, true, true)), [false, false, true, false]);
        // It runs at once after a poll that emptied the ring.
        assert_eq!([at(301, true, false), at(302, true, false), at(303, false, false)], [true, true, false]);
    }

    /// Frames at long intervals do not wait, because a wait would only add a second sleep.
    #[test]
    fn only_frames_at_short_intervals_wait() {
        let wait = Duration::from_micros(50);
        let mut coalescing = Coalescing::new(wait);
        let mut at = |micros, delivered| {
            let now = Timestamp::ZERO + Duration::from_micros(micros);
            coalescing.after_poll(now, delivered, 1024)
        };
        assert_eq!([at(1000, 1), at(2000, 2), at(2001, 2), at(3000, 3)], [None; 4]);
        // After a second frame at a short interval, frames wait until a wait ends without a frame.
        assert_eq!([at(3010, 4), at(3060, 5), at(3300, 6)], [Some(wait); 3]);
        assert_eq!([at(3350, 6), at(3450, 7), at(3460, 8)], [None, None, Some(wait)]);
    }
}
