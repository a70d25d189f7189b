//! Tests CPUs that the kernel takes offline and online again, with a cpuset and, if this machine
//! has it, with the file `online`.
//!
//! These tests have a separate test binary, because they take CPUs from the whole process.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use steerage::flow::wire::FrameBuilder;
use steerage::topology::Watch;
use steerage::{
    Builder, CpuId, CpuMask, DeviceError, Handle, Hash, Input, Running,
    device::{Capabilities, Completion, Completions, Polled, RxQueue},
    limits::HEADROOM,
    topology::Topology,
};
use steerage_fixtures::HANG;
use steerage_fixtures::handlers::Nothing;

/// Takes a CPU offline until this value is dropped. If the process is killed, a shell takes the CPU
/// online.
struct Off {
    switch: PathBuf,
    guard: Child,
}

/// Starts a shell that runs `command` with `path` when its standard input is closed, at the latest
/// when this process ends. In its own session (`setsid`), the shell survives if the process group
/// of a hanging test is killed.
fn after_the_end(command: &str, path: &Path) -> io::Result<Child> {
    let script = format!("cat >/dev/null; {command}");
    Command::new("setsid").args(["sh", "-c", &script]).arg(path).stdin(Stdio::piped()).spawn()
}

/// With cgroup v1, a CPU that went offline does not return to the cpusets of other programs.
fn are_old_cpusets() -> bool {
    let entries = fs::read_dir("/sys/fs/cgroup/cpuset").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.is_dir())
}

impl Off {
    fn new(cpu: CpuId) -> Result<Self, String> {
        let switch = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
        let writable = OpenOptions::new().write(true).open(&switch);
        writable.map_err(|error| format!("{} cannot be written: {error}", switch.display()))?;
        let guard = after_the_end("echo 1 >\"$0\"", &switch)
            .map_err(|error| format!("no shell to switch it on again: {error}"))?;
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
            let _ = writeln!(io::stderr(), "{} cannot be written: {error}", self.switch.display());
        }
    }
}

struct Endless(u32);

const FRAME_BYTES: usize = 60;

impl RxQueue for Endless {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        for _ in 0..budget {
            let Some(mut page) = out.take_page() else { break };
            self.0 = self.0.wrapping_add(1);
            let frame = &mut out.page_mut(&mut page)[HEADROOM..HEADROOM + FRAME_BYTES];
            let udp = FrameBuilder::udp(((self.0 % 1000).to_be_bytes(), 7), ([0; 4], 9));
            frame.copy_from_slice(&udp.frame_of(FRAME_BYTES));
            out.push(Completion::new(page, HEADROOM, FRAME_BYTES), FRAME_BYTES);
        }
        Ok(Polled::More)
    }
}

fn started(cpus: &CpuMask) -> Running<()> {
    let input = Input::new("endless", "test", vec![Box::new(Endless(0))]);
    let builder = Builder::new().cpus(cpus.clone()).policy(Hash).check_order(true).input(input);
    builder.build(|_| Nothing).unwrap().start().unwrap()
}

fn wait_until_on(handle: &Handle, cpus: &CpuMask) {
    let start = Instant::now();
    loop {
        let now = handle.snapshot();
        let active: CpuMask = now.groups[0].active.iter().copied().collect();
        if active == *cpus {
            let processed = |at: usize| handle.snapshot().cpus[at].processed;
            let ours = now.cpus.iter().position(|cpu| cpus.last() == Some(cpu.cpu)).unwrap();
            let before = processed(ours);
            while processed(ours) == before && start.elapsed() < HANG {
                std::thread::yield_now();
            }
            return;
        }
        assert!(start.elapsed() < HANG, "CPUs {active} have the buckets, not {cpus}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Only one test runs at a time, because each test takes CPUs from the whole process.
static CPUS: Mutex<()> = Mutex::new(());

/// A cpuset that contains this process. If the process is killed, a shell removes the cpuset.
struct Cpuset {
    folder: PathBuf,
    guard: Child,
}

impl Cpuset {
    fn enter() -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| format!("/proc/self/cgroup: {error}"))?;
        let own =
            |text: &str| groups.lines().find_map(|line| Some(line.split_once(text)?.1.trim_matches('/').to_owned()));
        let (root, own) = match own(":cpuset:") {
            Some(own) => ("/sys/fs/cgroup/cpuset", own),
            None => ("/sys/fs/cgroup", own("0::").ok_or("there are no control groups")?),
        };
        let parent = PathBuf::from(root).join(own);
        if !parent.join("cpuset.cpus").exists() && !parent.join("cpuset.cpus.effective").exists() {
            return Err(format!("{} has no cpuset", parent.display()));
        }
        let folder = parent.join(format!("steerage-test-{}", process::id()));
        let failed = |what: &str, error| format!("{what} {}: {error}", folder.display());
        fs::create_dir(&folder).map_err(|error| failed("cannot make", error))?;
        let guard = after_the_end("rmdir \"$0\"", &folder).map_err(|error| failed("no shell to remove", error))?;
        let cpuset = Self { folder: folder.clone(), guard };
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let of_parent = fs::read(parent.join(file)).unwrap_or_default();
            fs::write(folder.join(file), of_parent).map_err(|error| failed("cannot set up", error))?;
        }
        let pid = process::id().to_string();
        fs::write(folder.join("cgroup.procs"), pid).map_err(|error| failed("cannot enter", error))?;
        Ok(cpuset)
    }

    fn set(&self, cpus: &CpuMask) {
        fs::write(self.folder.join("cpuset.cpus"), cpus.to_list()).expect("a cpuset of our own");
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        if let Some(parent) = self.folder.parent() {
            let _ = fs::write(parent.join("cgroup.procs"), process::id().to_string());
        }
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

#[test]
fn a_cpuset_that_changes_is_followed() {
    let _alone = CPUS.lock();
    let ours = Topology::read().allowed().clone();
    let skip = |why: &str| {
        let _ = writeln!(io::stderr(), "skipped: {why}");
    };
    let Some(last) = ours.last().filter(|_| ours.len() > 1) else { return skip("there is one CPU only") };
    let cpuset = match Cpuset::enter() {
        Ok(cpuset) => cpuset,
        Err(why) => return skip(&why),
    };
    let without: CpuMask = ours.iter().filter(|cpu| *cpu != last).collect();
    let mut watch = Watch::new(ours.clone());
    let running = started(&ours);
    let handle = running.handle();
    wait_until_on(&handle, &ours);
    for _ in 0..3 {
        cpuset.set(&without);
        assert_eq!((watch.poll(), watch.poll()), (Some(without.clone()), None));
        wait_until_on(&handle, &without);
        cpuset.set(&ours);
        assert_eq!(watch.poll(), Some(ours.clone()));
        wait_until_on(&handle, &ours);
    }
    handle.stop();
    let ledger = running.join().snapshot;
    assert_eq!((ledger.received(), ledger.reordered()), (ledger.delivered(), Some(0)));
}

#[test]
fn a_cpu_that_goes_is_missed_and_welcome_back() {
    let _alone = CPUS.lock();
    let ours = Topology::read().allowed().clone();
    let skip = |why: &str| {
        let _ = writeln!(io::stderr(), "skipped: {why}");
    };
    // Takes the last CPU offline, because other programs mostly use the first CPUs.
    let Some(last) = ours.last().filter(|_| ours.len() > 1) else { return skip("there is one CPU only") };
    if are_old_cpusets() {
        return skip("there are cpusets of cgroup v1, which would not get the CPU back");
    }
    let mut watch = Watch::new(ours.clone());
    assert_eq!(watch.poll(), None);
    let running = started(&ours);
    let handle = running.handle();
    wait_until_on(&handle, &ours);
    let off = match Off::new(last) {
        Ok(off) => off,
        // Virtual machines and containers often refuse to take CPUs offline.
        Err(why) => return skip(&why),
    };
    let without: CpuMask = ours.iter().filter(|cpu| *cpu != last).collect();
    let (missed, then) = (watch.poll(), watch.poll());
    let seen = Topology::read();
    wait_until_on(&handle, &without);
    drop(off);
    assert_eq!((missed, then), (Some(without.clone()), None));
    assert_eq!((seen.online().contains(last), seen.allowed()), (false, &without));
    assert_eq!(watch.poll(), Some(ours.clone()));
    assert_eq!(Topology::read().allowed(), &ours);
    wait_until_on(&handle, &ours);
    handle.stop();
    let ledger = running.join().snapshot;
    assert_eq!((ledger.received(), ledger.reordered()), (ledger.delivered(), Some(0)));
}
