use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::unistd::gettid;

use crate::cpu::{CpuId, CpuMask, pin, pin_thread};
use crate::foreign::ForeignLoad;
use crate::watch::Watch;

/// Threads that are each pinned to one CPU, for a [`CpuWatch`]. A clone refers to the same threads.
#[derive(Clone, Debug)]
pub struct PinnedThreads {
    cpus: Arc<[CpuId]>,
    /// The threads' identifiers in the order of `cpus`, 0 for a thread that has not started.
    threads: Arc<[AtomicI32]>,
}

impl PinnedThreads {
    /// Creates a list of threads, one for each CPU of `cpus`. The threads may start later.
    pub fn new(cpus: &[CpuId]) -> Self {
        Self { cpus: cpus.into(), threads: cpus.iter().map(|_| AtomicI32::new(0)).collect() }
    }

    /// Pins the calling thread to the CPU at index `place` of `cpus`, and records the thread's
    /// identifier.
    ///
    /// # Errors
    /// Returns the kernel's error if the thread cannot be pinned.
    pub fn pin(&self, place: usize) -> io::Result<()> {
        // `Relaxed`: no other memory depends on the thread's identifier.
        self.threads[place].store(gettid().as_raw(), Ordering::Relaxed);
        pin(self.cpus[place])
    }

    fn thread(&self, place: usize) -> i32 {
        self.threads[place].load(Ordering::Relaxed)
    }
}

/// Watches the CPUs of [`PinnedThreads`]: which CPUs are present (online and allowed), and how much
/// of the CPUs' time other programs use.
///
/// ```
/// use steerage_topology::{CpuWatch, PinnedThreads, Topology};
///
/// let ours: Vec<_> = Topology::read().default_mask().iter().collect();
/// let mut watch = CpuWatch::new(PinnedThreads::new(&ours));
/// // A few times per second, from a thread that is not pinned:
/// let found = watch.poll();
/// if let Some(living) = found.living {
///     println!("CPUs {living} are left");
/// }
/// ```
#[derive(Debug)]
pub struct CpuWatch {
    pinned: PinnedThreads,
    foreign: ForeignLoad,
    watch: Watch,
}

/// The result of [`CpuWatch::poll`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CpusFound {
    /// The share of each CPU's time that other programs used since the previous poll, from 0 to 1.
    /// The list is empty at the first poll, or if the kernel does not report CPU times.
    pub others: Vec<(CpuId, f64)>,
    /// The CPUs that are present (online and allowed), or `None` if unchanged since the last poll.
    pub living: Option<CpuMask>,
    /// The CPUs that are present again, but to which the kernel refused to pin their threads.
    pub not_pinned: Vec<(CpuId, io::Error)>,
}

impl CpuWatch {
    /// Begins to watch. All CPUs count as present until the first poll.
    pub fn new(pinned: PinnedThreads) -> Self {
        let all: CpuMask = pinned.cpus.iter().copied().collect();
        Self { pinned, foreign: ForeignLoad::new(&all), watch: Watch::new(all) }
    }

    /// Checks the CPUs, which takes about 40 us and a little more for each thread. If a CPU is
    /// online and allowed again, `poll` pins the CPU's thread to the CPU again, because the kernel
    /// has moved the thread to another CPU. The calling thread must not be pinned.
    pub fn poll(&mut self) -> CpusFound {
        let before = self.watch.living().clone();
        let places = 0..self.pinned.cpus.len();
        let threads: Vec<i32> = places.clone().map(|place| self.pinned.thread(place)).collect();
        let others = self.foreign.poll(&threads).unwrap_or_default();
        let living = self.watch.poll();
        let mut not_pinned = Vec::new();
        for place in places {
            let cpu = self.pinned.cpus[place];
            let is_back = living.as_ref().is_some_and(|living| living.contains(cpu)) && !before.contains(cpu);
            // A thread that has not started yet pins itself when it starts.
            if is_back && threads[place] != 0 {
                not_pinned.extend(pin_thread(threads[place], cpu).err().map(|error| (cpu, error)));
            }
        }
        CpusFound { others, living, not_pinned }
    }
}
