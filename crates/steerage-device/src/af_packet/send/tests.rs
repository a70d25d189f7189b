use steerage::{Builder, Running, Snapshot, stats::DropReason};
use steerage_fixtures::handlers::{Wire, end};
use steerage_fixtures::namespaces::{
    DATAGRAM_BYTES, MESSAGE_BYTES, Namespaces, address, any, converse, cutting_socket,
};
use steerage_fixtures::until;

use crate::{open, output};

fn sending(namespaces: &Namespaces, input: &str, to: &str) -> Running<()> {
    namespaces.within(0, || {
        let builder = Builder::new().virtual_cpus(2).check_order(true);
        let builder = builder.input(open(input).unwrap()).output(output::open(to).unwrap());
        builder.build(|_| Wire(0)).unwrap().start().unwrap()
    })
}

fn sent(snapshot: &Snapshot) -> u64 {
    snapshot.outputs[0].packets
}

fn cable() -> Option<Namespaces> {
    let namespaces = Namespaces::new(2)?;
    namespaces.veth((0, "out0"), (1, "in0"));
    Some(namespaces)
}

#[test]
fn what_is_sent_arrives() {
    let Some(namespaces) = cable() else { return };
    let mut all = 0;
    for to in ["out0", "af_packet:out0,qdisc=bypass"] {
        let ledger = sending(&namespaces, "synthetic:packets=50000,flows=1000", to).join().snapshot;
        assert_eq!((sent(&ledger), ledger.dropped().total(), ledger.received()), (50_000, 0, 50_000));
        assert_eq!(ledger.outputs[0].bytes, ledger.queues[0].received_bytes);
        all += sent(&ledger);
        // On a busy host, the backlog of the receiving end (`netdev_max_backlog`) may be full.
        let lost_by_cable = namespaces.counted(0, "out0", 11);
        let arrived = namespaces.received_by(1, "in0");
        assert_eq!(arrived + lost_by_cable, all, "{lost_by_cable} frames lost by the cable");
        assert!(arrived > 0);
    }
}

#[test]
fn what_is_none_for_the_interface_is_refused() {
    let Some(namespaces) = cable() else { return };
    let long = sending(&namespaces, "synthetic:packets=1000,size=2000", "out0").join().snapshot;
    assert_eq!((sent(&long), long.dropped().get(DropReason::TxTooLong)), (0, 1000));
    // Packets that are too long stand between short packets of a batch.
    namespaces.must(0, "link set dev out0 mtu 1000");
    let mixed = sending(&namespaces, "synthetic:packets=1000,size=1014", "out0").join().snapshot;
    assert_eq!(sent(&mixed), 1000);
    let running = sending(&namespaces, "tun:ip0", "out0");
    namespaces.address(0, 1, "ip0");
    let handle = running.handle();
    until("packets without a link header are refused", || {
        namespaces.within(0, || {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.send_to(&[0], "10.210.0.2:9").unwrap();
        });
        handle.snapshot().dropped().get(DropReason::TxLinkType) >= 10
    });
    assert_eq!(sent(&end(running)), 0);
    assert_eq!(namespaces.received_by(1, "in0"), 1000);
}

/// The TUN `far` has no offloads, so the kernel splits super-frames.
#[test]
fn packets_without_a_link_header() {
    for (near, far) in [("tun:near0", "far0"), ("tun:near0,offload=on", "af_packet:far0,offload=on")] {
        let Some(namespaces) = Namespaces::new(1) else { return };
        let (from, via) = namespaces.within(0, || (open(near).unwrap(), open("tun:far0").unwrap()));
        let sends = namespaces.within(0, || output::open(far).unwrap());
        let back = namespaces.within(0, || output::open("tun:near0").unwrap());
        let builder = Builder::new().virtual_cpus(2).input(from).input(via).output(back).output(sends);
        let running = namespaces.within(0, || builder.build(|_| Wire(1)).unwrap().start().unwrap());
        namespaces.address(0, 1, "near0");
        let handle = running.handle();
        for to in ["10.210.0.2", "fd00:210::2"] {
            let socket = namespaces.within(0, || cutting_socket(any(address(to)), DATAGRAM_BYTES));
            let before = handle.snapshot().outputs[0].bytes;
            until("messages come round", || {
                socket.send_to(&[0; MESSAGE_BYTES], (to, 9)).unwrap();
                handle.snapshot().outputs[0].bytes >= before + 10 * MESSAGE_BYTES as u64
            });
        }
        end(running);
    }
}

#[test]
fn what_finds_no_room_is_counted() {
    let Some(namespaces) = cable() else { return };
    // The queueing discipline sends 20 kB per second, and at most 3 kB of packets wait in it.
    if !namespaces.shape(0, "out0", "tbf rate 160kbit burst 2kb limit 3kb") {
        return;
    }
    let ledger = sending(&namespaces, "synthetic:packets=5000,size=1000", "out0").join().snapshot;
    let full = ledger.dropped().get(DropReason::TxFull);
    assert_eq!(sent(&ledger) + full, 5000);
    assert!(full > 2500 && sent(&ledger) >= 2, "{full} found no room");
    until("what was sent arrives", || namespaces.received_by(1, "in0") == sent(&ledger));
}

#[test]
fn a_source_that_can_wait_waits_for_room_in_the_buffer() {
    let Some(namespaces) = cable() else { return };
    if !namespaces.shape(0, "out0", "tbf rate 800mbit burst 1mb limit 60mb") {
        return;
    }
    let ledger = sending(&namespaces, "synthetic:packets=16000,size=1000", "out0").join().snapshot;
    assert_eq!((sent(&ledger), ledger.dropped().total()), (16_000, 0));
}

#[test]
fn down_up_and_gone() {
    let Some(namespaces) = cable() else { return };
    let running = sending(&namespaces, "synthetic:rate=5000", "out0");
    let handle = running.handle();
    let refused = || handle.snapshot().dropped().get(DropReason::TxRefused);
    until("it sends", || sent(&handle.snapshot()) > 100);
    namespaces.must(0, "link set dev out0 down");
    until("it refuses", || refused() > 100);
    namespaces.must(0, "link set dev out0 up");
    let before = sent(&handle.snapshot());
    until("it sends again", || sent(&handle.snapshot()) > before + 100);
    namespaces.must(0, "link del out0");
    let before = refused();
    until("it refuses for good", || refused() > before + 100);
    let ledger = end(running);
    let error = ledger.outputs[0].error.as_deref();
    assert_eq!(error, Some("out0: cannot send by the interface: the interface was deleted"));
}

#[test]
fn two_kernels_speak_over_a_tap_and_a_cable() {
    if !steerage_fixtures::is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(namespaces) = Namespaces::new(3) else { return };
    namespaces.veth((1, "out0"), (2, "far0"));
    // With checksum offload, packets on a veth pair have no checksums.
    namespaces.features(2, "far0", "tx off");
    let builder = Builder::new().virtual_cpus(2).check_order(true);
    let (tap, tap_out) = namespaces.within(0, || (open("tap:left").unwrap(), output::open("tap:left").unwrap()));
    let listened = "af_packet:out0,direction=in,timeout=1";
    let (live, live_out) = namespaces.within(1, || (open(listened).unwrap(), output::open("out0").unwrap()));
    namespaces.address(0, 1, "left");
    namespaces.address(2, 2, "far0");
    let builder = builder.input(tap).input(live).output(tap_out).output(live_out);
    let running = builder.build(|_| Wire(1)).unwrap().start().unwrap();
    converse(&namespaces, 0, 2);
    let ledger = end(running);
    assert!(ledger.outputs.iter().all(|output| output.packets > 1000 && output.error.is_none()));
}

#[test]
fn mistakes_are_told_in_a_line() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    let error = |spec| namespaces.within(0, || output::open(spec).unwrap_err().to_string());
    assert!(error("af_packet:none0").starts_with("none0: cannot look at the interface: No such device"));
    assert_eq!(
        error("af_packet:lo,queues=2"),
        "af_packet: option `queues=2` does not exist for an output: there are qdisc, offload"
    );
    assert_eq!(error("af_packet:lo,qdisc=no"), "af_packet: option `qdisc=no` is none of use, bypass");
    assert!(error("none0").starts_with("output none0: there is no interface of that name"));
}
