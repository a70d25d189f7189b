use std::net::UdpSocket;

use steerage::testing::QueueTester;
use steerage::{Builder, Running, Timestamp, device::Polled, limits::POLL_BUDGET, stats::DropReason};
use steerage_device::{open, output};
use steerage_fixtures::handlers::{Wire, end};
use steerage_fixtures::namespaces::{Echo, Namespaces, address, converse, ping, tcp_transfer, udp_exchange};
use steerage_fixtures::{assert_at_rest, until};

fn wire(namespaces: &Namespaces, specs: [&str; 2]) -> Running<()> {
    let mut builder = Builder::new().virtual_cpus(2).check_order(true);
    let mut queues = Vec::new();
    for (nth, spec) in specs.into_iter().enumerate() {
        let input = namespaces.within(nth, || open(spec).unwrap());
        queues.push(input.queues.len());
        // The output has the same name as the input, so both share the interface.
        let bare = spec.split(',').next().unwrap();
        let output = namespaces.within(nth, || output::open(bare).unwrap());
        assert_eq!((input.name.get(), input.kind), (output.name.get(), output.kind));
        namespaces.address(nth, nth + 1, &input.name.get());
        builder = builder.input(input).output(output);
    }
    let first = queues[0];
    builder.build(move |_| Wire(first)).unwrap().start().unwrap()
}

#[test]
fn two_kernels_speak_over_two_taps() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tap:left", "tap:right"]);
    converse(&namespaces, 0, 1);
    let ledger = end(running);
    assert!(ledger.outputs.iter().all(|output| output.packets > 1000 && output.error.is_none()));
    assert_eq!(ledger.verdicts().transmitted, ledger.outputs.iter().map(|output| output.packets).sum::<u64>());
}

#[test]
fn two_kernels_route_over_two_tuns() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tun:left", "tun:right,mtu=1400"]);
    converse(&namespaces, 0, 1);
    namespaces.must(1, "addr add 10.220.0.5/32 dev lo");
    namespaces.must(0, "route add 10.220.0.0/16 dev left");
    namespaces.within(0, || ping(address("10.220.0.5"), 56));
    end(running);
}

#[test]
fn the_kernel_spreads_flows_over_queues() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tap:left,queues=4", "tap:right,queues=4"]);
    converse(&namespaces, 0, 1);
    let echo = namespaces.within(1, || Echo::new(address("10.210.0.2")));
    let at = echo.1;
    namespaces.within(0, || (0..64).for_each(|_| udp_exchange(at, 1, 100)));
    let ledger = end(running);
    assert_eq!(ledger.queues.len(), 8);
    for side in ledger.queues.chunks(4) {
        assert!(side.iter().filter(|queue| queue.received > 0).count() > 1, "all came by one queue");
    }
}

/// Sends datagrams to an address for which the kernel sends no neighbour requests.
fn shoot(namespaces: &Namespaces, from: usize, device: &str, count: usize, bytes: usize) {
    let to = format!("10.210.0.{}", 2 - from);
    namespaces.must(from, &format!("neigh replace {to} lladdr 02:00:00:00:00:01 dev {device} nud permanent"));
    namespaces.within(from, || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        (0..count).for_each(|_| drop(socket.send_to(&vec![0; bytes], (to.as_str(), 9))));
    });
}

#[test]
fn one_that_is_deleted_ends_alone() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tap:left,queues=2", "tap:right"]);
    namespaces.within(0, || ping(address("10.210.0.2"), 56));
    namespaces.must(0, "link del left");
    let handle = running.handle();
    until("its queues end", || handle.snapshot().queues[..2].iter().all(|queue| queue.error.is_some()));
    until("what is sent to it is refused", || {
        shoot(&namespaces, 1, "right", 20, 100);
        handle.snapshot().dropped().get(DropReason::TxRefused) > 60
    });
    let ledger = end(running);
    let error = ledger.queues[0].error.as_ref().unwrap();
    assert_eq!(error.message, "left: cannot receive from the interface: the interface was deleted");
    let error = ledger.outputs[0].error.as_deref();
    assert_eq!(error, Some("left: cannot send by the interface: the interface was deleted"));
    assert!(ledger.queues[2].error.is_none() && ledger.outputs[1].error.is_none());
}

#[test]
fn when_all_are_deleted_it_ends() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tun:left", "tun:right"]);
    namespaces.must(0, "link del left");
    namespaces.must(1, "link del right");
    assert_at_rest(&running.join().snapshot);
}

#[test]
fn one_that_is_down_refuses_and_goes_on_when_it_is_up() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tap:left", "tap:right"]);
    namespaces.within(0, || ping(address("10.210.0.2"), 56));
    namespaces.must(0, "link set left down");
    let handle = running.handle();
    until("what is sent to it is refused", || {
        shoot(&namespaces, 1, "right", 20, 100);
        handle.snapshot().dropped().get(DropReason::TxRefused) > 60
    });
    namespaces.must(0, "link set left up");
    namespaces.must(1, "neigh del 10.210.0.1 dev right");
    namespaces.within(0, || ping(address("10.210.0.2"), 56));
    let ledger = end(running);
    assert!(ledger.queues.iter().all(|queue| queue.error.is_none()));
    assert!(ledger.outputs.iter().all(|output| output.error.is_none()));
}

/// The length of the pages is chosen for the interface's MTU at the start of the run.
#[test]
fn what_a_greater_mtu_lets_through_is_counted_as_lost() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tap:left", "tap:right"]);
    namespaces.must(0, "link set left mtu 9000");
    let handle = running.handle();
    until("long frames are counted", || {
        shoot(&namespaces, 0, "left", 10, 6000);
        handle.snapshot().dropped().get(DropReason::Device) > 10
    });
    namespaces.must(0, "neigh del 10.210.0.2 dev left");
    namespaces.within(0, || ping(address("10.210.0.2"), 56));
    end(running);
}

/// The kernel counts every packet that does not fit into the TAP's queue.
#[test]
fn what_the_kernel_drops_is_counted() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    let input = namespaces.within(0, || open("tap:slow").unwrap());
    namespaces.must(0, "addr add 10.210.0.1/24 dev slow");
    let mut tester = QueueTester::new(input.queues.into_iter().next().unwrap()).unwrap();
    until("its queue is full", || {
        shoot(&namespaces, 0, "slow", 500, 100);
        namespaces.counted(0, "slow", 11) > 0
    });
    let mut poll_until = |end, at| {
        until("the kernel's queue is empty", || tester.poll_and_count(at, POLL_BUDGET).unwrap().0 == end);
        tester.stop();
        tester.lost()
    };
    // The device reads the kernel's count of drops only at the end of the run.
    assert_eq!(poll_until(Polled::Drained, Timestamp::ZERO), 0);
    let dropped = namespaces.counted(0, "slow", 11);
    assert_eq!(poll_until(Polled::Ended, Timestamp::ZERO), dropped);
}

#[test]
fn jumbo_frames() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    let running = wire(&namespaces, ["tap:left,mtu=9000", "tap:right,mtu=9000"]);
    namespaces.within(0, || ping(address("10.210.0.2"), 8972));
    tcp_transfer(&namespaces, 0, 1, address("10.210.0.2"), 4_000_000);
    assert_eq!(end(running).dropped().get(DropReason::Device), 0);
}

#[test]
fn mistakes_are_told_in_a_line() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    let error = |spec| namespaces.within(0, || open(spec).unwrap_err().to_string());
    assert!(error("tap:lo").starts_with("lo: cannot attach to the interface: Invalid argument"), "{}", error("tap:lo"));
    assert!(error("tap:lo,queues=x").starts_with("tap: option `queues=x` is not a number"));
    let kept = namespaces.within(0, || open("tap:t").unwrap());
    assert_eq!(
        error("tap:t"),
        "t: cannot receive from the interface: this process receives from it already; name it once"
    );
    let again = "t: cannot open the interface again: it is open ";
    assert!(error("tun:t").starts_with(&format!("{again}as tap")), "{}", error("tun:t"));
    assert!(error("tap:t,queues=2").starts_with(&format!("{again}with 1 queue(s)")));
    drop(kept);
    // A forked child of another test has the interface open until it executes another program.
    let is_gone = || namespaces.within(0, || nix::net::if_::if_nametoindex("t").is_err());
    until("nobody has it open", is_gone);
    drop(namespaces.within(0, || open("tun:t,queues=2").unwrap()));
    // Another program has created a persistent interface for several queues.
    namespaces.must(0, "tuntap add dev kept mode tap multi_queue");
    for spec in ["tap:kept", "tap:kept,queues=3", "tap:kept"] {
        drop(namespaces.within(0, || open(spec).unwrap()));
    }
    namespaces.must(0, "tuntap add dev single mode tun");
    assert!(error("tun:single,queues=2").contains("Invalid argument"));
    drop(namespaces.within(0, || open("tun:single").unwrap()));
    assert!(namespaces.within(0, || nix::net::if_::if_nametoindex("single").is_ok()));
    until("it is gone again", is_gone);
}
