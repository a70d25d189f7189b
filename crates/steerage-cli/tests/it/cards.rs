//! The real drivers of emulated cards, in pairs that are joined back to back: `.ci/other-kernel` with
//! `STEERAGE_CARDS`. Each test prints what it found, for the table of docs/af_xdp.md.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::Signal;
use serde_json::Value;
use steerage_fixtures::namespaces::{Namespaces, bind_when_free};
use steerage_fixtures::{skip_on_this_kernel, until};

use crate::program::{Ran, Started, command};

const NEAR: &str = "10.210.0.1";
const FAR: &str = "10.210.0.2";
/// The address after the router, which is the near end.
const INNER: &str = "10.211.0.2";

const COUNT: usize = 3_000;

/// Two cards with the same driver, each in a namespace.
struct Pair {
    ends: Namespaces,
    driver: String,
    near: String,
    kernel: UdpSocket,
    _alone: MutexGuard<'static, ()>,
}

/// Only one test has the cards.
static CARDS: Mutex<()> = Mutex::new(());

/// The interfaces of each driver that has two of them.
fn pairs() -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir("/sys/class/net").unwrap() {
        let path = entry.unwrap().path();
        let Ok(driver) = fs::read_link(path.join("device/driver")) else { continue };
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        all.entry(name(&driver)).or_default().push(name(&path));
    }
    all.values_mut().for_each(|names| names.sort());
    all.retain(|_, names| names.len() == 2);
    all
}

/// Calls `test` with each pair of cards.
fn each_pair(test: impl Fn(Pair)) {
    if std::env::var_os("STEERAGE_CARDS").is_none() {
        skip_on_this_kernel("there are no pairs of emulated cards");
        return;
    }
    let drivers: Vec<String> = pairs().into_keys().collect();
    assert!(!drivers.is_empty(), "STEERAGE_CARDS promises pairs of cards");
    for driver in drivers {
        let alone = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
        // Cards return from a deleted namespace some time later.
        until("both cards are there", || pairs().contains_key(&driver));
        let names = pairs().remove(&driver).unwrap();
        let ends = Namespaces::new(2).unwrap();
        for (end, name) in names.iter().enumerate() {
            ends.card(end, name);
            ends.must(end, &format!("addr add 10.210.0.{}/24 dev {name}", end + 1));
        }
        let kernel = ends.within(0, || bind_when_free((NEAR, 9)));
        kernel.set_nonblocking(true).unwrap();
        let pair = Pair { ends, driver, near: names[0].clone(), kernel, _alone: alone };
        pair.connects();
        test(pair);
    }
}

impl Pair {
    /// Waits until datagrams pass.
    fn connects(&self) {
        until("datagrams pass", || {
            self.send(NEAR, 1);
            self.passed() > 0
        });
        until("no datagram is left", || self.passed() == 0);
    }

    /// Sends datagrams from 50 ports, and no faster than the emulated card receives them.
    fn send(&self, to: &str, count: usize) {
        self.ends.within(1, || {
            let sockets: Vec<UdpSocket> =
                (0..count.min(50) as u16).map(|flow| bind_when_free((FAR, 20_000 + flow))).collect();
            for (nth, socket) in sockets.iter().cycle().take(count).enumerate() {
                // An error means that the link is down.
                let _ = socket.send_to(&[0; 100], (to, 9));
                if nth % 32 == 31 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
            }
        });
    }

    fn passed(&self) -> usize {
        std::iter::from_fn(|| self.kernel.recv(&mut [0; 100]).ok()).count()
    }

    fn steerage(&self, args: &[&str]) -> Started {
        let args = [args, &["--virtual-cpus", "2", "--check-order", "--backlog", "10000", "--json", "-v"]].concat();
        Started::of(self.ends.within(0, || command(&args).spawn().unwrap()))
    }

    fn once(&self, args: &[&str]) -> Ran {
        self.ends.within(0, || Ran::of(command(args).output().unwrap()))
    }

    fn found(&self, what: &str) {
        let _ = writeln!(io::stdout(), "{}: {what}", self.driver);
    }
}

fn received(report: &Value) -> usize {
    report["snapshot"]["received"].as_u64().unwrap() as usize
}

fn queues(report: &Value) -> &Vec<Value> {
    report["snapshot"]["queues"].as_array().unwrap()
}

#[test]
fn cards_are_listened_to() {
    each_pair(|pair| {
        let started = pair.steerage(&["count", &pair.near, "-f", "udp port 9", "-Q", "in"]);
        pair.send(NEAR, COUNT);
        let report = started.stop_at_rest();
        assert_eq!((received(&report), pair.passed()), (COUNT, COUNT), "{}: {report}", pair.driver);
        pair.found("af_packet ok");
    });
}

#[test]
fn packets_of_cards_are_taken() {
    each_pair(|pair| {
        let channels = pair.once(&["doctor", &pair.near, "--json"]);
        let doctor: Value = serde_json::from_str(&channels.out).unwrap();
        assert_eq!(doctor["interface"]["driver"], pair.driver.as_str(), "{doctor}");
        for option in ["", ",mode=skb", ",mode=copy", ",hash=device"] {
            let device = format!("af_xdp:{}{option}", pair.near);
            let args = ["count", &device, "--take", "udp"];
            let ran = pair.once(&[&args[..], &["--seconds", "0.01", "-q"]].concat());
            if ran.code != Some(0) {
                // Without native XDP in the driver, the mode is refused, and nothing changes.
                assert!(option == ",mode=copy" && ran.err.contains("attach an XDP program"), "{ran:?}");
                pair.found(&format!("{option}: {}", ran.err.trim()));
                continue;
            }
            let started = pair.steerage(&args);
            let notes: Vec<String> = started
                .said()
                .iter()
                .filter(|line| !line.contains(" INFO "))
                .map(|line| line.trim().to_owned())
                .collect();
            // Some drivers restart their card for an XDP program.
            pair.reconnects(&started);
            pair.send(NEAR, COUNT);
            let report = started.stop_at_rest();
            let (sum, mode) = (received(&report), &queues(&report)[0]["mode"]);
            let lost = report["snapshot"]["dropped"].to_string();
            pair.found(&format!(
                "{option}: {} queues, {mode}, hash {}, received {sum}, dropped {lost}, {notes:?}",
                queues(&report).len(),
                queues(&report)[0]["hash"]
            ));
            assert!(sum + pair.passed() >= COUNT, "{}: {report}", pair.driver);
        }
    });
}

impl Pair {
    /// Waits until the run has received a datagram.
    fn reconnects(&self, started: &Started) {
        until("the run receives a datagram", || {
            self.send(NEAR, 1);
            self.count_now(started) > 0
        });
    }

    fn count_now(&self, started: &Started) -> usize {
        let ran = self.once(&["get", "--to", &started.id().to_string(), "steerage/received"]);
        ran.out.trim().parse().unwrap_or_else(|_| panic!("{ran:?}"))
    }
}

#[test]
fn a_card_goes_down_and_up() {
    each_pair(|pair| {
        let device = format!("af_xdp:{}", pair.near);
        let started = pair.steerage(&["count", &device, "--take", "udp"]);
        pair.reconnects(&started);
        pair.ends.must(0, &format!("link set {} down", pair.near));
        pair.send(NEAR, 100);
        pair.ends.must(0, &format!("link set {} up", pair.near));
        let before = pair.count_now(&started);
        until("the run receives again", || {
            pair.send(NEAR, 1);
            pair.count_now(&started) > before
        });
        pair.send(NEAR, COUNT);
        let report = started.stop(Signal::SIGINT);
        assert!(received(&report) >= COUNT, "{}: {report}", pair.driver);
        pair.found("down and up ok");
    });
}

#[test]
fn a_driver_is_unbound_under_load() {
    each_pair(|pair| {
        let started = pair.steerage(&["count", &format!("af_xdp:{}", pair.near), "--take", "udp"]);
        pair.reconnects(&started);
        let device = pair.ends.within(0, || fs::canonicalize(format!("/sys/class/net/{}/device", pair.near)));
        // The directory shows the devices of the namespace in which it was mounted.
        let Some(device) = device.ok().or_else(|| pci_device(&pair.driver)) else { panic!("no device") };
        let (driver, name) = (device.join("driver"), device.file_name().unwrap().to_string_lossy().into_owned());
        let driver = fs::canonicalize(driver).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| pair.send(NEAR, COUNT));
            fs::write(driver.join("unbind"), &name).unwrap();
        });
        let ran = started.end();
        assert!(ran.code == Some(1) && ran.err.contains("the interface was deleted"), "{}: {ran:?}", pair.driver);
        ran.report();
        fs::write(driver.join("bind"), &name).unwrap();
        pair.found("unbound and bound ok");
    });
}

/// A device of this driver whose interface is in another namespace.
fn pci_device(driver: &str) -> Option<std::path::PathBuf> {
    ["pci", "virtio"].iter().find_map(|bus| {
        let devices = fs::read_dir(format!("/sys/bus/{bus}/drivers/{driver}")).ok()?;
        let mut devices: Vec<_> =
            devices.filter_map(|entry| fs::canonicalize(entry.ok()?.path().join("net/..")).ok()).collect();
        devices.sort();
        devices.into_iter().next()
    })
}

#[test]
fn packets_are_forwarded_from_a_card() {
    each_pair(|pair| {
        let inner = Namespaces::new(1).unwrap();
        pair.ends.veth_to(0, "in0", &inner, 0, "in1");
        pair.ends.must(0, "addr add 10.211.0.1/24 dev in0");
        inner.must(0, &format!("addr add {INNER}/24 dev in1"));
        pair.ends.must(1, &format!("route add 10.211.0.0/24 via {NEAR}"));
        let sink = inner.within(0, || bind_when_free((INNER, 9)));
        sink.set_nonblocking(true).unwrap();
        for kind in ["", "af_xdp:"] {
            let (card, inside) = (format!("{kind}{}", pair.near), format!("{kind}in0"));
            let mut args = vec!["forward", &card, &inside];
            if !kind.is_empty() {
                args.extend(["--take", "udp"]);
            }
            let started = pair.steerage(&args);
            let arrived = || std::iter::from_fn(|| sink.recv(&mut [0; 100]).ok()).count();
            until("datagrams are forwarded", || {
                pair.send(INNER, 1);
                arrived() > 0
            });
            pair.send(INNER, COUNT);
            let report = started.stop(Signal::SIGINT);
            let sum = arrived();
            pair.found(&format!("forward {kind}: {sum} of {COUNT} arrived, dropped {}", report["snapshot"]["dropped"]));
            assert!(sum > COUNT * 9 / 10, "{report}");
        }
    });
}
