//! CPUs that the kernel takes away and gives back, by its own switch, where this machine has one.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use steerage::topology::Watch;
use steerage::{CpuId, CpuMask, Topology};

/// Switches a CPU off; on again when dropped, and when this process ends in whatever way: a shell waits for that.
struct Off {
    switch: PathBuf,
    guard: Child,
}

/// Whether there are cpusets of the first version: they don't get back what went, so somebody else's would stay smaller.
fn are_old_cpusets() -> bool {
    let entries = fs::read_dir("/sys/fs/cgroup/cpuset").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.is_dir())
}

impl Off {
    fn new(cpu: CpuId) -> Result<Self, String> {
        let switch = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
        let writable = OpenOptions::new().write(true).open(&switch);
        writable.map_err(|error| format!("{} cannot be written: {error}", switch.display()))?;
        let mut guard = Command::new("sh");
        guard.args(["-c", "cat >/dev/null; echo 1 >\"$0\""]).arg(&switch).stdin(Stdio::piped());
        let guard = guard.spawn().map_err(|error| format!("no shell to switch it on again: {error}"))?;
        let off = Self { switch, guard };
        fs::write(&off.switch, "0").map_err(|error| format!("CPU {cpu} cannot be switched off: {error}"))?;
        Ok(off)
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        let on = fs::write(&self.switch, "1");
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        if let Err(error) = on {
            let _ = writeln!(std::io::stderr(), "{} cannot be written: {error}", self.switch.display());
        }
    }
}

#[test]
fn a_cpu_that_goes_is_missed_and_welcome_back() {
    let ours = Topology::read().allowed().clone();
    let skip = |why: &str| {
        let _ = writeln!(std::io::stderr(), "skipped: {why}");
    };
    // The last one: what else runs here has mostly the first ones.
    let Some(last) = ours.last().filter(|_| ours.len() > 1) else { return skip("there is one CPU only") };
    if are_old_cpusets() {
        return skip("there are cpusets of cgroup v1, which would not get the CPU back");
    }
    let mut watch = Watch::new(ours.clone());
    assert_eq!(watch.poll(), None);
    let off = match Off::new(last) {
        Ok(off) => off,
        // Virtual machines and containers have no switch, or not for us: the made-up machines of `topology/tests.rs` are left.
        Err(why) => return skip(&why),
    };
    let without: CpuMask = ours.iter().filter(|cpu| *cpu != last).collect();
    let (missed, then) = (watch.poll(), watch.poll());
    let seen = Topology::read();
    drop(off);
    assert_eq!((missed, then), (Some(without.clone()), None));
    assert_eq!((seen.online().contains(last), seen.allowed()), (false, &without));
    assert_eq!(watch.poll(), Some(ours.clone()));
    assert_eq!(Topology::read().allowed(), &ours);
}
