use std::fmt;
use std::path::PathBuf;

use crate::cgroup;
use crate::cpu::CpuMask;
use crate::files::{self, Files};

type Affinity = Box<dyn FnMut() -> Option<CpuMask> + Send>;

/// Watches which CPUs are online and allowed by cpusets and by the affinity of the polling thread.
/// A program without privileges gets no event if CPUs go offline or come back: call `poll` once in
/// 100 ms to 1 s. A call of `poll` reads four small files, which takes 30 to 60 us.
///
/// A `Watch` does not pin threads. When a CPU goes offline, the kernel moves the CPU's threads to
/// other CPUs. When a CPU is back online, the caller must pin the CPU's threads again.
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
    /// The CPUs that the affinity has ever contained. Only CPUs that were in the affinity can leave
    /// it.
    had: CpuMask,
    living: CpuMask,
}

impl Watch {
    /// Begins to watch `cpus`. All watched CPUs count as present until the first `poll`. The thread
    /// that calls `poll` must not be pinned.
    pub fn new(cpus: CpuMask) -> Self {
        Self::below("/", cpus, || CpuMask::allowed().ok())
    }

    /// Begins to watch a machine whose /sys and /proc are below `root`. `affinity` returns the
    /// affinity of the polling thread, or `None` if the thread may run on any CPU.
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

    /// Returns the CPUs that are present (online and allowed), or `None` if unchanged since the
    /// last poll. If the set of present CPUs is empty, the kernel runs the program's threads on
    /// CPUs outside of the program's mask.
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
