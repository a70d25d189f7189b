#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/async_service.rs"]
mod async_service;
#[path = "../../examples/channel.rs"]
mod channel;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/counter.rs"]
mod counter;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/dns_rates.rs"]
mod dns_rates;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/dpi.rs"]
mod dpi;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/driver_picks.rs"]
mod driver_picks;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/elephants.rs"]
mod elephants;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/firewall.rs"]
mod firewall;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/flow_table.rs"]
mod flow_table;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/ids.rs"]
mod ids;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/ids_live.rs"]
mod ids_live;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/nic.rs"]
mod nic;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/quic_cid.rs"]
mod quic_cid;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/tokio.rs"]
mod tokio_example;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/udp_device.rs"]
mod udp_device;
#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/unix_device.rs"]
mod unix_device;

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use steerage::Snapshot;
use steerage_device::af_packet::{AfPacketOptions, Direction};
use steerage_fixtures::HANG;
use steerage_fixtures::cable::{NEAR, Net};

fn assert_at_rest(snapshot: &Snapshot, received: u64) {
    assert_eq!(snapshot.received(), received);
    steerage_fixtures::assert_at_rest(snapshot);
}

#[test]
fn a_channel_ends_when_its_sender_does() {
    channel::main().unwrap();
}

#[test]
fn the_counter_counts_everything() {
    let outcome = counter::run("synthetic:packets=100000,size=100,mix=udp4+tcp6").unwrap();
    let packets: u64 = outcome.reports.iter().map(|(_, counter)| counter.packets).sum();
    let bytes: u64 = outcome.reports.iter().map(|(_, counter)| counter.bytes).sum();
    assert_eq!((packets, bytes), (100_000, 10_000_000));
    assert_eq!((outcome.left_behind.len(), outcome.failed.len()), (0, 0));
    assert_eq!(outcome.snapshot.delivered(), 100_000);
    assert_at_rest(&outcome.snapshot, 100_000);
}

#[test]
fn the_counter_says_what_is_wrong() {
    let error = counter::run("synthetic:packets=many").unwrap_err();
    assert!(error.to_string().contains("packets=many"), "{error}");
}

#[test]
fn a_ring_of_pages_keeps_those_of_short_frames() {
    for (copybreak, copied) in [(0, 0), (59, 0), (60, 50_000), (1513, 50_000), (1514, 100_000), (usize::MAX, 100_000)] {
        let outcome = nic::run(100_000, copybreak).unwrap();
        let frames: u64 = outcome.reports.iter().map(|(_, sums)| sums.0).sum();
        let numbers: u64 = outcome.reports.iter().map(|(_, sums)| sums.1).sum();
        assert_eq!((frames, numbers), (100_000, (0..100_000).sum()));
        assert_eq!(outcome.snapshot.queues[0].pool.rx_copybreak, copied, "{copybreak}");
        assert_at_rest(&outcome.snapshot, 100_000);
    }
}

#[test]
fn by_connection_id_a_connection_stays_on_its_cpu() {
    let (by_cid, by_address) = quic_cid::run(4, 200).unwrap();
    assert!(by_cid.scattered.is_empty(), "{:?}", by_cid.scattered);
    assert!(by_cid.by_cpu.iter().all(|(_, connections)| *connections > 0), "{:?}", by_cid.by_cpu);
    assert_eq!(by_cid.by_cpu.iter().map(|(_, connections)| connections).sum::<usize>(), 200);
    // With random buckets on 4 CPUs, a connection's three buckets are all on one CPU with
    // probability 1/16.
    assert!(by_address.scattered.len() > 150, "{}", by_address.scattered.len());
    for seen in [by_cid, by_address] {
        assert_eq!(seen.snapshot.delivered(), 4 * 200);
        assert_at_rest(&seen.snapshot, 4 * 200);
    }
}

#[test]
fn flows_move_with_their_buckets() {
    let outcome = flow_table::run("synthetic:packets=1000000,flows=5000", 4).unwrap();
    assert_eq!(outcome.snapshot.delivered(), 1_000_000);
    assert_eq!(outcome.flows.len(), 5000);
    assert_eq!(outcome.flows.values().map(|flow| flow.packets).sum::<u64>(), 1_000_000);
    assert_eq!(outcome.flows.values().map(|flow| flow.gaps).sum::<u64>(), 0);
    assert!(outcome.flows.values().any(|flow| flow.moves > 0));
    assert_at_rest(&outcome.snapshot, 1_000_000);
}

#[test]
fn what_the_driver_picks_stays_together() {
    const PACKETS: u32 = 20_000;
    let cpus: steerage::CpuMask = (0..4).map(steerage::CpuId).collect();
    let outcome = driver_picks::run(driver_picks::Card { next: 0, left: PACKETS }, cpus).unwrap();
    assert_at_rest(&outcome.snapshot, u64::from(PACKETS));
    assert_eq!((outcome.snapshot.reordered(), &*outcome.snapshot.queues[0].hash), (Some(0), "device"));
    let tenants: Vec<u8> = outcome.reports.iter().flat_map(|(_, tenants)| tenants.iter().copied()).collect();
    assert_eq!(tenants.len(), usize::from(driver_picks::TENANTS), "a tenant was on two CPUs");
    assert!(outcome.reports.iter().all(|(_, tenants)| !tenants.is_empty()), "a CPU had no tenant");
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn wait_for(said: &Receiver<String>, wanted: &str) -> String {
    loop {
        let line = said.recv_timeout(HANG).unwrap_or_else(|_| panic!("no line says {wanted}"));
        if line.contains(wanted) {
            return line;
        }
    }
}

#[test]
fn an_ids_alerts_live_and_reloads_its_rules() {
    let Some(net) = Net::new() else { return };
    let rules = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ids-rules.txt");
    fs::write(&rules, "7000 2 twice\n").unwrap();
    let options = || AfPacketOptions::new("near0").direction(Direction::In).filtered("udp").unwrap();
    let inputs = vec![net.near(|| options().open().unwrap().input)];
    let stop = AtomicBool::new(false);
    let (say, said) = mpsc::channel();
    let send = |port: u16| net.far(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", (NEAR, port)).unwrap());
    let done = thread::scope(|scope| {
        let at_end = StopAtEnd(&stop);
        let (rules, stop) = (&rules, &stop);
        let running = scope.spawn(move || {
            let done = ids_live::run(inputs, rules, stop, |line| say.send(line).unwrap_or_default());
            done.map_err(|error| error.to_string())
        });
        let client = net.far(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        for _ in 0..3 {
            client.send_to(b"x", (NEAR, 7000)).unwrap();
        }
        assert!(wait_for(&said, "ALERT ").contains("twice: udp 10.209.0.2:"));
        fs::write(rules, "7001 1 once\n# and no more\n").unwrap();
        wait_for(&said, "new rules: 1");
        send(7000);
        send(7001);
        assert!(wait_for(&said, "ALERT ").contains("once: udp 10.209.0.2:"));
        fs::write(rules, "nonsense\n").unwrap();
        wait_for(&said, "`nonsense` is no rule: write such as `23 1 telnet`; the old rules stay");
        wait_for(&said, " packets, 0 dropped");
        drop(at_end);
        running.join().unwrap()
    });
    assert_eq!(done, Ok(ids_live::Done { alerts: 2, alerts_lost: 0, expired: 0 }));
}

fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("\n```{language}\n");
    page.split(fence.as_str()).skip(1).map(|rest| rest.split("\n```").next().unwrap_or_default()).collect()
}

fn crates_of(program: &str) -> BTreeSet<String> {
    const KNOWN: [&str; 3] = ["signal_hook", "tokio", "steerage"];
    let words = program.split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | ':'));
    let roots = words.filter_map(|word| word.split_once("::")).map(|(root, _)| root);
    roots.filter(|root| KNOWN.iter().any(|known| root.starts_with(known))).map(|root| root.replace('_', "-")).collect()
}

fn dependencies(block: &str) -> BTreeSet<String> {
    block.lines().filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect()
}

/// `.ci/full as_pasted` builds the tutorial's code blocks in a new package.
#[test]
fn the_tutorial_is_the_program() {
    let page = include_str!("../../../../docs/write-an-ids.md");
    let source = include_str!("../../examples/ids_live.rs");
    let pasted = blocks(page, "rust,ignore").join("\n\n") + "\n";
    let program = &source[source.find("\nuse ").map_or(0, |at| at + 1)..];
    assert!(pasted == program, "docs/write-an-ids.md and ids_live.rs differ");
    assert_eq!(page.matches("\n```rust").count(), blocks(page, "rust,ignore").len(), "a block is not compared");
    assert_eq!(dependencies(blocks(page, "toml")[0]), crates_of(program));
}

/// Each code block is a whole program without hidden lines, and uses only the crates that the guide
/// names at its beginning. The code blocks also run as documentation tests.
#[test]
fn the_guide_has_whole_programs() {
    let page = include_str!("../../../../docs/functions.md");
    let programs = [blocks(page, "rust"), blocks(page, "rust,no_run")].concat();
    assert_eq!(programs.len(), page.matches("\n```rust").count(), "a block has another language");
    let named = dependencies(blocks(page, "toml")[0]);
    let mut used = BTreeSet::new();
    for program in programs {
        assert!(program.contains("\nfn main() "), "this block has no `main`:\n{program}");
        assert!(!program.lines().any(|line| line == "#" || line.starts_with("# ")), "a hidden line:\n{program}");
        used.extend(crates_of(program));
    }
    assert_eq!(named, used);
}
