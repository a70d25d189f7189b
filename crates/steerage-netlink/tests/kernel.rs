//! Sends requests to the kernel of the machine that runs the tests.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage_fixtures::HANG;
use steerage_fixtures::namespaces::Namespaces;
use steerage_netlink::ethtool::Ethtool;
use steerage_netlink::{Change, Changes, Entry, NextHop, Route, RouteType, Rtnetlink, Uevents, XdpPlace, netdev};

/// Namespace 0 has the address 192.0.2.1, two special routes, and the neighbour 192.0.2.2.
fn cable() -> Option<Namespaces> {
    let namespaces = Namespaces::new(2)?;
    namespaces.veth((0, "near0"), (1, "far0"));
    namespaces.must(0, "addr add 192.0.2.1/24 dev near0");
    namespaces.must(0, "route add 10.0.0.0/8 metric 7 nexthop via 192.0.2.2 weight 3 nexthop via 192.0.2.3");
    namespaces.must(0, "route add blackhole fd00:1::/32");
    namespaces.must(0, "neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev near0");
    Some(namespaces)
}

#[test]
fn a_link_is_described() {
    let Some(namespaces) = cable() else { return };
    namespaces.within(0, || {
        let mut kernel = Rtnetlink::open().unwrap();
        let link = kernel.link("near0").unwrap();
        assert_eq!(link.index, if_nametoindex("near0").unwrap());
        assert_eq!((link.name.as_deref(), link.kind.as_deref()), (Some("near0"), Some("veth")));
        assert_eq!((link.hardware, link.up, link.mtu), (1, true, Some(1500)));
        assert_eq!(link.address.map(|address| address.len()), Some(6));
        assert_eq!(link.programs, []);
        let loopback = kernel.link("lo").unwrap();
        assert_eq!((loopback.hardware, loopback.kind), (772, None));
    });
}

#[test]
fn statistics_count_what_was_sent() {
    let Some(namespaces) = cable() else { return };
    namespaces.within(0, || {
        let index = if_nametoindex("near0").unwrap();
        let mut kernel = Rtnetlink::open().unwrap();
        let before = kernel.link_at(index).unwrap().statistics.unwrap();
        let socket = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
        for _ in 0..10 {
            socket.send_to(&[0; 100], "192.0.2.2:9").unwrap();
        }
        let after = kernel.link_at(index).unwrap().statistics.unwrap();
        assert!(after.tx_packets >= before.tx_packets + 10 && after.tx_bytes >= before.tx_bytes + 1420);
        assert!(kernel.link_at(1 << 20).is_err());
    });
}

#[test]
fn a_link_is_set() {
    let Some(namespaces) = cable() else { return };
    namespaces.must(0, "link set near0 down");
    namespaces.within(0, || {
        let mut kernel = Rtnetlink::open().unwrap();
        let index = kernel.link("near0").unwrap().index;
        kernel.set_mtu(index, 1300).unwrap();
        kernel.set_up(index).unwrap();
        let link = kernel.link("near0").unwrap();
        assert_eq!((link.mtu, link.up), (Some(1300), true));
        assert!(kernel.set_mtu(index, 1 << 24).is_err());
    });
}

#[test]
fn all_tables_are_listed() {
    let Some(namespaces) = cable() else { return };
    let mut entries = Vec::new();
    let index = namespaces.within(0, || {
        Rtnetlink::open().unwrap().list(&mut |change| entries.push(change.entry)).unwrap();
        if_nametoindex("near0").unwrap()
    });
    let is_there = |wanted: &dyn Fn(&Entry) -> bool| entries.iter().any(wanted);
    assert!(is_there(&|entry| matches!(entry, Entry::Link(link) if link.name.as_deref() == Some("near0"))));
    assert!(is_there(&|entry| matches!(
        entry,
        Entry::Address(it) if (it.link, it.address.to_string().as_str(), it.prefix_bits) == (index, "192.0.2.1", 24)
    )));
    let hop = |gateway: [u8; 4], weight| NextHop { link: index, gateway: Some(gateway.into()), weight };
    let several = Route {
        table: 254,
        prefix: ([10, 0, 0, 0].into(), 8),
        metric: 7,
        kind: RouteType::Unicast,
        hops: vec![hop([192, 0, 2, 2], 3), hop([192, 0, 2, 3], 1)],
        encapsulates: false,
        is_special: false,
        is_appended: false,
    };
    assert!(is_there(&|entry| *entry == Entry::Route(several.clone())), "{entries:?}");
    assert!(is_there(&|entry| matches!(
        entry,
        Entry::Route(it) if it.prefix == ("fd00:1::".parse().unwrap(), 32) && it.kind == RouteType::BlackHole
    )));
    assert!(is_there(&|entry| matches!(
        entry,
        Entry::Neighbour(it) if it.link == index && it.link_address.as_deref() == Some(&[2, 0, 0, 0, 0, 2])
    )));
}

fn has_mtu(change: &Change, mtu: usize) -> bool {
    change.is_there && matches!(&change.entry, Entry::Link(link) if link.mtu == Some(mtu))
}

fn until(changes: &mut Changes, last: impl Fn(&Change) -> bool) -> Vec<Change> {
    let start = Instant::now();
    let mut all = Vec::new();
    while !all.iter().any(&last) {
        assert!(start.elapsed() < HANG, "the change does not come: {all:?}");
        poll(&mut [PollFd::new(changes.as_fd(), PollFlags::POLLIN)], PollTimeout::from(1000_u16)).unwrap();
        assert!(changes.read(&mut |change| all.push(change)), "some were lost");
    }
    all
}

#[test]
fn changes_come_and_those_of_one_link_can_be_had_alone() {
    let Some(namespaces) = cable() else { return };
    let (mut all, mut one) = namespaces
        .within(0, || (Changes::of_all().unwrap(), Changes::of_link(if_nametoindex("near0").unwrap()).unwrap()));
    namespaces.must(0, "link set lo mtu 9000");
    namespaces.must(0, "link set near0 mtu 1400");
    namespaces.must(0, "route add 10.9.0.0/16 via 192.0.2.2");
    namespaces.must(0, "route del 10.9.0.0/16");
    namespaces.must(0, "link del near0");
    let is_route = |change: &Change, is_there: bool| {
        change.is_there == is_there && matches!(&change.entry, Entry::Route(route) if route.prefix.1 == 16)
    };
    let name = |change: &Change, is_there: bool| match &change.entry {
        Entry::Link(link) if change.is_there == is_there => link.name.clone(),
        _ => None,
    };
    let is_end = |change: &Change| name(change, false).as_deref() == Some("near0");
    let changes = until(&mut all, is_end);
    assert!(
        changes.iter().any(|change| is_route(change, true)) && changes.iter().any(|change| is_route(change, false))
    );
    assert!(changes.iter().any(|change| name(change, true).as_deref() == Some("lo")));
    let changes = until(&mut one, is_end);
    assert!(changes.iter().all(|change| name(change, true).or(name(change, false)).as_deref() == Some("near0")));
    assert!(changes.iter().any(|change| has_mtu(change, 1400)), "{changes:?}");
}

#[test]
fn lost_changes_are_reported() {
    let Some(namespaces) = cable() else { return };
    let mut changes = namespaces.within(0, || Changes::of_link(if_nametoindex("near0").unwrap()).unwrap());
    rustix::net::sockopt::set_socket_recv_buffer_size(&changes, 1).unwrap();
    for mtu in 1300..1310 {
        namespaces.must(0, &format!("link set near0 mtu {mtu}"));
    }
    assert!(!changes.read(&mut |_| {}));
    // The socket still receives later changes.
    namespaces.must(0, "link set near0 mtu 1400");
    until(&mut changes, |change| has_mtu(change, 1400));
}

/// The loopback interface has features, but no queues.
#[test]
fn features_and_queues_are_those_of_the_interface() {
    let Ok(mut ethtool) = Ethtool::open() else {
        return steerage_fixtures::skip("this kernel has no ethtool by netlink");
    };
    let features = ethtool.features("lo").unwrap();
    assert!(
        features.is_on("loopback") && !features.changeable.iter().any(|name| name == "rx-ntuple-filter"),
        "{features:?}"
    );
    assert!(!features.is_on("no-such-feature"));
    assert_eq!(ethtool.stamped_frames("lo").unwrap(), [""; 0]);
    assert_eq!(ethtool.channels("lo").unwrap_err().kind(), io::ErrorKind::Unsupported);
    let Some(namespaces) = cable() else { return };
    namespaces.must(0, "link add many0 numrxqueues 3 numtxqueues 2 type veth peer name many1");
    namespaces.within(0, || {
        let mut ethtool = Ethtool::open().unwrap();
        let channels = ethtool.channels("many0").unwrap();
        assert_eq!((channels.receiving(), channels.sending(), channels.combined), (3, 2, 0));
    });
}

#[test]
fn queues_are_set_and_uevents_report_them() {
    let Some(namespaces) = cable() else { return };
    namespaces.must(0, "link add many0 numrxqueues 3 numtxqueues 3 type veth peer name many1");
    namespaces.within(0, || {
        let mut ethtool = Ethtool::open().unwrap();
        let mut events = Uevents::open().unwrap();
        for (queues, action) in [(2, "remove"), (3, "add")] {
            ethtool.set_channels("many0", Some(queues), None, None).unwrap();
            assert_eq!(ethtool.channels("many0").unwrap().receiving(), queues);
            let mut seen = false;
            steerage_fixtures::until("the event of the queue", || {
                assert!(
                    events.read(&mut |what, path| seen |= what == action && path.ends_with("/net/many0/queues/rx-2"))
                );
                seen
            });
        }
        assert!(ethtool.set_channels("many0", Some(99), None, None).is_err());
        assert_eq!(ethtool.rings("lo").unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert!(ethtool.set_rings("lo", Some(512), None).is_err());
        assert!(ethtool.rss("lo").is_err() && ethtool.set_rss_table("lo", &[0]).is_err());
        assert!(ethtool.set_rss_key("lo", &[1; 40]).is_err());
    });
}

#[test]
fn what_the_kernel_refuses_it_explains() {
    let Ok(mut ethtool) = Ethtool::open() else {
        return steerage_fixtures::skip("this kernel has no ethtool by netlink");
    };
    let error = ethtool.features("no-such-if").unwrap_err().to_string();
    assert!(error.contains("os error 19") && error.contains("no device"), "{error}");
    let error = Rtnetlink::open().unwrap().link("no-such-if").unwrap_err();
    assert!(error.to_string().contains("os error 19"), "{error}");
    assert!(ethtool.features("lo").is_ok());
}

#[test]
fn drivers_report_their_support_of_xdp() {
    let Some(namespaces) = cable() else { return };
    namespaces.within(0, || {
        let Ok(support) = netdev::xdp_support(if_nametoindex("near0").unwrap()) else {
            return steerage_fixtures::skip("this kernel does not report the support of XDP");
        };
        assert!(support.driver && !support.zero_copy, "{support:?}");
        // A veth offers either all kinds of packet metadata or none.
        assert!(support.hash == support.time && support.time == support.vlan_tag, "{support:?}");
        assert!(netdev::xdp_support(1 << 20).is_err());
        let index = if_nametoindex("near0").unwrap();
        Rtnetlink::open().unwrap().exchange_xdp_program(index, XdpPlace::Generic, None, None).unwrap();
        assert!(Rtnetlink::open().unwrap().exchange_xdp_program(1 << 20, XdpPlace::Generic, None, None).is_err());
    });
}
