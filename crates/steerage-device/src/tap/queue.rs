use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use steerage::{
    DeviceError, Timestamp,
    device::{Capabilities, Completions, Filled, Opened, Polled, Region, RxQueue},
};

use super::drops::Drops;
use super::super_frames::{Described, lent};
use super::{Shared, TunFd};
use crate::offloads::lent::{Lent, NO_PAGE_WAIT};
use crate::offloads::vnet::{self, HEADER_BYTES_MAX};

/// The minimum interval between reads of the kernel's drop count, which take two system calls.
const LOOK: Duration = Duration::from_millis(10);

/// The maximum number of packets that are read after a stop: twice the default length of the
/// kernel's queue, which holds the packets that arrived before the stop.
const STOP_PACKETS: usize = 1000;

#[derive(Debug)]
pub(super) struct Queue {
    shared: Arc<Shared>,
    nth: usize,
    header: [u8; HEADER_BYTES_MAX],
    lent: Option<Lent>,
    /// Only the first queue has a counter, because the kernel does not count drops per queue.
    drops: Option<Drops>,
    looked: Timestamp,
    /// The maximum number of packets to read after a stop. `None` before a stop.
    left: Option<usize>,
}

impl Queue {
    pub(super) fn new(shared: Arc<Shared>, nth: usize) -> Self {
        let taken = || shared.drops.lock().unwrap_or_else(PoisonError::into_inner).take();
        let drops = if nth == 0 { taken() } else { None };
        let lent = shared.whole.as_ref().map(|_| lent(shared.layer.link()));
        Self { shared, nth, header: [0; HEADER_BYTES_MAX], lent, drops, looked: Timestamp::ZERO, left: None }
    }

    fn fd(&self) -> &TunFd {
        &self.shared.queues[self.nth]
    }

    /// Returns the packet's length. `None` if the packet is too long or needs an unknown offload.
    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        let header = &mut self.header[..self.shared.header_bytes];
        let read = self.shared.queues[self.nth].read(header, room)?;
        // If a packet fills `room` completely, it may have been longer than `room`.
        let Some(len) = read.checked_sub(header.len()).filter(|len| (1..room.len()).contains(len)) else {
            return Ok(None);
        };
        let is_finished = header.is_empty() || vnet::finish(header, &mut room[..len]);
        Ok(is_finished.then_some(len))
    }

    fn take(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        if let Some(lent) = &mut self.lent {
            let mut source = Described(&self.shared.queues[self.nth], self.shared.layer.link());
            let taken = lent.take(&mut source, out, budget);
            lent.show();
            return taken.map_err(|error| self.shared.error("receive from the interface", error));
        }
        for _ in 0..budget {
            let mut came = None;
            out.fill(1, |room| came.insert(self.read(room)).as_ref().ok()?.map(Filled::whole));
            match came {
                None => return Ok(Polled::NotBefore(out.now() + NO_PAGE_WAIT)),
                Some(Ok(Some(_))) => {}
                Some(Ok(None)) => out.lost(1),
                Some(Err(error)) => {
                    return match error.kind() {
                        io::ErrorKind::WouldBlock => Ok(Polled::Drained),
                        io::ErrorKind::Interrupted => Ok(Polled::More),
                        _ => Err(self.shared.error("receive from the interface", error)),
                    };
                }
            }
        }
        Ok(Polled::More)
    }

    fn count_drops(&mut self, out: &mut Completions<'_>) {
        if let Some(drops) = &mut self.drops {
            out.lost(drops.look());
        }
        self.looked = out.now();
    }
}

impl RxQueue for Queue {
    fn capabilities(&self) -> Capabilities {
        let longest = self.shared.frame_bytes_max() + 1;
        if self.lent.is_some() { Capabilities::blocks(longest) } else { Capabilities::pages(longest) }
    }

    fn open(&mut self, _region: &Arc<Region>) -> Result<Opened, DeviceError> {
        match &mut self.lent {
            Some(lent) => lent.open().map_err(|error| self.shared.error("map memory for super-frames", error)),
            None => Ok(Opened::default()),
        }
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(self.shared.layer.link());
        if out.now().since(self.looked) >= LOOK {
            self.count_drops(out);
        }
        let budget = budget.min(self.left.unwrap_or(budget));
        let polled = self.take(out, budget)?;
        let Some(left) = &mut self.left else { return Ok(polled) };
        *left = left.saturating_sub(out.len());
        if *left > 0 && polled != Polled::Drained {
            return Ok(polled);
        }
        self.count_drops(out);
        Ok(Polled::Ended)
    }

    fn stop(&mut self) -> bool {
        self.left = Some(STOP_PACKETS);
        true
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd().as_fd())
    }
}
