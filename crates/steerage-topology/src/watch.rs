//! Detects CPUs that go offline or online while the program runs.

use std::fmt;
use std::path::PathBuf;

use crate::cgroup;
use crate::cpu::CpuMask;
use crate::files::{self, Files};

/// A function that returns the affinity of the thread that polls.
type Affinity = Box<dyn FnMut() -> Option<CpuMask> + Send>;

/// Watches which CPUs are online and allowed by cpusets and by the affinity of the polling thread.
/// A program without privileges gets no event when this set of CPUs changes. Therefore call `poll`
/// regularly, once in 100 ms to 1 s. A call of `poll` reads four small files, which takes 30 to 60
/// us.
///
/// A `Watch` only reports changes, and does not pin threads. When a CPU goes offline, the kernel
/// moves its threads to other CPUs, and does not move them back later. When the CPU is online
/// again, the caller must pin the threads to it again.
///
/// ```
/// use steerage_topology::{Topology, Watch};
///
/// let ours = Topology::read().default_mask();
/// let mut watch = Watch::new(ours.clone());
/// if let Some(living) = watch.poll() {
///     println!("of CPUs {ours} there are {living} now");
/// }
/// ```
pub struct Watch {
    files: Files,
    affinity: Affinity,
    cpus: CpuMask,
    /// The CPUs that the affinity of this process has contained at some time since the watch began.
    /// If the affinity of this process has never contained a watched CPU, that CPU does not count
    /// as absent because of the affinity.
    had: CpuMask,
    living: CpuMask,
}

impl Watch {
    /// Begins to watch `cpus`. All of these CPUs count as present until the first call of `poll`.
    /// The calling thread must not be pinned.
    pub fn new(cpus: CpuMask) -> Self {
        Self::below("/", cpus, || CpuMask::allowed().ok())
    }

    /// Begins to watch CPUs of a machine whose /sys and /proc are below the directory `root`.
    /// `affinity` returns the affinity of the polling thread, or `None` if the thread may run on
    /// any CPU.
    pub fn below(
        root: impl Into<PathBuf>,
        cpus: CpuMask,
        affinity: impl FnMut() -> Option<CpuMask> + Send + 'static,
    ) -> Self {
        let (files, affinity) = (Files::below(root), Box::new(affinity));
        Self { files, affinity, living: cpus.clone(), had: CpuMask::new(), cpus }
    }

    /// Returns the CPUs that were present (online and allowed) at the last call of `poll`.
    pub fn living(&self) -> &CpuMask {
        &self.living
    }

    /// Checks the CPUs. Returns the CPUs that are present (online and allowed) now, or `None` if
    /// this set has not changed since the last poll. If the returned set is empty, the kernel runs
    /// the program's threads on CPUs outside of the program's mask, and no mask would be right.
    pub fn poll(&mut self) -> Option<CpuMask> {
        let online = files::online_of(&self.files);
        let cpuset = cgroup::cpuset(&self.files);
        let affinity = (self.affinity)().map(|may| {
            self.had = self.cpus.iter().filter(|cpu| self.had.contains(*cpu) || may.contains(*cpu)).collect();
            self.cpus.iter().filter(|cpu| may.contains(*cpu) || !self.had.contains(*cpu)).collect()
        });
        let bounds = [online, cpuset, affinity].into_iter().flatten();
        let living = bounds.fold(self.cpus.clone(), |left, bound| left.and(&bound));
        (living != self.living).then(|| {
            self.living = living.clone();
            living
        })
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch over CPUs {}, present are {}", self.cpus, self.living)
    }
}
