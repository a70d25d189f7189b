//! Tests TUN and TAP file descriptors that other code has opened, with offloads and a header before
//! each packet.

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};

use steerage::testing::QueueTester;
use steerage::{Batch, Builder, Cpu, Handler, Input, Timestamp, TxId, limits::POLL_BUDGET};
use steerage_fixtures::namespaces::{Namespaces, udp_exchange};
use steerage_fixtures::until;

use super::sys::{IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_TUN, IFF_VNET_HDR, TunFd};
use super::{Layer, Tap, TapOptions};

/// `TUN_F_CSUM`, `TUN_F_TSO4`.
const OFFLOADS: u64 = 1 | 2;

fn made(namespaces: &Namespaces, name: &str, flags: u16) -> TunFd {
    // The interface belongs to the network namespace in which its descriptor was opened.
    let fd = namespaces.within(0, || TunFd::open().unwrap());
    fd.attach(name, flags).unwrap();
    if flags & IFF_VNET_HDR != 0 {
        fd.set_offloads(OFFLOADS as _).unwrap();
    }
    fd
}

fn set_up(namespaces: &Namespaces, name: &str) {
    namespaces.must(0, &format!("addr add 10.211.0.1/24 dev {name}"));
    namespaces.must(0, &format!("link set {name} up"));
}

fn owned(fd: &TunFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

fn shoot(namespaces: &Namespaces, count: u8) {
    namespaces.within(0, || {
        let socket = UdpSocket::bind("10.211.0.1:7").unwrap();
        (0..count).for_each(|nth| assert_eq!(socket.send_to(&[nth; 101], "10.211.0.9:9").unwrap(), 101));
    });
}

/// An independent parser checks the checksum of each datagram.
fn datagrams(input: Input, link_bytes: usize, count: usize) -> Vec<Vec<u8>> {
    let mut tester = QueueTester::new(input.queues.into_iter().next().unwrap()).unwrap();
    let mut frames = Vec::new();
    until("datagrams come", || {
        let (_, more) = tester.poll(Timestamp::ZERO, POLL_BUDGET).unwrap();
        frames.extend(more.into_iter().filter(|frame| frame.len() == link_bytes + 129));
        frames.len() >= count
    });
    assert_eq!(tester.lost(), 0);
    for frame in &frames {
        let sliced = etherparse::SlicedPacket::from_ip(&frame[link_bytes..]).unwrap();
        let (Some(etherparse::NetSlice::Ipv4(ip)), Some(etherparse::TransportSlice::Udp(udp))) =
            (sliced.net, sliced.transport)
        else {
            panic!("no datagram");
        };
        let (header, payload) = (udp.to_header(), udp.payload());
        assert_eq!(header.checksum, header.calc_checksum_ipv4(&ip.header().to_header(), payload).unwrap());
        assert_ne!(header.checksum, 0);
    }
    frames
}

/// Adds a permanent neighbour entry, so that the kernel sends no neighbour requests.
fn know(namespaces: &Namespaces, name: &str) {
    namespaces.must(0, &format!("neigh replace 10.211.0.9 lladdr 02:00:00:00:00:09 dev {name} nud permanent"));
}

#[test]
fn checksums_are_right_where_somebody_had_left_offloads_on() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    namespaces.must(0, "tuntap add dev vm mode tap vnet_hdr");
    drop(made(&namespaces, "vm", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR));
    set_up(&namespaces, "vm");
    know(&namespaces, "vm");
    let mut tap = None;
    // Another test's child process may have the interface open until it calls `execve`.
    until("nobody has it any more", || {
        tap = namespaces.within(0, || TapOptions::new(Layer::Tap, "vm").open().ok());
        tap.is_some()
    });
    let tap = tap.unwrap();
    shoot(&namespaces, 20);
    let frames = datagrams(tap.input().unwrap(), 14, 20);
    assert!((0..20).all(|nth| frames[usize::from(nth)].ends_with(&[nth; 101])));
}

#[test]
fn a_header_before_each_packet_is_read_and_what_it_leaves_is_done() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    let fd = made(&namespaces, "vm", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR);
    set_up(&namespaces, "vm");
    know(&namespaces, "vm");
    // Queue datagrams with unfinished checksums before the device opens the interface.
    shoot(&namespaces, 20);
    let mut raw = [0; 2000];
    until("the kernel leaves a checksum to us", || {
        let read = fd.read(&mut [], &mut raw).unwrap();
        read == 10 + 143 && raw[0] & 1 == 1
    });
    let tap = namespaces.within(0, || Tap::from_fds(vec![owned(&fd)], None).unwrap());
    assert_eq!((tap.name(), tap.layer()), ("vm", Layer::Tap));
    shoot(&namespaces, 20);
    datagrams(tap.input().unwrap(), 14, 39);
}

struct Mirror;

impl Handler for Mirror {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for mut packet in batch.iter_mut() {
            let data = packet.data_mut().unwrap();
            // A TUN's packet begins with an IPv4 header. Swapping the two addresses does not change
            // the checksum.
            if data.len() > 28 && data[0] == 0x45 {
                let (source, destination) = data[12..20].split_at_mut(4);
                source.swap_with_slice(destination);
                let (source, destination) = data[20..24].split_at_mut(2);
                source.swap_with_slice(destination);
                packet.transmit(TxId(0));
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn what_is_sent_has_a_header_too_where_it_must() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    for flags in [IFF_VNET_HDR, IFF_VNET_HDR | IFF_MULTI_QUEUE, 0] {
        let fd = made(&namespaces, "vpn", IFF_TUN | IFF_NO_PI | flags);
        set_up(&namespaces, "vpn");
        let tap = namespaces.within(0, || Tap::from_fds(vec![owned(&fd)], Some(1500)).unwrap());
        drop(fd);
        let builder = Builder::new().virtual_cpus(2).input(tap.input().unwrap()).output(tap.output());
        let running = builder.build(|_| Mirror).unwrap().start().unwrap();
        namespaces.within(0, || udp_exchange("10.211.0.9:9".parse().unwrap(), 20, 700));
        running.handle().stop();
        let ledger = running.join().snapshot;
        assert!(ledger.outputs[0].packets >= 20);
        drop(tap);
        until("it is gone with its last user", || {
            namespaces.within(0, || nix::net::if_::if_nametoindex("vpn").is_err())
        });
    }
}

#[test]
fn what_is_no_such_descriptor_is_refused() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    let error = |fds| Tap::from_fds(fds, None).unwrap_err().to_string();
    assert!(error(Vec::new()).ends_with("there is none"));
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(error(vec![null.into()]).starts_with("tun file descriptor: cannot ask for its interface"));
    let (one, other) = (made(&namespaces, "b", IFF_TAP | IFF_NO_PI), made(&namespaces, "c", IFF_TAP | IFF_NO_PI));
    assert!(error(vec![owned(&one), owned(&other)]).ends_with("they are of several interfaces"));
    let opened = |name| namespaces.within(0, || TapOptions::new(Layer::Tap, name).open().unwrap_err().to_string());
    assert!(opened("b").starts_with("b: cannot attach to the interface: Device or resource busy"), "{}", opened("b"));
    let _theirs = made(&namespaces, "d", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_MULTI_QUEUE);
    assert!(opened("d").contains("a header before each packet"), "{}", opened("d"));
}
