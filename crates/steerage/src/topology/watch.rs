//! Notices CPUs that go and come while we run.

use std::fmt;
use std::path::PathBuf;

use super::cgroup;
use super::files::Files;
use crate::cpu::CpuMask;

/// Asks for the affinity of the thread that polls.
type Affinity = Box<dyn FnMut() -> Option<CpuMask> + Send>;

/// Watches over CPUs: which of them are switched on, and left to us by cpusets and by the affinity of the thread that
/// polls. There is no event to wait for that needs no privilege, so it is polled: four small files, 30 to 60 us, each 100 ms to
/// 1 s. It tells of what is; what the kernel did to threads on a CPU that went is theirs to mend: it has run
/// them elsewhere, and they stay there when the CPU is back, until they are pinned again.
///
/// ```
/// use steerage::{Topology, topology::Watch};
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
    /// Those of them that the affinity has had: for the others it is no bound, since who asked for them went beyond it.
    had: CpuMask,
    living: CpuMask,
}

impl Watch {
    /// Over `cpus`, which are taken to be there until the first poll. It is to be polled by a thread that is not pinned.
    pub fn new(cpus: CpuMask) -> Self {
        Self::below("/", cpus, || CpuMask::allowed().ok())
    }

    /// Over those of a machine whose /sys and /proc lie below `root`, with `affinity` to say what the thread that polls may run
    /// on; `None`: anywhere.
    pub fn below(
        root: impl Into<PathBuf>,
        cpus: CpuMask,
        affinity: impl FnMut() -> Option<CpuMask> + Send + 'static,
    ) -> Self {
        let (files, affinity) = (Files::below(root), Box::new(affinity));
        Self { files, affinity, living: cpus.clone(), had: CpuMask::new(), cpus }
    }

    /// Those that were there when it was last polled.
    pub fn living(&self) -> &CpuMask {
        &self.living
    }

    /// Looks, and returns those that are there now if they are others than at the last poll. There may be none: then the
    /// kernel runs our threads on CPUs that are not ours, and no mask of ours is right.
    pub fn poll(&mut self) -> Option<CpuMask> {
        let online = super::online_of(&self.files);
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
        write!(f, "Watch over CPUs {}, of which there are {}", self.cpus, self.living)
    }
}
