use std::path::PathBuf;

use crate::cpu::{CpuId, CpuMask};
use crate::files::Files;

/// The columns of /proc/stat that count busy time: user, nice, system, irq, softirq and steal
/// (proc_stat(5)). `user` includes the time of virtual machines that run on this host.
const TAKEN: [usize; 6] = [0, 1, 2, 5, 6, 7];
/// The number of columns of a CPU in /proc/stat that add up to the CPU's total time.
const ALL: usize = 8;

/// The columns utime and stime in /proc/PID/task/TID/stat, counted from the bracket after the
/// thread's name. In proc_pid_stat(5), utime and stime are the fields 14 and 15.
const TASK_TIME: [usize; 2] = [11, 12];

/// Measures which share of each CPU's time other programs, the kernel itself or other guests of the
/// hypervisor used between two calls of `poll`. The kernel counts CPU time in ticks of 10 ms: call
/// `poll` only a few times per second. `poll` reads /proc/stat and a small file for each thread.
///
/// ```
/// use steerage_topology::{ForeignLoad, Topology};
///
/// let mut others = ForeignLoad::new(&Topology::read().default_mask());
/// // A few times per second. No thread of this program counts as ours here.
/// for (cpu, share) in others.poll(&[]).unwrap_or_default() {
///     println!("others took {:.0} % of CPU {cpu}", 100.0 * share);
/// }
/// ```
#[derive(Debug)]
pub struct ForeignLoad {
    files: Files,
    cpus: Vec<CpuId>,
    before: Vec<Ticks>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    taken: u64,
    all: u64,
    ours: u64,
}

impl ForeignLoad {
    /// Prepares to measure `cpus`.
    pub fn new(cpus: &CpuMask) -> Self {
        Self::below("/", cpus)
    }

    /// Prepares to measure `cpus` of a machine whose /proc is below the directory `root`.
    pub fn below(root: impl Into<PathBuf>, cpus: &CpuMask) -> Self {
        Self { files: Files::below(root), cpus: cpus.iter().collect(), before: Vec::new() }
    }

    /// Returns, for each CPU in ascending order, the share of its time (0 to 1) that other programs
    /// used since the previous call. Returns `None` at the first call, and if the kernel reports no
    /// CPU times. For each CPU, `threads` contains the identifier of this process's thread on that
    /// CPU, or 0 if this process has no thread there.
    pub fn poll(&mut self, threads: &[i32]) -> Option<Vec<(CpuId, f64)>> {
        let stat = self.files.text("proc/stat")?;
        let ticks = self.cpus.iter().zip(threads).map(|(cpu, thread)| self.ticks(&stat, *cpu, *thread));
        let now = ticks.collect::<Option<Vec<Ticks>>>()?;
        let before = std::mem::replace(&mut self.before, now);
        let share = |now: &Ticks, before: &Ticks| {
            let taken = now.taken.saturating_sub(before.taken).saturating_sub(now.ours.saturating_sub(before.ours));
            (taken as f64 / now.all.saturating_sub(before.all).max(1) as f64).min(1.0)
        };
        let shares = self.before.iter().zip(&before).map(|(now, before)| share(now, before));
        (before.len() == self.cpus.len()).then(|| self.cpus.iter().copied().zip(shares).collect())
    }

    fn ticks(&self, stat: &str, cpu: CpuId, thread: i32) -> Option<Ticks> {
        let name = format!("cpu{cpu}");
        let line = stat.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '));
        let Some(line) = line else { return Some(Ticks::default()) };
        let times: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let taken = TAKEN.iter().filter_map(|at| times.get(*at)).sum();
        Some(Ticks { taken, all: times.iter().take(ALL).sum(), ours: self.task_ticks(thread).unwrap_or(0) })
    }

    fn task_ticks(&self, thread: i32) -> Option<u64> {
        if thread == 0 {
            return None;
        }
        let stat = self.files.text(format!("proc/self/task/{thread}/stat"))?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        TASK_TIME.iter().map(|at| fields.get(*at)?.parse::<u64>().ok()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machines::Made;

    fn task(user: u64, system: u64) -> String {
        format!("7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 {user} {system} 0 0")
    }

    #[test]
    fn what_is_not_ours_is_theirs() {
        let made =
            Made::new(&[("proc/stat", "cpu 0 0 0 0\ncpu0 10 0 10 80 0 0 0 0 0 0\ncpu1 0 0 0 100\ncpu10 9 9 9 9\n")]);
        made.write("proc/self/task/7/stat", &task(5, 5));
        let cpus: CpuMask = [CpuId(0), CpuId(1), CpuId(2)].into_iter().collect();
        let mut others = ForeignLoad::below(made.root(), &cpus);
        assert_eq!(others.poll(&[7, 0, 0]), None);
        made.write("proc/stat", "cpu 0 0 0 0\ncpu0 30 10 30 120 0 0 0 10 0 0\ncpu1 0 0 0 170 20 10 0 0 0 0\n");
        made.write("proc/self/task/7/stat", &task(20, 15));
        let shares = others.poll(&[7, 0, 0]).unwrap();
        assert_eq!(shares, [(CpuId(0), 0.35), (CpuId(1), 0.1), (CpuId(2), 0.0)]);
    }

    #[test]
    fn what_cannot_be_read_is_not_guessed() {
        let made = Made::new(&[("proc/stat", "cpu0 1 2 x\n")]);
        let cpus: CpuMask = [CpuId(0)].into_iter().collect();
        let mut others = ForeignLoad::below(made.root(), &cpus);
        assert_eq!((others.poll(&[1]), others.poll(&[1])), (None, None));
    }

    #[test]
    fn this_machine_has_such_files() {
        let cpus = crate::machine::Topology::read().allowed().clone();
        let mut others = ForeignLoad::new(&cpus);
        let nobody = vec![0; cpus.len()];
        assert_eq!(others.poll(&nobody), None);
        let shares = others.poll(&nobody).expect("/proc/stat");
        assert!(shares.len() == cpus.len() && shares.iter().all(|(_, share)| (0.0..=1.0).contains(share)));
    }
}
