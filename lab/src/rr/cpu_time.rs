//! Reads the CPU time of this process and of the whole machine.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// `USER_HZ`, the unit of /proc/stat, is 100 on all architectures.
const TICK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct CpuTime {
    process: Duration,
    /// The busy time of all CPUs of the machine. `None` if /proc/stat cannot be read.
    machine: Option<Duration>,
}

impl CpuTime {
    pub(super) fn now() -> Self {
        let process = clock_gettime(ClockId::ProcessCPUTime);
        let process = Duration::new(process.tv_sec.max(0) as u64, process.tv_nsec.max(0) as u32);
        Self { process, machine: fs::read_to_string("/proc/stat").ok().and_then(|stat| busy(&stat)) }
    }

    /// Returns the mean number of CPUs that the process and the machine used since `earlier`, which
    /// was measured `time` ago.
    pub(super) fn since(self, earlier: Self, time: Duration) -> (f64, Option<f64>) {
        let of = |used: Duration| used.as_secs_f64() / time.as_secs_f64().max(f64::MIN_POSITIVE);
        let machine = self.machine.zip(earlier.machine).map(|(now, then)| of(now.saturating_sub(then)));
        (of(self.process.saturating_sub(earlier.process)), machine)
    }
}

/// Parses the first line of /proc/stat (proc_stat(5)): user, nice, system, idle, iowait, irq,
/// softirq and steal. The value `user` includes the CPU time of virtual machines.
fn busy(stat: &str) -> Option<Duration> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_whitespace().map(|field| field.parse().ok()).collect::<Option<_>>()?;
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
    Some(TICK * u32::try_from(busy).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        assert_eq!(busy("cpu  1 2 4 1000 2000 8 16 4000 1 1\ncpu0 1 1 1\n"), Some(Duration::from_millis(310)));
        assert_eq!(busy("cpu0 1 2 3\n"), None);
    }
}
