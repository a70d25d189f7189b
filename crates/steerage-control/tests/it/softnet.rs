//! Compares `softnet_stat` of steerage with that of the kernel's RPS, after a burst that ends with
//! the first drop.

use std::fs;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use steerage::threads::{Armed, Softnet};
use steerage::{
    Builder, CpuId, CpuMask, DeviceError, Input,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
};
use steerage_control::{CpuView, Options, SETTLE_MAX, Tree};
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::manual_clock::ManualClock;
use steerage_fixtures::namespaces::Namespaces;
use steerage_fixtures::{HANG, skip, until};

use crate::common::owner;

const PROCESSED: usize = 0;
const DROPPED: usize = 1;
const TIME_SQUEEZE: usize = 2;
const RECEIVED_RPS: usize = 9;
const FLOW_LIMIT_COUNT: usize = 10;
const BACKLOG_LEN: usize = 11;
const CPU: usize = 12;
const INPUT_LEN: usize = 13;
const PROCESS_LEN: usize = 14;

/// The columns of mechanisms that Linux no longer has.
const UNUSED: std::ops::Range<usize> = 3..9;

type Row = [u64; 15];

/// Rows have the format of Linux 6.0 and later: 15 columns of eight hex digits.
fn rows(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let columns: Vec<&str> = line.split(' ').collect();
        assert!(columns.iter().all(|column| column.len() == 8), "{line}");
        let numbers: Vec<u64> = columns.iter().map(|column| u64::from_str_radix(column, 16).unwrap()).collect();
        let row = Row::try_from(numbers).unwrap_or_else(|_| panic!("not 15 columns: {line}"));
        assert!(row[UNUSED].iter().all(|column| *column == 0), "{line}");
        row
    };
    text.lines().map(row).collect()
}

/// Returns the increases of the columns that count, and the current values of the other columns.
fn since(before: &Row, now: &Row) -> Row {
    let mut moved = *now;
    for at in [PROCESSED, DROPPED, TIME_SQUEEZE, RECEIVED_RPS, FLOW_LIMIT_COUNT] {
        moved[at] -= before[at];
    }
    moved
}

const KERNELS: &str = "/proc/net/softnet_stat";
const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";
const FLOW_LIMIT: &str = "/proc/sys/net/core/flow_limit_cpu_bitmap";
const BUDGET: &str = "/proc/sys/net/core/netdev_budget";

fn kernels(cpu: usize) -> Row {
    let rows = rows(&fs::read_to_string(KERNELS).unwrap());
    *rows.iter().find(|row| row[CPU] == cpu as u64).expect("a row for each CPU")
}

/// A kernel setting for all network namespaces, which is restored when this value is dropped.
struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    fn of(path: &'static str, value: &str) -> Self {
        let before = fs::read_to_string(path).unwrap();
        fs::write(path, value).unwrap();
        Self { path, before }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        fs::write(self.path, self.before.trim()).unwrap();
    }
}

/// Only one test runs at a time, because all tests read the machine's counts.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Namespace 0 sends datagrams of 64 KiB to the router in namespace 1, which forwards them back
/// over a link with the smallest MTU: more than a thousand fragments within one softirq.
fn router() -> Option<Namespaces> {
    let allowed = fs::exists(BACKLOG).unwrap_or(false) && rustix::process::geteuid().is_root();
    if !allowed || usable().len() < 2 {
        skip("the kernel's RPS takes root, the first network namespace and two CPUs");
        return None;
    }
    let net = Namespaces::new(2)?;
    net.veth((0, "near0"), (1, "far0"));
    net.veth((0, "near1"), (1, "far1"));
    for (nth, args) in [
        (0, "link set near0 mtu 65535"),
        (1, "link set far0 mtu 65535"),
        (0, "link set near1 mtu 68 address 02:00:00:00:00:05"),
        (1, "link set far1 mtu 68"),
        (0, "addr add 10.220.0.1/24 dev near0"),
        (1, "addr add 10.220.0.2/24 dev far0"),
        (1, "addr add 10.221.0.2/24 dev far1"),
        (0, "route add 10.221.0.0/24 via 10.220.0.2"),
        (1, "neigh replace 10.221.0.1 lladdr 02:00:00:00:00:05 dev far1 nud permanent"),
    ] {
        net.must(nth, args);
    }
    net.within(1, || fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
    // With `ip_no_pmtu_disc`, the sender allows routers to fragment.
    net.within(0, || fs::write("/proc/sys/net/ipv4/ip_no_pmtu_disc", "1").unwrap());
    // The first datagram makes the kernel resolve the link addresses.
    net.within(0, || send(64));
    Some(net)
}

fn usable() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

fn send(bytes: usize) {
    UdpSocket::bind("0.0.0.0:0").unwrap().send_to(&vec![0; bytes], "10.221.0.1:9").unwrap();
}

/// Sends a datagram from the CPU `on`. The kernel also routes the datagram on this CPU.
fn send_on(net: &Namespaces, on: usize, bytes: usize) {
    net.within(0, || {
        let mut set = CpuSet::new();
        set.set(on);
        sched_setaffinity(None, &set).unwrap();
        send(bytes);
    });
}

/// Returns the number of packets that the kernel dropped after `near1` had received them.
fn kernels_rx_dropped(net: &Namespaces) -> u64 {
    net.within(0, || {
        let mut text = String::new();
        in_own_sysfs(|sys| text = fs::read_to_string(format!("{sys}/class/net/near1/statistics/rx_dropped")).unwrap());
        text.trim().parse().unwrap()
    })
}

fn steer_to(net: &Namespaces, cpu: usize) {
    net.within(0, || {
        // A separate thread mounts sysfs, and only this thread sees the mount.
        let mask = format!("{:x}", 1_u64 << cpu);
        in_own_sysfs(|sys| fs::write(format!("{sys}/class/net/near1/queues/rx-0/rps_cpus"), &mask).unwrap());
    });
}

fn in_own_sysfs(with: impl FnOnce(&str)) {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    let place = steerage_fixtures::scratch::Scratch::new();
    let directory = place.to_str().unwrap();
    mount("sysfs", directory, "sysfs", MountFlags::empty(), None::<&std::ffi::CStr>).unwrap();
    with(directory);
    unmount(directory, UnmountFlags::DETACH).unwrap();
}

/// Returns the changes of the kernel's row for `cpu` in a burst, as the median of five bursts. The
/// sender runs on `cpu`, so nothing is processed before the end of the burst.
fn kernels_burst(net: &Namespaces, cpu: usize, flow_limit: bool) -> Row {
    let once = || {
        // Each burst begins with an empty flow limit table.
        let _on = flow_limit.then(|| Setting::of(FLOW_LIMIT, &format!("{:x}", 1_u64 << cpu)));
        let before = kernels(cpu);
        send_on(net, cpu, 65_000);
        until("the burst is over", || kernels(cpu)[DROPPED] > before[DROPPED] && kernels(cpu)[BACKLOG_LEN] == 0);
        since(&before, &kernels(cpu))
    };
    let mut moved: Vec<Row> = (0..5).map(|_| once()).collect();
    let mut median = moved[0];
    for at in 0..median.len() {
        moved.sort_by_key(|row| row[at]);
        median[at] = moved[2][at];
    }
    median
}

struct OneByOne {
    left: usize,
}

impl RxQueue for OneByOne {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        let some = self.left.min(1);
        self.left -= some;
        out.fill(some, |_| Some(Filled::whole(60)));
        Ok(Polled::More)
    }
}

/// CPU 0 receives all packets, and CPU 1 handles them.
struct Ours {
    tree: Tree,
    cpus: [Softnet<Nothing, ManualClock>; 2],
    accepted: u64,
}

impl Ours {
    /// CPU 1 processes nothing until the first drop.
    fn burst(flow_limit: bool) -> Self {
        Self::burst_with(flow_limit, None)
    }

    fn burst_with(flow_limit: bool, budget: Option<usize>) -> Self {
        let backlog: usize = fs::read_to_string(BACKLOG).unwrap().trim().parse().unwrap();
        let one: CpuMask = [CpuId(1)].into_iter().collect();
        let input = Input::new("burst", "test", vec![Box::new(OneByOne { left: 10 * backlog })]);
        let builder = Builder::new().virtual_cpus(2).backlog(backlog).rps_cpus(one.clone()).input(input);
        let (parts, handle) = builder.build(|_| Nothing).unwrap().split();
        let clock = ManualClock::default();
        let cpus: Vec<Softnet<Nothing, ManualClock>> =
            parts.into_iter().map(|part| part.enter(clock.clone())).collect();
        let mut cpus = <[_; 2]>::try_from(cpus).unwrap();
        if flow_limit {
            handle.set_flow_limit_cpus(&one).unwrap();
        }
        handle.set_limits(|limits| limits.budget = budget.unwrap_or(limits.budget));
        // CPU 1 runs until it would sleep.
        while cpus[1].arm() == Armed::Work {
            cpus[1].step();
        }
        let dropped = || handle.snapshot().dropped().total();
        while dropped() == 0 {
            cpus[0].step();
        }
        let accepted = handle.snapshot().received() - dropped();
        let options =
            Options { machine: CpuView::new(2), uid: owner(), queues_off: Vec::new(), settle_max: SETTLE_MAX };
        Self { tree: Tree::new(handle, options), cpus, accepted }
    }

    fn row(&self) -> Row {
        let text = self.tree.read(self.tree.find("proc/net/softnet_stat").unwrap()).unwrap();
        let rows = rows(&text);
        assert_eq!((rows.len(), rows[0][CPU]), (2, 0));
        rows[1]
    }

    fn rx_dropped(&self) -> u64 {
        let path = "sys/class/net/burst/statistics/rx_dropped";
        self.tree.read(self.tree.find(path).unwrap()).unwrap().trim().parse().unwrap()
    }

    fn come_round(&mut self) {
        while self.row()[BACKLOG_LEN] > 0 {
            self.cpus[1].step();
        }
    }
}

/// A burst that is one packet longer than the backlog changes the same columns of steerage and of
/// the kernel by the same numbers.
#[test]
fn a_full_backlog_moves_the_kernels_columns() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(net) = router() else { return };
    let (cpu, backlog) = (usable()[1], fs::read_to_string(BACKLOG).unwrap().trim().parse::<u64>().unwrap());
    steer_to(&net, cpu);
    let before = (kernels(cpu)[DROPPED], kernels_rx_dropped(&net));
    let theirs = kernels_burst(&net, cpu, false);
    let after = (kernels(cpu)[DROPPED], kernels_rx_dropped(&net));
    let mut ours = Ours::burst(false);
    // If the backlog is full, the kernel also counts the dropped frame for the interface.
    assert!(after.0 > before.0, "{before:?} {after:?}");
    assert_eq!(after.0 - before.0, after.1 - before.1);
    assert_eq!((ours.row()[DROPPED], ours.rx_dropped()), (1, 1));

    // The kernel handles the burst too quickly to read the kernel's columns while packets wait.
    let waiting = ours.row();
    assert_eq!((waiting[PROCESSED], waiting[BACKLOG_LEN], waiting[CPU]), (0, ours.accepted, 1));
    for row in [&waiting, &theirs] {
        assert_eq!(row[BACKLOG_LEN], row[INPUT_LEN] + row[PROCESS_LEN]);
    }
    ours.come_round();
    let ours = ours.row();

    for at in [DROPPED, TIME_SQUEEZE, FLOW_LIMIT_COUNT, BACKLOG_LEN, INPUT_LEN, PROCESS_LEN] {
        assert_eq!((at, ours[at]), (at, theirs[at]), "{ours:x?} {theirs:x?}");
    }
    assert_eq!((ours[DROPPED], ours[FLOW_LIMIT_COUNT], theirs[CPU]), (1, 0, cpu as u64));
    // The kernel processes two packets more than steerage. The kernel's backlog holds one packet
    // more than `netdev_max_backlog`, and the kernel also processes the datagram before fragmenting
    // it.
    assert_eq!((ours[PROCESSED], theirs[PROCESSED]), (backlog, backlog + 1 + 1));
}

#[test]
fn a_flow_limit_moves_the_kernels_columns() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(net) = router() else { return };
    let cpu = usable()[1];
    steer_to(&net, cpu);
    let theirs = kernels_burst(&net, cpu, true);
    let mut ours = Ours::burst(true);
    ours.come_round();
    let ours = ours.row();
    // The dropped packets include those that the flow limit dropped.
    for at in [DROPPED, FLOW_LIMIT_COUNT, TIME_SQUEEZE, BACKLOG_LEN] {
        assert_eq!((at, ours[at]), (at, theirs[at]), "{ours:x?} {theirs:x?}");
    }
    assert_eq!((ours[DROPPED], ours[FLOW_LIMIT_COUNT]), (1, 1));
    // The kernel processes one packet more than steerage: the datagram before it is fragmented.
    assert_eq!(ours[PROCESSED] + 1, theirs[PROCESSED]);
}

#[test]
fn a_wake_by_another_cpu_moves_received_rps() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(net) = router() else { return };
    let [on, to] = [usable()[0], usable()[1]];
    steer_to(&net, to);
    let before = kernels(to);
    // The kernel sends an IPI, unless the CPU is already awake.
    until("an IPI", || {
        send_on(&net, on, 64);
        kernels(to)[RECEIVED_RPS] > before[RECEIVED_RPS]
    });
    assert!(since(&before, &kernels(to))[PROCESSED] > 0);

    let mut ours = Ours::burst(false);
    ours.come_round();
    // Only the first packet of the burst wakes CPU 1.
    assert_eq!(ours.row()[RECEIVED_RPS], 1);
}

#[test]
fn a_small_budget_moves_the_kernels_time_squeeze() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(net) = router() else { return };
    let (cpu, backlog) = (usable()[1], fs::read_to_string(BACKLOG).unwrap().trim().parse::<u64>().unwrap());
    steer_to(&net, cpu);
    let _budget = Setting::of(BUDGET, "64");
    let theirs = kernels_burst(&net, cpu, false);
    let mut ours = Ours::burst_with(false, Some(64));
    ours.come_round();
    let ours = ours.row();
    // The kernel processes two packets more than steerage, as in
    // [`a_full_backlog_moves_the_kernels_columns`].
    assert_eq!((theirs[TIME_SQUEEZE], theirs[PROCESSED]), ((backlog + 2) / 64, backlog + 2), "{theirs:x?}");
    assert_eq!((ours[TIME_SQUEEZE], ours[PROCESSED]), (backlog / 64, backlog), "{ours:x?}");
    assert!(ours[TIME_SQUEEZE] > 0);
}

/// The burst is so short that a thread on another CPU reads the kernel's row again and again until
/// packets wait.
#[test]
fn what_waits_is_in_the_kernels_columns() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(net) = router() else { return };
    let [on, to] = [usable()[0], usable()[1]];
    let backlog = fs::read_to_string(BACKLOG).unwrap().trim().parse::<u64>().unwrap();
    steer_to(&net, to);
    let over = AtomicBool::new(false);
    let (waiting, working) = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut set = CpuSet::new();
            set.set(on);
            sched_setaffinity(None, &set).unwrap();
            let (mut waiting, mut working) = (None, None);
            let start = Instant::now();
            while waiting.is_none() || working.is_none() {
                assert!(start.elapsed() < HANG, "nothing was ever seen to wait: {waiting:?} {working:?}");
                let row = kernels(to);
                waiting = waiting.or((row[INPUT_LEN] > 0).then_some(row));
                working = working.or((row[PROCESS_LEN] > 0).then_some(row));
            }
            over.store(true, Ordering::Relaxed);
            (waiting.unwrap(), working.unwrap())
        });
        while !over.load(Ordering::Relaxed) && !looking.is_finished() {
            send_on(&net, to, 65_000);
        }
        looking.join().unwrap()
    });
    let burst = Ours::burst(false);
    for (row, most, cpu) in [(waiting, backlog + 1, to), (working, 2 * (backlog + 1), to), (burst.row(), backlog, 1)] {
        assert_eq!((row[BACKLOG_LEN], row[CPU]), (row[INPUT_LEN] + row[PROCESS_LEN], cpu as u64), "{row:x?}");
        assert!((1..=most).contains(&row[BACKLOG_LEN]), "{row:x?}");
    }
    // In steerage, a single queue holds the packets that wait and those that are being processed.
    assert_eq!((burst.row()[INPUT_LEN], burst.row()[PROCESS_LEN]), (burst.accepted, 0));
}
