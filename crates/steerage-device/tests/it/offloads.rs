//! Tests super-frames (frames that hold several packets of a flow) between two kernels. The
//! super-frames are received whole, steered as one packet, and then sent whole, cut, or merged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use steerage::{Builder, CpuMask, Running, Snapshot};
use steerage_device::af_packet::{AfPacketOptions, AfPacketOutput, Direction};
use steerage_device::{open, output};
use steerage_fixtures::handlers::{Wire, end};
use steerage_fixtures::namespaces::{
    Namespaces, address, converse, datagrams_in_one_piece, tcp_transfer, tcp_transfer_in_steps,
};
use steerage_fixtures::{is_installed, until};

const BYTES: usize = 20_000_000;

fn wire(namespaces: &Namespaces, specs: [&str; 2]) -> Running<()> {
    let mut builder = Builder::new().virtual_cpus(2).check_order(true);
    for (nth, spec) in specs.into_iter().enumerate() {
        let input = namespaces.within(nth, || open(spec).unwrap());
        let output = namespaces.within(nth, || output::open(spec).unwrap());
        namespaces.address(nth, nth + 1, &input.name.get());
        builder = builder.input(input).output(output);
    }
    builder.build(|_| Wire(1)).unwrap().start().unwrap()
}

fn tcp_count(namespaces: &Namespaces, nth: usize, file: &str, name: &str) -> u64 {
    namespaces.within(nth, || {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let found = lines.chunks(2).find_map(|pair| {
            let at = pair[0].split_whitespace().position(|word| word == name)?;
            pair[1].split_whitespace().nth(at)?.parse().ok()
        });
        found.unwrap()
    })
}

fn counted(ledger: &Snapshot, queue: usize, name: &str) -> u64 {
    ledger.queues[queue].device_counts.iter().find(|(each, _)| *each == name).unwrap().1
}

fn interfaces_are_gone(namespaces: &Namespaces) {
    until("the interfaces are gone", || {
        (0..2).all(|nth| {
            let name = ["left", "right"][nth];
            namespaces.within(nth, || nix::net::if_::if_nametoindex(name).is_err())
        })
    });
}

#[test]
fn two_kernels_exchange_super_frames() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    for layer in ["tun", "tap"] {
        let specs = [format!("{layer}:left,offload=on"), format!("{layer}:right,offload=on")];
        let running = wire(&namespaces, [&specs[0], &specs[1]]);
        converse(&namespaces, 0, 1);
        for to in ["10.210.0.2", "fd00:210::2"] {
            datagrams_in_one_piece(&namespaces, 0, 1, address(to));
            tcp_transfer(&namespaces, 0, 1, address(to), BYTES);
        }
        // Read the number of arrived packets now, because the interfaces disappear at the end of
        // the run.
        let arrived = namespaces.received_by(1, "right");
        let ledger = end(running);
        assert_eq!(namespaces.checksum_errors(), 0);
        let (super_frames, packets) = (counted(&ledger, 0, "super_frames"), counted(&ledger, 0, "wire_packets"));
        assert!(super_frames > 100 && packets > ledger.queues[0].received, "{super_frames} of {packets}");
        assert_eq!(counted(&ledger, 0, "wire_bytes"), ledger.queues[0].received_bytes);
        assert_eq!(counted(&ledger, 0, "bad_offloads") + counted(&ledger, 1, "bad_offloads"), 0);
        let sent = ledger.outputs[1].packets;
        assert!(arrived <= sent && sent < packets, "{arrived} of {sent}, {packets} on the wire");
        interfaces_are_gone(&namespaces);
    }
}

#[test]
fn super_frames_are_cut_where_they_must_be_and_packets_are_merged_where_they_can() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tun:left,offload=on", "tun:right"]);
    converse(&namespaces, 0, 1);
    for (to, back) in [("10.210.0.2", "10.210.0.1"), ("fd00:210::2", "fd00:210::1")] {
        datagrams_in_one_piece(&namespaces, 0, 1, address(to));
        tcp_transfer(&namespaces, 0, 1, address(to), BYTES);
        tcp_transfer(&namespaces, 1, 0, address(back), BYTES);
    }
    let (right, left) = (namespaces.received_by(1, "right"), namespaces.received_by(0, "left"));
    let ledger = end(running);
    assert_eq!(namespaces.checksum_errors(), 0);
    assert!(counted(&ledger, 0, "super_frames") > 100);
    // Super-frames to `right` were split, and packets to `left` were merged.
    assert!(right > ledger.outputs[1].packets, "{right}");
    assert!(left < ledger.outputs[0].packets, "{left}");
}

#[test]
fn order_is_kept_while_masks_change() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tun:left,offload=on", "tun:right,offload=on"]);
    converse(&namespaces, 0, 1);
    let (handle, done) = (running.handle(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // The number of changes of the CPU mask is limited, so that the test ends even if a
            // transfer fails.
            for nth in 0..6000 {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let mask = CpuMask::parse_list(["0", "1", "0-1"][nth % 3], 2).unwrap();
                handle.set_rps_cpus(&mask).unwrap();
                thread::sleep(Duration::from_millis(10));
            }
        });
        (0..3).for_each(|_| tcp_transfer(&namespaces, 0, 1, address("10.210.0.2"), BYTES));
        done.store(true, Ordering::Relaxed);
    });
    let ledger = end(running);
    assert_eq!(tcp_count(&namespaces, 0, "netstat", "TCPSACKReorder"), 0);
    assert_eq!(namespaces.checksum_errors(), 0);
    assert!(ledger.queues.iter().all(|queue| queue.reordered == Some(0)));
}

/// With the feature `tx` off, the kernel completes checksums before sending. `tso` and `gso`
/// require `tx`.
const FEATURES: [&str; 8] = [
    "tso off",
    "gso off",
    "gro off",
    "tx off",
    "tx on",
    "gso on tso on",
    "tx off tso off gso off",
    "tx on tso on gso on gro on",
];

const SWITCHES: usize = 4 * FEATURES.len();

fn transfer_while_features_change(namespaces: &Namespaces, to: &str, interfaces: &[(usize, &str)]) {
    let change = |part: usize| {
        for (nth, device) in interfaces {
            namespaces.features(*nth, device, FEATURES[part % FEATURES.len()]);
        }
    };
    tcp_transfer_in_steps(namespaces, (0, 1), address(to), (BYTES, SWITCHES), change);
}

#[test]
fn a_transfer_between_tuns_survives_changing_features() {
    if !is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(namespaces) = Namespaces::new(2) else { return };
    for layer in ["tun", "tap"] {
        let specs = [format!("{layer}:left,offload=on"), format!("{layer}:right,offload=on")];
        let running = wire(&namespaces, [&specs[0], &specs[1]]);
        converse(&namespaces, 0, 1);
        for to in ["10.210.0.2", "fd00:210::2"] {
            transfer_while_features_change(&namespaces, to, &[(0, "left"), (1, "right")]);
            datagrams_in_one_piece(&namespaces, 0, 1, address(to));
        }
        let ledger = end(running);
        assert_eq!(namespaces.checksum_errors(), 0);
        let (super_frames, received) = (counted(&ledger, 0, "super_frames"), ledger.queues[0].received);
        assert!(super_frames > 100 && super_frames < received, "{super_frames} of {received}");
        interfaces_are_gone(&namespaces);
    }
}

#[test]
fn packet_sockets_pass_super_frames_on_while_features_change() {
    if !is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(namespaces) = Namespaces::new(3) else { return };
    for (nth, (ours, theirs)) in [("r0", "left"), ("r1", "right")].into_iter().enumerate() {
        namespaces.veth((2, ours), (nth, theirs));
        namespaces.address(nth, nth + 1, theirs);
    }
    let running = namespaces.within(2, || {
        let mut builder = Builder::new().virtual_cpus(2).check_order(true);
        for name in ["r0", "r1"] {
            let options = AfPacketOptions::new(name).direction(Direction::In).offloads(true);
            let options = options.block_timeout(Duration::from_millis(1));
            builder = builder.input(options.open().unwrap().input);
            builder = builder.output(AfPacketOutput::new(name).offloads(true).open().unwrap());
        }
        builder.build(|_| Wire(1)).unwrap().start().unwrap()
    });
    converse(&namespaces, 0, 1);
    for to in ["10.210.0.2", "fd00:210::2"] {
        transfer_while_features_change(&namespaces, to, &[(0, "left"), (1, "right"), (2, "r0"), (2, "r1")]);
        datagrams_in_one_piece(&namespaces, 0, 1, address(to));
    }
    let ledger = end(running);
    assert_eq!(namespaces.checksum_errors(), 0);
    let (sent, arrived) = (ledger.outputs[1].packets, ledger.outputs[1].bytes);
    assert!(arrived / sent > 1514, "{arrived} bytes in {sent} frames");
}
