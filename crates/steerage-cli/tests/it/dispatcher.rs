//! Tests steerage together with other XDP programs on an interface, through the dispatcher of
//! libxdp. xdp-loader and xdp-filter of Debian's package xdp-tools load the other programs.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::namespaces::bind_when_free;
use steerage_fixtures::{skip_on_this_kernel, until};

use crate::program::{Ran, Started, children, command};

/// A veth pair, and a BPF file system for the XDP programs of the interface `near0`.
struct Shared {
    net: Net,
    pins: PathBuf,
    /// UDP sockets on ports 9 and 10, for packets that XDP passes to the kernel.
    kernel: [UdpSocket; 2],
}

impl Shared {
    fn new() -> Option<Self> {
        let is_there = ["/usr/sbin/xdp-loader", "/usr/sbin/xdp-filter"].iter().all(|path| Path::new(path).exists());
        if !is_there {
            skip_on_this_kernel("xdp-loader is absent: install the package xdp-tools");
            return None;
        }
        let net = Net::new()?;
        // The name of the namespace is new, so that this directory is new as well.
        let pins = std::env::temp_dir().join(format!("steerage-bpf-{}", net.near));
        fs::create_dir(&pins).unwrap();
        let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&pins).status().unwrap();
        assert!(mounted.success(), "mount a BPF file system");
        let kernel = net.near(|| [9, 10].map(|port| bind_when_free((NEAR, port))));
        kernel.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let shared = Self { net, pins, kernel };
        shared.load_pass("native");
        let has_dispatcher = !shared.programs().is_empty();
        shared.tool("xdp-loader unload near0 --all");
        if !has_dispatcher {
            skip_on_this_kernel("xdp-loader cannot use its dispatcher with this kernel");
        }
        has_dispatcher.then_some(shared)
    }

    /// Runs a program of xdp-tools. The programs of xdp-tools fail instead of waiting for their
    /// lock file, so `tool` runs only one of them at a time. xdp-filter ignores LIBXDP_BPFFS. If
    /// /sys/fs/bpf has no BPF file system, xdp-filter uses the first one in /proc/mounts, perhaps
    /// that of another test. The program runs in a mount namespace in which /sys/fs/bpf is the file
    /// system of this test.
    fn tool(&self, words: &str) -> String {
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount --bind \"$LIBXDP_BPFFS\" /sys/fs/bpf && exec \"$@\"", "sh"]);
        command.args(words.split(' ')).env("LIBXDP_BPFFS", &self.pins);
        let output = self.net.near(|| command.output().unwrap());
        let ran = Ran::of(output);
        assert!(ran.code == Some(0), "{command:?}: {ran:?}");
        ran.out
    }

    /// Loads an XDP program that passes all packets to the kernel.
    fn load_pass(&self, mode: &str) {
        self.tool(&format!("xdp-loader load near0 {} -m {mode} -n xdp_pass", object("xdp-dispatcher.o")));
    }

    /// Returns the priority, name and identifier of each XDP program in the dispatcher, in
    /// xdp-loader's order.
    fn listed(&self) -> Vec<Vec<String>> {
        let status = self.tool("xdp-loader status near0");
        let lines = status.lines().filter_map(|line| line.trim_start().strip_prefix("=>"));
        lines.map(|line| line.split_whitespace().take(3).map(str::to_owned).collect()).collect()
    }

    fn programs(&self) -> Vec<String> {
        self.listed().into_iter().map(|mut program| program.remove(1)).collect()
    }

    fn id_of(&self, name: &str) -> String {
        self.listed().into_iter().find(|program| program[1] == name).unwrap().remove(2)
    }

    fn has_programs(&self, names: &[&str]) {
        assert_eq!(self.programs(), names);
    }

    fn count(&self, args: &[&str]) -> Started {
        Started::of(self.net.near(|| self.command(args).spawn().unwrap()))
    }

    fn command(&self, args: &[&str]) -> Command {
        let fixed = ["count", "af_xdp:near0", "--take", "udp", "--virtual-cpus", "1", "--check-order", "--json", "-v"];
        let mut command = command(&[&fixed[..], args].concat());
        command.env("LIBXDP_BPFFS", &self.pins);
        command
    }

    fn send(&self, port: u16, count: usize) {
        self.net.far(|| {
            let socket = bind_when_free((FAR, 20_000));
            for _ in 0..count {
                socket.send_to(&[0; 100], (NEAR, port)).unwrap();
            }
        });
    }

    /// Returns how many datagrams the two sockets together have received since the last call.
    fn passed(&self) -> usize {
        let of = |socket: &UdpSocket| std::iter::from_fn(|| socket.recv(&mut [0; 100]).ok()).count();
        self.kernel.iter().map(of).sum()
    }

    /// Waits until no dispatcher is pinned. A dispatcher is first detached from its interface and
    /// then unpinned.
    fn is_clean(&self) {
        until("nothing is pinned", || fs::read_dir(self.pins.join("xdp")).unwrap().count() == 0);
        assert!(!self.tool("ip link show near0").contains("xdp"));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.pins).status();
        let _ = fs::remove_dir(&self.pins);
    }
}

/// Returns the path of a compiled BPF program of libxdp.
fn object(name: &str) -> String {
    let folders = fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path().join("bpf").join(name));
    let mut there = folders.filter(|path| path.exists());
    there.next().expect("xdp-tools installs it").display().to_string()
}

const OURS: &str = "steerage";
const PASS: &str = "xdp_pass";
const FILTER: &str = "xdpfilt_alw_udp";

fn received(report: &Value) -> usize {
    report["snapshot"]["received"].as_u64().unwrap() as usize
}

/// Returns the process id of the helper process, which removes the run's XDP program at the end of
/// the run.
fn helper(started: &Started) -> Pid {
    let [child] = children(started.id())[..] else { panic!("there is one child") };
    child
}

#[test]
fn a_dispatcher_that_is_there_is_joined_and_left() {
    for (mode, name) in [("native", "native, copy"), ("skb", "skb, copy")] {
        let Some(shared) = Shared::new() else { return };
        shared.load_pass(mode);
        let started = shared.count(&["--hash", "device"]);
        // XDP programs of the same priority are ordered by name.
        shared.has_programs(&[OURS, PASS]);
        let note = "near0: the hash of the card is not available in a dispatcher of libxdp";
        assert!(started.said().iter().any(|line| line.contains(note)), "{:?}", started.said());
        shared.send(9, 100);
        let report = started.stop_at_rest();
        assert_eq!((received(&report), shared.passed()), (100, 0), "{report}");
        let queue = &report["snapshot"]["queues"][0];
        assert_eq!((&queue["mode"], queue["hash"] == "device"), (&json!(name), false), "{queue}");
        shared.has_programs(&[PASS]);
        shared.send(9, 10);
        assert_eq!(shared.passed(), 10);
        shared.tool("xdp-loader unload near0 --all");
        shared.is_clean();
    }
}

/// In this test, xdp-filter has priority 10 and drops packets to port 9.
#[test]
fn the_priority_decides_who_sees_packets_first() {
    for (priority, order, received_of_9) in [("5", [OURS, FILTER], 100), ("60", [FILTER, OURS], 0)] {
        for filter_first in [false, true] {
            let Some(shared) = Shared::new() else { return };
            let load = || {
                shared.tool("xdp-filter load near0 -f udp");
                shared.tool("xdp-filter port 9 -m dst -p udp");
            };
            if filter_first {
                load();
            }
            let started = shared.count(&["--xdp-priority", priority]);
            if !filter_first {
                shared.has_programs(&[OURS]);
                load();
            }
            shared.has_programs(&order);
            shared.send(9, 100);
            shared.send(10, 100);
            if filter_first {
                shared.tool("xdp-filter unload near0");
                shared.has_programs(&[OURS]);
                shared.send(9, 100);
            }
            let report = started.stop_at_rest();
            let after_unload = if filter_first { 100 } else { 0 };
            assert_eq!((received(&report), shared.passed()), (received_of_9 + 100 + after_unload, 0), "{report}");
            if !filter_first {
                shared.has_programs(&[FILTER]);
                shared.send(9, 10);
                shared.send(10, 10);
                assert_eq!(shared.passed(), 10);
                shared.tool("xdp-filter unload near0");
            }
            shared.is_clean();
        }
    }
}

#[test]
fn the_program_of_a_killed_run_is_removed() {
    let Some(shared) = Shared::new() else { return };
    shared.load_pass("native");
    let started = shared.count(&[]);
    let the_helper = helper(&started);
    started.signal(Signal::SIGKILL);
    assert_eq!(started.end_unread(), None);
    until("the helper removes it", || shared.programs() == [PASS]);
    // The helper process also removes the directory of the lock file.
    until("the helper ends", || kill(the_helper, None).is_err());
    assert_eq!(fs::read_dir(shared.pins.join("xdp")).unwrap().count(), 1);

    // If `steerage` and its helper process are killed, the XDP program stays, and passes all
    // packets to the kernel.
    let started = shared.count(&[]);
    kill(helper(&started), Signal::SIGKILL).unwrap();
    started.signal(Signal::SIGKILL);
    assert_eq!(started.end_unread(), None);
    shared.has_programs(&[OURS, PASS]);
    shared.send(9, 100);
    assert_eq!(shared.passed(), 100);

    let started = shared.count(&[]);
    shared.has_programs(&[OURS, PASS]);
    shared.send(9, 100);
    assert_eq!(received(&started.stop_at_rest()), 100);
    shared.has_programs(&[PASS]);
    shared.tool("xdp-loader unload near0 --all");
    shared.is_clean();
}

#[test]
fn two_runs_do_not_share_an_interface() {
    let Some(shared) = Shared::new() else { return };
    shared.load_pass("native");
    let started = shared.count(&[]);
    let ran = Ran::of(shared.net.near(|| shared.command(&[]).output().unwrap()));
    assert!(ran.code == Some(1) && ran.err.contains("another steerage has near0 already"), "{ran:?}");
    shared.has_programs(&[OURS, PASS]);
    assert_eq!(received(&started.stop_at_rest()), 0);
}

/// If a run cannot start, the run itself removes the XDP program that it loaded for its first
/// device.
#[test]
fn a_run_that_does_not_start_leaves_the_dispatcher() {
    let Some(shared) = Shared::new() else { return };
    shared.load_pass("native");
    let ran = Ran::of(shared.net.near(|| shared.command(&["af_xdp:nosuch0"]).output().unwrap()));
    assert!(ran.code == Some(1) && ran.err.contains("nosuch0"), "{ran:?}");
    shared.has_programs(&[PASS]);
}

#[test]
fn the_mode_is_that_of_the_dispatcher() {
    let Some(shared) = Shared::new() else { return };
    shared.load_pass("skb");
    let ran = shared.net.near(|| {
        let mut command = command(&["count", "af_xdp:near0,mode=native", "--take", "udp"]);
        Ran::of(command.env("LIBXDP_BPFFS", &shared.pins).output().unwrap())
    });
    assert!(ran.code == Some(1) && ran.complaint().contains("attached in another mode"), "{ran:?}");
    shared.has_programs(&[PASS]);
}

#[test]
fn a_program_that_is_taken_away_is_missed() {
    for (tool, left) in [("ip link set near0 xdp off", &[][..]), ("xdp-loader unload near0 --id", &[PASS])] {
        let Some(shared) = Shared::new() else { return };
        shared.load_pass("native");
        let started = shared.count(&[]);
        shared.has_programs(&[OURS, PASS]);
        match left {
            [] => shared.tool(tool),
            _ => shared.tool(&format!("{tool} {}", shared.id_of(OURS))),
        };
        let ran = started.end();
        assert!(ran.code == Some(1) && ran.err.contains("another program took the XDP program away"), "{ran:?}");
        shared.has_programs(left);
    }
}
