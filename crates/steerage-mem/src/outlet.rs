//! [`Outlet`] queues items that other threads hand to the CPUs of the receive path, such as packets
//! to send. One lock protects an outlet. CPUs try to take the lock between two rounds. The items of
//! a bucket leave in the order in which they were added: until a CPU has sent all earlier items of
//! a bucket, it also gets the bucket's next items, whatever CPU the caller names.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::signal::Signal;

/// A queue of items for each CPU, with one limit for all queues.
#[derive(Debug)]
pub struct Outlet<T> {
    places: usize,
    waiting: Mutex<Waiting<T>>,
    /// For each CPU, the number of items that the CPU has sent.
    sent: OnceLock<Vec<AtomicU64>>,
}

#[derive(Debug)]
struct Waiting<T> {
    of_cpus: Vec<OfCpu<T>>,
    /// For each bucket, the CPU that got the bucket's latest item, and the number of that item on
    /// the CPU.
    buckets: Vec<(u16, u64)>,
    count: usize,
    has_room: Signal,
}

#[derive(Debug)]
struct OfCpu<T> {
    items: VecDeque<T>,
    added: u64,
    is_closed: bool,
}

impl<T> Outlet<T> {
    /// Creates an outlet with room for `places` items, to be [opened](Self::open).
    ///
    /// # Errors
    /// As [`Signal::new`].
    pub fn new(places: usize) -> io::Result<Self> {
        let has_room = Signal::new()?;
        has_room.set(places > 0);
        let waiting = Waiting { of_cpus: Vec::new(), buckets: Vec::new(), count: 0, has_room };
        Ok(Self { places, waiting: Mutex::new(waiting), sent: OnceLock::new() })
    }

    /// Opens the outlet for this many CPUs and buckets. Only the first call has an effect.
    pub fn open(&self, cpus: usize, buckets: usize) {
        let mut waiting = self.lock();
        let new = || OfCpu { items: VecDeque::new(), added: 0, is_closed: false };
        waiting.of_cpus.resize_with(cpus, new);
        waiting.buckets.resize(buckets, (0, 0));
        let _ = self.sent.set((0..cpus).map(|_| AtomicU64::new(0)).collect());
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many more items the outlet has room for.
    pub fn room(&self) -> usize {
        self.places.saturating_sub(self.lock().count)
    }

    /// A file descriptor that is readable while the outlet has room.
    ///
    /// # Errors
    /// As [`Signal::fd`].
    pub fn ready_fd(&self) -> io::Result<OwnedFd> {
        self.lock().has_room.fd()
    }

    /// Adds an item for `cpu`, or for the CPU of the bucket's latest item if `cpu` is `None` or
    /// earlier items of the bucket were not sent yet. Returns the item's CPU, or `Err` with the
    /// item if there is no room.
    pub fn push(&self, bucket: u16, cpu: Option<u16>, item: T) -> Result<u16, T> {
        let mut waiting = self.lock();
        let Waiting { of_cpus, buckets, count, has_room } = &mut *waiting;
        let Some(last) = buckets.get_mut(usize::from(bucket)) else { return Err(item) };
        // A1, acquire: pairs with A2. The bucket's earlier items were sent before this one is
        // added.
        let left = self.sent.get().and_then(|sent| sent.get(usize::from(last.0)));
        let is_over = left.is_some_and(|left| left.load(Ordering::Acquire) >= last.1);
        let cpu = cpu.filter(|cpu| is_over && usize::from(*cpu) < of_cpus.len()).unwrap_or(last.0);
        let Some(of_cpu) = of_cpus.get_mut(usize::from(cpu)) else { return Err(item) };
        if *count >= self.places || of_cpu.is_closed {
            return Err(item);
        }
        of_cpu.items.push_back(item);
        of_cpu.added += 1;
        *last = (cpu, of_cpu.added);
        *count += 1;
        has_room.set(*count < self.places);
        Ok(cpu)
    }

    /// Passes the items for `cpu` to `stage`, which returns an item as an error if it has no room
    /// for the item. Adds the number of accepted items to `taken`. Returns true if items for `cpu`
    /// may still be waiting. If `closes` is true, `take` waits for the outlet's lock, and `push`
    /// accepts no more items for `cpu` afterwards.
    pub fn take(&self, cpu: u16, closes: bool, taken: &mut u64, mut stage: impl FnMut(T) -> Result<(), T>) -> bool {
        let waiting = if closes { Some(self.lock()) } else { self.waiting.try_lock().ok() };
        let Some(mut waiting) = waiting else { return true };
        let Waiting { of_cpus, count, has_room, .. } = &mut *waiting;
        let Some(of_cpu) = of_cpus.get_mut(usize::from(cpu)) else { return false };
        of_cpu.is_closed |= closes;
        while let Some(item) = of_cpu.items.pop_front() {
            if let Err(item) = stage(item) {
                of_cpu.items.push_front(item);
                break;
            }
            *taken += 1;
            *count -= 1;
        }
        has_room.set(*count < self.places);
        !of_cpu.items.is_empty()
    }

    /// Records that the first `taken` items of `cpu` have been sent.
    pub fn sent(&self, cpu: u16, taken: u64) {
        if let Some(sent) = self.sent.get().and_then(|sent| sent.get(usize::from(cpu))) {
            // A2, release: pairs with A1.
            sent.store(taken, Ordering::Release);
        }
    }
}
