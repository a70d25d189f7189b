use std::net::{SocketAddr, UdpSocket};
use std::{fs, io};

use nix::sys::socket::{setsockopt, sockopt};
use steerage::device::TxQueue;
use steerage::flow::offload::OffloadKind;
use steerage::stats::DropReason;
use steerage::testing::QueueTester;
use steerage::{Batch, Builder, Cpu, Handle, Handler, Timestamp, TxId, limits::POLL_BUDGET};
use steerage_fixtures::namespaces::{Namespaces, cutting_socket};
use steerage_fixtures::{HANG, until};

use super::{Udp, UdpOptions};

fn open(address: &str) -> Udp {
    UdpOptions::new(address.parse().unwrap()).open().unwrap()
}

fn reached(udp: &Udp, ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), udp.local_addr().port())
}

/// The kernel splits messages that are sent through this socket into datagrams of `bytes` bytes.
fn peer(ip: &str, bytes: usize) -> UdpSocket {
    let socket = cutting_socket(ip.parse().unwrap(), bytes);
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket
}

#[test]
fn a_merged_datagram_is_one_frame_with_the_addresses_of_both_ends() {
    for (bound, ip, headers) in [("0.0.0.0:0", "127.0.0.1", 28), ("[::]:0", "::1", 48), ("[::]:0", "127.0.0.1", 28)] {
        let udp = open(bound);
        let peer = peer(ip, 1000);
        let payload: Vec<u8> = (0..20_500_u32).map(|nth| (nth / 1000 * 3 + nth) as u8).collect();
        peer.send_to(&payload, reached(&udp, ip)).unwrap();
        peer.send_to(b"last", reached(&udp, ip)).unwrap();
        let mut tester = QueueTester::new(udp.input().unwrap().queues.remove(0)).unwrap();
        let mut frames = Vec::new();
        until("both come", || {
            frames.extend(tester.poll(Timestamp::ZERO, POLL_BUDGET).unwrap().1);
            frames.len() >= 2
        });
        assert_eq!((frames.len(), tester.lost()), (2, 0));
        assert_eq!(frames[0].len(), headers + payload.len());
        assert!(frames[0][headers..] == payload[..], "the payload is unchanged");
        assert_eq!(frames[1][headers..], *b"last");
        // On the wire, each of the 21 datagrams in the super-frame has its own headers.
        assert_eq!(tester.wire_bytes(), (20_500 + 21 * headers + headers + 4) as u64);
        for frame in &frames {
            let (ends, at) = super::headers::read(frame, frame.len()).unwrap();
            assert_eq!((ends.source, ends.destination, at), (peer.local_addr().unwrap(), reached(&udp, ip), headers));
        }
    }
}

struct Echo;

impl Handler for Echo {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for mut packet in batch.iter_mut() {
            let data = packet.data_mut().unwrap();
            let (from, len) = if data[0] >> 4 == 4 { (12, 4) } else { (8, 16) };
            let (source, destination) = data[from..from + 2 * len].split_at_mut(len);
            source.swap_with_slice(destination);
            let (source, destination) = data[from + 2 * len..][..4].split_at_mut(2);
            source.swap_with_slice(destination);
            packet.transmit(TxId(0));
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn what_is_sent_back_arrives_in_order_and_unchanged() {
    for (bound, ip, queues) in [("0.0.0.0:0", "127.0.0.1", 1), ("[::]:0", "::1", 2), ("[::]:0", "127.0.0.1", 2)] {
        let udp = UdpOptions::new(bound.parse().unwrap()).queues(queues).open().unwrap();
        let builder = Builder::new().virtual_cpus(2).check_order(true).input(udp.input().unwrap()).output(udp.output());
        let running = builder.build(|_| Echo).unwrap().start().unwrap();
        let peers: Vec<UdpSocket> = (0..4).map(|_| peer(ip, 100)).collect();
        for round in 0..20_u8 {
            for peer in &peers {
                let payload: Vec<u8> = (0..550_u32).map(|nth| round.wrapping_mul(7).wrapping_add(nth as u8)).collect();
                peer.send_to(&payload, reached(&udp, ip)).unwrap();
                let mut buffer = [0; 1000];
                for datagram in payload.chunks(100) {
                    let (len, from) = peer.recv_from(&mut buffer).unwrap();
                    assert_eq!((&buffer[..len], from), (datagram, reached(&udp, ip)));
                }
            }
        }
        running.handle().stop();
        let ledger = running.join().snapshot;
        assert!(ledger.outputs[0].packets >= 80, "{}", ledger.outputs[0].packets);
    }
}

#[test]
fn an_error_says_how_long_messages_may_be() {
    let refused = |errno| super::send::refused_datagrams(&io::Error::from_raw_os_error(errno), 45);
    assert_eq!([refused(libc::EIO), refused(libc::EINVAL), refused(libc::EMSGSIZE)], [Some(2), Some(45), None]);
}

/// Without `offloads`, the kernel also does not merge the datagrams that the device receives.
#[test]
fn a_kernel_that_cuts_no_messages_gets_single_datagrams() {
    for (cuts, offloads) in [(true, true), (false, true), (false, false)] {
        let udp = UdpOptions::new("127.0.0.1:0".parse().unwrap()).offloads(offloads).open().unwrap();
        if !cuts && offloads {
            udp.0.whole.refused("test", OffloadKind::Udp, 2);
        }
        let running = Builder::new().virtual_cpus(1).input(udp.input().unwrap()).output(udp.output());
        let running = running.build(|_| Echo).unwrap().start().unwrap();
        let peer = peer("127.0.0.1", 100);
        setsockopt(&peer, sockopt::UdpGroSegment, &true).unwrap();
        let payload: Vec<u8> = (0..550_u32).map(|nth| nth as u8).collect();
        peer.send_to(&payload, udp.local_addr()).unwrap();
        let (mut buffer, mut all, mut longest) = ([0; 1000], Vec::new(), 0);
        while all.len() < payload.len() {
            let len = peer.recv(&mut buffer).unwrap();
            all.extend_from_slice(&buffer[..len]);
            longest = longest.max(len);
        }
        assert_eq!((all, longest), (payload, if cuts { 550 } else { 100 }));
        assert_eq!(counted(&running.handle(), "super_frames"), u64::from(offloads));
        running.handle().stop();
        running.join();
    }
}

/// At the end of the run, the kernel refuses a reply as too long. The report must include this
/// reply.
#[test]
fn the_last_refusal_is_in_the_report() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    namespaces.must(0, "link set lo mtu 1300");
    let (udp, peer) = namespaces.within(0, || (open("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0").unwrap()));
    peer.send_to(&[7; 1400], udp.local_addr()).unwrap();
    let builder = Builder::new().virtual_cpus(1).input(udp.input().unwrap()).output(udp.output());
    let running = builder.build(|_| Echo).unwrap().start().unwrap();
    running.handle().stop();
    let ledger = running.join().snapshot;
    assert_eq!((ledger.received(), ledger.dropped().get(DropReason::TxTooLong)), (1, 1));
    let counts = &ledger.queues[0].device_counts;
    assert!(counts.contains(&("too_long".into(), 1)), "{counts:?}");
}

#[test]
fn an_address_is_shared_within_a_process_and_has_one_input() {
    let udp = open("127.0.0.1:0");
    let again = UdpOptions::new(udp.local_addr()).open().unwrap();
    let _input = udp.input().unwrap();
    assert!(again.input().unwrap_err().to_string().contains("receives from it already"));
    let other = UdpOptions::new(udp.local_addr()).queues(2).open().unwrap_err().to_string();
    assert!(other.contains("1 queue(s)"), "{other}");
}

/// Datagrams that wait in a queueing discipline fill the send buffer of the socket.
#[test]
fn an_output_knows_whether_its_socket_has_room() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    namespaces.veth((0, "out0"), (1, "in0"));
    namespaces.address(0, 1, "out0");
    namespaces.address(1, 2, "in0");
    if !namespaces.shape(0, "out0", "tbf rate 8kbit burst 2kb limit 10mb") {
        return;
    }
    let options = UdpOptions::new("10.210.0.1:0".parse().unwrap()).receive_buffer(1 << 16);
    let udp = namespaces.within(0, || options.open().unwrap());
    let output = super::send::Send::new(std::sync::Arc::clone(&udp.0), 0);
    assert!(output.has_room());
    let socket = UdpSocket::from(udp.0.sockets[0].try_clone().unwrap());
    // Without a receiver, a later system call would return the far namespace's ICMP error.
    let _receiver = namespaces.within(1, || UdpSocket::bind("10.210.0.2:9").unwrap());
    let error = (0..100_000).find_map(|_| socket.send_to(&[7; 1000], "10.210.0.2:9").err());
    assert_eq!(error.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
    assert!(!output.has_room());
    namespaces.within(0, || {
        let deleted = std::process::Command::new("tc").args(["qdisc", "del", "dev", "out0", "root"]).status();
        assert!(deleted.unwrap().success());
    });
    until("the datagrams are gone", || output.has_room());
}

fn counted(handle: &Handle, name: &str) -> u64 {
    let counts = &handle.snapshot().queues[0].device_counts;
    counts.iter().find(|(each, _)| *each == name).unwrap().1
}

/// A host, a router and a peer. The link between router and peer has an MTU of 1,300 bytes.
fn behind_a_router() -> Option<Namespaces> {
    const HOST: usize = 0;
    const ROUTER: usize = 1;
    const PEER: usize = 2;
    let namespaces = Namespaces::new(3)?;
    namespaces.veth((HOST, "host"), (ROUTER, "near"));
    namespaces.veth((ROUTER, "far"), (PEER, "peer"));
    namespaces.address(HOST, 1, "host");
    namespaces.address(ROUTER, 2, "near");
    for (nth, host, device, gateway) in [(ROUTER, 1, "far", None), (PEER, 2, "peer", Some(1))] {
        namespaces.must(nth, &format!("addr add 10.211.0.{host}/24 dev {device}"));
        namespaces.must(nth, &format!("addr add fd00:211::{host}/64 dev {device} nodad"));
        namespaces.must(nth, &format!("link set {device} mtu 1300"));
        if let Some(gateway) = gateway {
            namespaces.must(nth, &format!("route add default via 10.211.0.{gateway}"));
            namespaces.must(nth, &format!("route add default via fd00:211::{gateway}"));
        }
    }
    namespaces.must(HOST, "route add default via 10.210.0.2");
    namespaces.must(HOST, "route add default via fd00:210::2");
    // From its fe80 addresses, the router resolves the link addresses of its neighbours.
    for device in ["near", "far"] {
        namespaces.must(ROUTER, &format!("addr add fe80::1/64 dev {device} nodad"));
    }
    namespaces.within(ROUTER, || {
        for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            fs::write(format!("/proc/sys/net/{file}"), "1").unwrap();
        }
    });
    Some(namespaces)
}

/// After a reply that is too long for the path and a reply to a closed port, later replies arrive.
#[test]
fn path_mtus_and_closed_ports_are_reported() {
    let Some(namespaces) = behind_a_router() else { return };
    for (bound, host, peer) in [("0.0.0.0:0", "10.210.0.1", "10.211.0.2"), ("[::]:0", "fd00:210::1", "fd00:211::2")] {
        let udp = namespaces.within(0, || open(bound));
        let to = reached(&udp, host);
        let open_peer = || {
            let socket = UdpSocket::bind(SocketAddr::new(peer.parse().unwrap(), 0)).unwrap();
            socket.set_read_timeout(Some(HANG)).unwrap();
            socket
        };
        let builder = Builder::new().virtual_cpus(1).input(udp.input().unwrap()).output(udp.output());
        let running = builder.build(|_| Echo).unwrap().start().unwrap();
        let handle = running.handle();
        // The peer's socket is closed when the reply arrives.
        until("the closed port is reported", || {
            namespaces.within(2, || open_peer().send_to(b"gone", to).unwrap());
            counted(&handle, "icmp_errors") >= 1
        });
        let socket = namespaces.within(2, open_peer);
        assert_eq!([counted(&handle, "too_long"), counted(&handle, "path_mtu")], [0, 0]);

        // The peer's kernel fragments its own long packets, because it uses the link's MTU.
        until("the router reports the MTU", || {
            socket.send_to(&[7; 1400], to).unwrap();
            counted(&handle, "path_mtu") == 1300
        });
        until("the kernel refuses what is too long", || {
            socket.send_to(&[7; 1400], to).unwrap();
            counted(&handle, "too_long") >= 1
        });
        let socket = namespaces.within(2, open_peer);
        socket.send_to(b"short", to).unwrap();
        let mut buffer = [0; 2000];
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from), (&b"short"[..], to));
        handle.stop();
        running.join();
    }
}
