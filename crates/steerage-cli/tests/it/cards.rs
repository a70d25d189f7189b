//! Tests with pairs of emulated network cards and their real drivers. `.ci/other-kernel` runs these
//! tests if `STEERAGE_CARDS` is set. Each test prints its results for the table of docs/af_xdp.md.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;
use serde_json::{Value, json};
use steerage_device::af_xdp::RING_DEFAULT;
use steerage_fixtures::namespaces::{Namespaces, bind_when_free};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{skip_on_this_kernel, until};

use crate::program::{Ends, Ran, Started, command};

const NEAR: &str = "10.210.0.1";
const FAR: &str = "10.210.0.2";
/// The address of the host beyond the router. The router has the address [`NEAR`].
const INNER: &str = "10.211.0.2";

const COUNT: usize = 3_000;

const FLOWS: usize = 50;

/// The length of a datagram's payload.
const BYTES: usize = 100;
const FRAME_BYTES: usize = 14 + 20 + 8 + BYTES;

/// The length of the last datagram of a flow, by which the tests recognise that datagram.
const LAST_BYTES: usize = BYTES + 1;

/// Emulated cards are slow, so the sender pauses after each burst.
const BURST: usize = 32;
const AFTER_BURST: Duration = Duration::from_millis(2);

/// The number of huge pages. Zero-copy mode needs 400 MB of huge pages.
const HUGE_PAGES: usize = 200;

/// The behaviour of a driver, according to its source code and to earlier runs.
struct Expected {
    /// The driver itself can run XDP programs (native mode).
    native: bool,
    zero_copy: bool,
    /// The card can add a timestamp to received PTP event messages.
    stamps_ptp: bool,
    /// The driver loses its XDP program when the interface goes down, although the kernel still
    /// lists the program, as in `vmxnet3_rq_cleanup_all` of Linux 7.3.
    forgets: bool,
}

fn expected(driver: &str) -> Expected {
    let native = driver != "e1000e";
    let (zero_copy, stamps_ptp) = (matches!(driver, "igb" | "virtio_net"), matches!(driver, "igb" | "e1000e"));
    Expected { native, zero_copy, stamps_ptp, forgets: driver == "vmxnet3" }
}

struct Pair {
    ends: Namespaces,
    driver: String,
    huge_pages: usize,
    near: String,
    far: String,
    kernel: UdpSocket,
}

/// Only one test at a time can use the cards.
static CARDS: Mutex<()> = Mutex::new(());

/// Returns the names of the two interfaces of each driver.
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

fn each_pair(test: impl Fn(&Pair)) {
    each_of(false, test);
}

/// Like [`each_pair`], but repeats the test with huge pages if the driver supports zero-copy mode.
fn each_mode(test: impl Fn(&Pair)) {
    each_of(true, test);
}

/// Calls `test` for all drivers, even if `test` fails with one of them.
fn each_of(modes: bool, test: impl Fn(&Pair)) {
    let Ok(cards) = std::env::var("STEERAGE_CARDS") else {
        skip_on_this_kernel("there are no pairs of emulated cards");
        return;
    };
    let _alone = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
    let pairs = cards.split_whitespace().flat_map(|card| {
        let driver = if card == "virtio-net-pci" { "virtio_net" } else { card };
        let huge_pages: &[usize] = if modes && expected(driver).zero_copy { &[0, HUGE_PAGES] } else { &[0] };
        huge_pages.iter().map(move |huge_pages| (driver, *huge_pages))
    });
    let fails = |(driver, huge_pages): &(&str, usize)| {
        catch_unwind(AssertUnwindSafe(|| test(&Pair::new(driver, *huge_pages)))).is_err()
    };
    let failed: Vec<(&str, usize)> = pairs.filter(fails).collect();
    assert!(failed.is_empty(), "the test failed with these drivers and numbers of huge pages: {failed:?}");
}

impl Pair {
    fn new(driver: &str, huge_pages: usize) -> Self {
        set_huge_pages(huge_pages);
        // The cards of a deleted namespace return to the initial namespace after a delay.
        until("both cards are there", || pairs().contains_key(driver));
        let names = pairs().remove(driver).unwrap();
        let ends = Namespaces::new(2).unwrap();
        for (end, name) in names.iter().enumerate() {
            ends.card(end, name);
            ends.must(end, &format!("addr add 10.210.0.{}/24 dev {name}", end + 1));
        }
        let kernel = ends.within(0, || receiver(NEAR));
        let [near, far] = [0, 1].map(|end: usize| names[end].clone());
        let pair = Self { ends, driver: driver.to_owned(), huge_pages, near, far, kernel };
        pair.connects();
        pair
    }

    fn connects(&self) {
        until("datagrams pass", || {
            self.send(NEAR, 1, BYTES);
            self.passed(BYTES) > 0
        });
        self.settle(None);
    }

    fn send(&self, to: &str, count: usize, bytes: usize) {
        self.ends.within(1, || send_from(FAR, to, count, bytes));
    }

    fn passed(&self, bytes: usize) -> usize {
        arrived_at(&self.kernel, bytes)
    }

    fn steerage(&self, args: &[&str]) -> Started {
        let args = [args, &["--virtual-cpus", "2", "--check-order", "--backlog", "10000", "--json", "-v"]].concat();
        Started::of(self.ends.within(0, || command(&args).spawn().unwrap()))
    }

    fn once(&self, args: &[&str]) -> Ran {
        self.ends.within(0, || Ran::of(command(args).output().unwrap()))
    }

    /// Some drivers restart their card when an XDP program is attached, so the first datagrams may
    /// be lost. Sends datagrams until the run receives one, and returns how many the run received.
    fn reconnects(&self, started: &Started) -> usize {
        let before = self.count_now(started).0;
        until("the run receives a datagram", || {
            self.send(NEAR, 1, BYTES);
            self.count_now(started).0 > before
        });
        self.settle(Some(started));
        self.count_now(started).0
    }

    /// Waits until no datagram is in flight. The datagrams of a flow stay in order, so the last
    /// datagram of each flow arrives after the others.
    fn settle(&self, started: Option<&Started>) {
        let taken = || started.map_or(0, |started| self.count_now(started).1);
        let (before, mut passed) = (taken(), 0);
        self.send(NEAR, FLOWS, LAST_BYTES);
        until("no datagram is on its way", || {
            passed += self.passed(LAST_BYTES);
            taken() - before + passed >= FLOWS
        });
    }

    /// Returns the number of received datagrams, and how many were the last of their flow.
    fn count_now(&self, started: &Started) -> (usize, usize) {
        let ran = self.once(&["top", "--once", "--json", "--to", &started.id().to_string()]);
        let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
        let (count, bytes) = (received(&report), report["snapshot"]["received_bytes"].as_u64().unwrap() as usize);
        (count, bytes.saturating_sub(FRAME_BYTES * count) / (LAST_BYTES - BYTES))
    }

    fn channels(&self) -> usize {
        let shown = self.ends.command(0, &["ethtool", "-l", &self.near]).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        let now = shown.split("Current hardware settings:").nth(1).unwrap_or_default();
        let count = |name: &str| {
            now.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<usize>().ok()).unwrap_or(0)
        };
        (count("Combined:") + count("RX:")).max(1)
    }

    /// Waits until the run or the kernel has received each datagram, and returns how many the
    /// kernel received. `before` is how many datagrams the run had received before this call.
    fn pass(&self, started: &Started, before: usize) -> usize {
        self.send(NEAR, COUNT, BYTES);
        let mut passed = 0;
        until("all datagrams have arrived", || {
            passed += self.passed(BYTES);
            self.count_now(started).0 - before + passed >= COUNT
        });
        passed
    }

    fn is_zero_copy(&self, mode: &str) {
        assert_eq!(mode.contains("zero-copy"), self.huge_pages > 0, "{}: {mode}", self.driver);
    }

    fn found(&self, what: &str) {
        let _ = writeln!(io::stdout(), "{}: {what}", self.driver);
    }
}

/// With huge pages, a run uses zero-copy mode if the driver supports it.
fn set_huge_pages(count: usize) {
    fs::write("/proc/sys/vm/nr_hugepages", count.to_string()).unwrap();
}

/// Returns the report, and the AF_XDP mode of the run's queues.
fn stop(started: Started) -> (Value, String) {
    let report = started.stop(Signal::SIGINT);
    let snapshot = &report["snapshot"];
    assert_eq!((&snapshot["reordered"], &snapshot["in_flight"]), (&json!(0), &json!(0)), "{report}");
    let mode = queues(&report)[0]["mode"].as_str().unwrap_or_default().to_owned();
    // The driver may still write to the pages of a closed zero-copy socket, so these pages do not
    // return to the pool.
    let kept = if mode.contains("zero-copy") { queues(&report).len() as u64 * u64::from(RING_DEFAULT) } else { 0 };
    let missing = snapshot["pages"].as_u64().unwrap() - snapshot["pages_free"].as_u64().unwrap();
    assert!(missing <= kept, "{missing} pages are missing: {report}");
    (report, mode)
}

fn receiver(address: &str) -> UdpSocket {
    let socket = bind_when_free((address, 9));
    setsockopt(&socket, RcvBufForce, &(64 << 20)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn send_from(from: &str, to: &str, count: usize, bytes: usize) {
    let sockets: Vec<UdpSocket> =
        (0..count.min(FLOWS) as u16).map(|flow| bind_when_free((from, 20_000 + flow))).collect();
    for (nth, socket) in sockets.iter().cycle().take(count).enumerate() {
        // If the link is down, `send_to` returns an error.
        let _ = socket.send_to(&vec![0; bytes], (to, 9));
        if nth % BURST == BURST - 1 {
            thread::sleep(AFTER_BURST);
        }
    }
}

fn arrived_at(socket: &UdpSocket, bytes: usize) -> usize {
    let lengths = std::iter::from_fn(|| socket.recv(&mut [0; 2 * BYTES]).ok());
    lengths.filter(|len| *len == bytes).count()
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
        for hash in ["auto", "device"] {
            let started = pair.steerage(&["count", &pair.near, "-f", "udp port 9", "-Q", "in", "--hash", hash]);
            pair.send(NEAR, COUNT, BYTES);
            // Emulated cards deliver some datagrams late.
            let mut passed = 0;
            until("the kernel has all datagrams", || {
                passed += pair.passed(BYTES);
                passed == COUNT
            });
            let report = started.stop_at_rest();
            assert_eq!(received(&report), COUNT, "{}: {report}", pair.driver);
            assert_eq!(report["snapshot"]["dropped"], json!({}), "{}: {report}", pair.driver);
            pair.found(&format!("AF_PACKET, --hash {hash}: {}", queues(&report)[0]["hash"]));
        }
    });
}

#[test]
fn cards_are_described() {
    each_pair(|pair| {
        let expected = expected(&pair.driver);
        let ran = pair.ends.command(0, &[env!("CARGO_BIN_EXE_steerage"), "doctor", &pair.near, "--json"]).output();
        let ran = Ran::of(ran.unwrap());
        let doctor: Value = serde_json::from_str(&ran.out).unwrap();
        let card = &doctor["interface"];
        pair.found(&format!("doctor: {card}"));
        assert_eq!(card["driver"], pair.driver.as_str(), "{doctor}");
        assert_eq!(card["xdp"]["driver"], expected.native, "{doctor}");
        assert_eq!(card["xdp"]["zero_copy"], expected.zero_copy, "{doctor}");
        assert_eq!((&card["xdp_hash"], &card["xdp_time"]), (&json!(false), &json!(false)), "{doctor}");
        let stamps_ptp = card["stamps"].as_array().unwrap().contains(&json!("ptpv2-event"));
        assert_eq!(stamps_ptp, expected.stamps_ptp, "{doctor}");
        let args = ["explain", &pair.near, "-f", "udp port 9", "-Q", "in", "-c", "200"];
        let mut explain = Ends(pair.ends.within(0, || command(&args).stderr(Stdio::null()).spawn().unwrap()));
        let mut explained = String::new();
        until("explain has its packets", || {
            pair.send(NEAR, FLOWS, BYTES);
            explain.try_wait().unwrap().is_some()
        });
        explain.stdout.take().unwrap().read_to_string(&mut explained).unwrap();
        assert!(explained.starts_with(&format!("{}  200 packets", pair.near)), "{explained}");
        pair.found(&format!("explain: {}", explained.lines().take(12).collect::<Vec<_>>().join(" | ")));
    });
}

#[test]
fn packets_of_cards_are_taken() {
    each_pair(|pair| {
        let expected = expected(&pair.driver);
        for (option, huge_pages) in
            [("", 0), (",mode=skb", 0), (",mode=copy", 0), (",hash=device", 0), ("", HUGE_PAGES)]
        {
            set_huge_pages(huge_pages);
            let device = format!("af_xdp:{}{option}", pair.near);
            let args = ["count", &device, "--take", "udp"];
            if option == ",mode=copy" && !expected.native {
                let refused = pair.once(&[&args[..], &["--seconds", "0.01"]].concat());
                assert!(
                    refused.code == Some(1) && refused.complaint().contains("attach an XDP program"),
                    "{refused:?}"
                );
                pair.found(&format!("{option}: {}", refused.complaint()));
                continue;
            }
            let started = pair.steerage(&args);
            let notes: Vec<String> = started
                .said()
                .iter()
                .filter(|line| !line.contains(" INFO "))
                .map(|line| line.trim().to_owned())
                .collect();
            let before = pair.reconnects(&started);
            let passed = pair.pass(&started, before);
            let (report, mode) = stop(started);
            let sum = received(&report) - before;
            pair.found(&format!(
                "{option}, {huge_pages} huge pages: {} queues of {}, {mode}, hash {}, received {sum}, dropped {}, {notes:?}",
                queues(&report).len(),
                pair.channels(),
                queues(&report)[0]["hash"],
                report["snapshot"]["dropped"]
            ));
            let is_zero_copy = mode.contains("zero-copy");
            assert_eq!(is_zero_copy, expected.zero_copy && huge_pages > 0, "{}: {report}", pair.driver);
            assert_eq!(queues(&report).len(), pair.channels(), "{}: {report}", pair.driver);
            assert_eq!(sum + passed, COUNT, "{}: {report}", pair.driver);
            let is_native = mode.starts_with("native");
            assert_eq!(is_native, expected.native && option != ",mode=skb", "{}: {report}", pair.driver);
            let about_hash = notes.iter().filter(|line| line.contains("hash")).collect::<Vec<_>>();
            let is_told = about_hash.len() == 1 && about_hash[0].contains("no hash by the device");
            assert!(is_told || option != ",hash=device" && about_hash.is_empty(), "{}: {notes:?}", pair.driver);
        }
    });
}

#[test]
fn a_card_goes_down_and_up() {
    each_mode(|pair| {
        let started = pair.steerage(&["count", &format!("af_xdp:{}", pair.near), "--take", "udp"]);
        pair.reconnects(&started);
        pair.ends.must(0, &format!("link set {} down", pair.near));
        pair.send(NEAR, 100, BYTES);
        pair.ends.must(0, &format!("link set {} up", pair.near));
        let forgets = expected(&pair.driver).forgets;
        if forgets {
            let before = pair.count_now(&started).0;
            until("the program is attached again", || {
                pair.send(NEAR, FLOWS, BYTES);
                pair.count_now(&started).0 > before
            });
        }
        let before = pair.reconnects(&started);
        let passed = pair.pass(&started, before);
        let (report, mode) = stop(started);
        let (sum, dropped) = (received(&report) - before, &report["snapshot"]["dropped"]);
        let unseen = queues(&report)[0]["device_counts"]["unseen_by_program"].as_u64().unwrap();
        pair.found(&format!("down and up, {mode}: received {sum} of {COUNT}, dropped {dropped}, unseen {unseen}"));
        assert_eq!(unseen > 0, forgets, "{}: {report}", pair.driver);
        pair.is_zero_copy(&mode);
        assert_eq!(sum + passed, COUNT, "{}: {report}", pair.driver);
    });
}

#[test]
fn a_driver_is_unbound_under_load() {
    each_mode(|pair| {
        let started = pair.steerage(&["count", &format!("af_xdp:{}", pair.near), "--take", "udp"]);
        pair.reconnects(&started);
        let device = pci_device(pair);
        let (driver, name) = (device.join("driver"), device.file_name().unwrap().to_string_lossy().into_owned());
        let driver = fs::canonicalize(driver).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| pair.send(NEAR, COUNT, BYTES));
            fs::write(driver.join("unbind"), &name).unwrap();
        });
        let ran = started.end();
        assert!(ran.code == Some(1) && ran.err.contains("the interface was deleted"), "{}: {ran:?}", pair.driver);
        let mode = queues(&ran.report())[0]["mode"].as_str().unwrap().to_owned();
        fs::write(driver.join("bind"), &name).unwrap();
        pair.is_zero_copy(&mode);
        pair.found(&format!("unbound and bound, {mode}: ok"));
    });
}

fn pci_device(pair: &Pair) -> PathBuf {
    let link = pair.ends.command(0, &["readlink", "-f", &format!("/sys/class/net/{}/device", pair.near)]).output();
    PathBuf::from(String::from_utf8(link.unwrap().stdout).unwrap().trim())
}

/// No emulated card supports rules that assign packets to queues, although igb reports this
/// feature.
#[test]
fn a_rule_that_the_card_does_not_have_is_refused() {
    each_pair(|pair| {
        let state = Scratch::new();
        let shown = |what: &str| {
            let shown = pair.ends.command(0, &["ethtool", what, &pair.near]).output().unwrap();
            String::from_utf8(shown.stdout).unwrap()
        };
        let before = ["-n", "-k"].map(shown);
        for flow in ["udp4 dst-port 9", "ether proto 0x0800"] {
            let args = ["tune", "--for", "af_xdp", &pair.near, "--flow", flow, "--queues", "0", "--apply"];
            let words = [&[env!("CARGO_BIN_EXE_steerage")], &args[..]].concat();
            let refused = pair.ends.command(0, &words).env("STEERAGE_STATE_DIR", &*state).output();
            let refused = Ran::of(refused.unwrap());
            assert_eq!(refused.code, Some(1), "{}: {refused:?}", pair.driver);
            pair.found(&format!("{flow}: {}", refused.complaint()));
            assert_eq!(["-n", "-k"].map(shown), before, "{}", pair.driver);
        }
    });
}

#[test]
fn packets_are_forwarded_from_a_card() {
    each_mode(|pair| {
        let inner = Namespaces::new(1).unwrap();
        pair.ends.veth_to(0, "in0", &inner, 0, "in1");
        // With AF_XDP, the router does not change the checksum of a packet.
        inner.features(0, "in1", "tx off");
        pair.ends.must(0, "addr add 10.211.0.1/24 dev in0");
        inner.must(0, &format!("addr add {INNER}/24 dev in1"));
        inner.must(0, "route add 10.210.0.0/24 via 10.211.0.1");
        pair.ends.must(1, &format!("route add 10.211.0.0/24 via {NEAR}"));
        let [inside, outside] = [(&inner, 0, INNER), (&pair.ends, 1, FAR)]
            .map(|(ends, nth, address)| ends.within(nth, || receiver(address)));
        // Huge pages have an effect only with AF_XDP.
        let kinds: &[&str] = if pair.huge_pages > 0 { &["af_xdp:"] } else { &["", "af_xdp:"] };
        for kind in kinds {
            let (card, veth) = (format!("{kind}{}", pair.near), format!("{kind}in0"));
            let mut args = vec!["forward", &card, &veth];
            if !kind.is_empty() {
                args.extend(["--take", "udp"]);
            }
            let started = pair.steerage(&args);
            let mut both = [0, 0];
            until("datagrams are forwarded in both directions", || {
                pair.send(INNER, 1, BYTES);
                inner.within(0, || send_from(INNER, FAR, 1, BYTES));
                both[0] += arrived_at(&inside, BYTES);
                both[1] += arrived_at(&outside, BYTES);
                both.iter().all(|count| *count > 0)
            });
            let exchange = |bytes| {
                pair.send(INNER, FLOWS, bytes);
                inner.within(0, || send_from(INNER, FAR, FLOWS, bytes));
                let mut arrived = [0, 0];
                until("all datagrams are forwarded", || {
                    arrived[0] += arrived_at(&inside, bytes);
                    arrived[1] += arrived_at(&outside, bytes);
                    arrived.iter().all(|count| *count >= FLOWS)
                });
                assert_eq!(arrived, [FLOWS; 2], "{}: {card}", pair.driver);
            };
            exchange(LAST_BYTES);
            // A debug build in an emulated machine is slow.
            (0..COUNT / FLOWS).for_each(|_| exchange(BYTES));
            let (report, mode) = stop(started);
            let dropped = &report["snapshot"]["dropped"];
            pair.found(&format!("forward {kind} {mode}: {COUNT} of {COUNT} arrived each way, dropped {dropped}"));
            pair.is_zero_copy(&mode);
        }
    });
}

/// Sends PTP event messages from an interface to a link address.
const SEND_PTP: &str = "\
import socket, sys
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
out.bind((sys.argv[1], 0))
address = lambda text: bytes.fromhex(text.replace(':', ''))
sync = b'\\x00\\x02\\x00\\x2c' + bytes(26) + b'\\x00\\x01' + bytes(32)
for _ in range(int(sys.argv[3])):
    out.send(address(sys.argv[2]) + out.getsockname()[4] + b'\\x88\\xf7' + sync)
";

/// Switches on the card's timestamps for PTP event messages (`SIOCSHWTSTAMP`,
/// `HWTSTAMP_FILTER_PTP_V2_EVENT`), and sets the card's clock to a million seconds.
const STAMP_PTP: &str = "\
import array, fcntl, os, re, socket, struct, subprocess, sys, time
config = array.array('i', [0, 0, 12])
request = struct.pack('16sP', sys.argv[1].encode(), config.buffer_info()[0]).ljust(40, b'\\0')
fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x89b0, request)
shown = subprocess.run(['ethtool', '-T', sys.argv[1]], capture_output=True, text=True, check=True).stdout
clock = os.open('/dev/ptp' + re.search(r'(?:Clock|index): (\\d+)', shown)[1], os.O_RDWR)
time.clock_settime(~clock << 3 | 3, 1e6)
";

/// With `time=card`, frames without a timestamp from the card get the system's time. After a reset,
/// the emulated card adds a timestamp to only one frame, until the register `RXSATRH` is read
/// (`igb_core.c` of qemu). The driver does not read `RXSATRH`.
#[test]
fn the_card_stamps_packets() {
    const FRAMES: usize = 20;
    each_pair(|pair| {
        if !expected(&pair.driver).stamps_ptp {
            let started = pair.steerage(&["count", &format!("af_packet:{},time=card", pair.near)]);
            let is_note = |line: &String| line.contains("its card stamps no frames");
            assert!(started.said().iter().any(is_note), "{}: {:?}", pair.driver, started.said());
            started.stop_at_rest();
        }
        // The emulated e1000e card adds no timestamps, although its driver reports this feature.
        if pair.driver != "igb" {
            return;
        }
        let must = |end: usize, words: &[&str]| {
            let output = pair.ends.command(end, words).output().unwrap();
            assert!(output.status.success(), "{words:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        let address = must(0, &["cat", &format!("/sys/class/net/{}/address", pair.near)]);
        let directory = Scratch::new();
        for (clock, stamped, mode) in [("system", 0, Value::Null), ("card", 1, json!("card time"))] {
            // Resets the card, and sets the card's clock to the system's time.
            ["down", "up"].iter().for_each(|state| pair.ends.must(0, &format!("link set {} {state}", pair.near)));
            pair.connects();
            let file = directory.join(clock);
            let device = format!("af_packet:{},direction=in,time={clock}", pair.near);
            let to = format!("pcap:{}", file.display());
            let started = pair.steerage(&["fanout", &device, "-f", "ether proto 0x88f7", "--to", &to]);
            must(0, &["python3", "-c", STAMP_PTP, &pair.near]);
            must(1, &["python3", "-c", SEND_PTP, &pair.far, &address, &FRAMES.to_string()]);
            until("all frames have arrived", || pair.count_now(&started).0 == FRAMES);
            let report = started.stop_at_rest();
            assert_eq!((received(&report), &queues(&report)[0]["mode"]), (FRAMES, &mode), "{report}");
            let times = must(0, &["tcpdump", "-ttnr", file.to_str().unwrap()]);
            let times: Vec<u64> = times.lines().map(|line| line.split('.').next().unwrap().parse().unwrap()).collect();
            let by_card = times.iter().filter(|time| (1_000_000..2_000_000).contains(*time)).count();
            let by_system = times.iter().filter(|time| **time > 1_000_000_000).count();
            assert_eq!((by_card, by_system), (stamped, FRAMES - stamped), "{clock}: {times:?}");
            pair.found(&format!("time={clock}: {by_card} frames of {FRAMES} with the card's time"));
        }
    });
}
