//! Linux accepts at most 128 datagrams in one super-frame (64 before 6.9). Super-frames with more
//! datagrams must arrive as single packets, and the log has one line about each refusal.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, Once, PoisonError};

use nix::sys::socket::{setsockopt, sockopt};
use steerage::device::{
    Blocks, Capabilities, Claim, Completions, FrameHeader, OFFLOAD_BYTES, Opened, Polled, Region, RxQueue,
};
use steerage::flow::offload::{Offload, VIRTIO_BYTES};
use steerage::flow::wire::checksum::{fold, pseudo_sum};
use steerage::flow::wire::{FrameBuilder, protocol, udp};
use steerage::{Builder, DeviceError, Input, LinkType, Output};
use steerage_device::output;
use steerage_device::udp::UdpOptions;
use steerage_fixtures::handlers::SendAll;
use steerage_fixtures::namespaces::{Namespaces, address};
use steerage_fixtures::{HANG, assert_at_rest};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The length in bytes of each datagram's payload in a super-frame, except for the last datagram.
const DATAGRAM_BYTES: usize = 200;

const DATAGRAMS: [usize; 7] = [40, 200, 150, 40, 129, 128, 129];

/// The number of frames that arrive if the kernel accepts 128 or 64 datagrams in one super-frame.
const FRAMES: [u64; 2] = [1 + 200 + 150 + 1 + 129 + 1 + 129, 1 + 200 + 150 + 1 + 129 + 128 + 129];

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
}

fn refusals(device: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let named = format!("device={device:?} ");
    let is_ours = |line: &&String| line.contains(&named) && line.contains("the kernel refuses");
    lines.iter().filter(is_ours).cloned().collect()
}

#[derive(Debug)]
struct Given {
    frames: VecDeque<Vec<u8>>,
    link: LinkType,
    claim: Option<Claim>,
}

impl Given {
    fn input(frames: Vec<Vec<u8>>, link: LinkType) -> Input {
        Input::new("given", "test", vec![Box::new(Self { frames: frames.into(), link, claim: None })])
    }
}

impl RxQueue for Given {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(2048).can_wait()
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        let (blocks, claim) = Blocks::map(self.frames.len(), 128 << 10).unwrap();
        self.claim = Some(claim);
        Ok(Opened::lending(blocks))
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(self.link);
        let claim = self.claim.as_ref().unwrap();
        for _ in 0..budget {
            let Some(frame) = self.frames.front() else { return Ok(Polled::Ended) };
            let mut lending = out.lending(claim, self.frames.len() - 1, 128 << 10).unwrap();
            lending.bytes()[OFFLOAD_BYTES..][..frame.len()].copy_from_slice(frame);
            let link_bytes = if self.link == LinkType::ETHERNET { 14 } else { 0 };
            let offload = Offload::from_virtio(&virtio(link_bytes), frame, self.link).unwrap().unwrap();
            let len = frame.len();
            let header =
                FrameHeader { nanos: FrameHeader::NO_TIME, wire_len: len as u32, link: self.link.0, interface: 0 };
            assert!(lending.push_offload(OFFLOAD_BYTES, len, (header, offload), None));
            self.frames.pop_front();
        }
        Ok(Polled::More)
    }
}

fn virtio(link_bytes: u8) -> [u8; VIRTIO_BYTES] {
    [1, 5, link_bytes + 28, 0, DATAGRAM_BYTES as u8, 0, link_bytes + 20, 0, 6, 0]
}

fn payloads() -> Vec<Vec<u8>> {
    let payload = |nth: usize, datagrams: usize| -> Vec<u8> {
        (0..datagrams * DATAGRAM_BYTES - 7).map(|at| (at / DATAGRAM_BYTES * 3 + at + nth * 11) as u8).collect()
    };
    DATAGRAMS.iter().enumerate().map(|(nth, datagrams)| payload(nth, *datagrams)).collect()
}

fn frames(link: &[u8], from: SocketAddr, to: SocketAddr) -> Vec<Vec<u8>> {
    let frame = |payload: Vec<u8>| {
        let mut packet = FrameBuilder::udp(from, to).packet(&payload);
        let udp_at = packet.len() - payload.len() - udp::BYTES;
        let pseudo = fold(pseudo_sum(&packet, true, protocol::UDP, packet.len() - udp_at));
        packet[udp_at + udp::CHECKSUM_AT..][..2].copy_from_slice(&pseudo.to_be_bytes());
        [link, &packet].concat()
    };
    payloads().into_iter().map(frame).collect()
}

fn receiver(at: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((at, 0)).unwrap();
    setsockopt(&socket, sockopt::RcvBufForce, &(16 << 20)).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket
}

fn all_arrive(frames: Vec<Vec<u8>>, link: LinkType, to: Output, receiver: &UdpSocket) {
    let device = to.name.get().to_string();
    let builder = Builder::new().virtual_cpus(2).check_order(true).input(Given::input(frames, link)).output(to);
    let ledger = builder.build(|_| SendAll).unwrap().start().unwrap().join().snapshot;
    assert_at_rest(&ledger);
    assert_eq!((ledger.outputs[0].packets, ledger.dropped().total()), (DATAGRAMS.len() as u64, 0));
    let mut buffer = [0; 2 * DATAGRAM_BYTES];
    for payload in payloads() {
        for datagram in payload.chunks(DATAGRAM_BYTES) {
            let len = receiver.recv(&mut buffer).unwrap();
            assert!(buffer[..len] == *datagram);
        }
    }
    let lines = refusals(&device);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("200 packets of UDP"), "{lines:#?}");
}

#[test]
fn a_tun_cuts_what_its_kernel_refuses() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    listen();
    let to = namespaces.within(0, || output::open("tun:refuses,offload=on").unwrap());
    namespaces.address(0, 1, "refuses");
    let receiver = namespaces.within(0, || receiver(address("10.210.0.1")));
    let frames = frames(&[], "10.210.0.9:9".parse().unwrap(), receiver.local_addr().unwrap());
    let _kept = namespaces.within(0, || output::open("tun:refuses,offload=on").unwrap());
    all_arrive(frames, LinkType::RAW, to, &receiver);
    let received = namespaces.received_by(0, "refuses");
    assert!(FRAMES.contains(&received), "{received}");
}

#[test]
fn a_packet_socket_cuts_what_its_kernel_refuses() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    listen();
    namespaces.veth((0, "refuses0"), (1, "in0"));
    namespaces.must(1, "link set in0 address 02:00:00:00:00:02");
    namespaces.address(1, 2, "in0");
    let before = namespaces.received_by(1, "in0");
    let receiver = namespaces.within(1, || receiver(address("10.210.0.2")));
    let link = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 9, 8, 0];
    let frames = frames(&link, "10.210.0.9:9".parse().unwrap(), receiver.local_addr().unwrap());
    let to = namespaces.within(0, || output::open("af_packet:refuses0,offload=on").unwrap());
    all_arrive(frames, LinkType::ETHERNET, to, &receiver);
    let received = namespaces.received_by(1, "in0") - before;
    assert!(FRAMES.contains(&received), "{received}");
}

#[test]
fn a_socket_cuts_what_its_kernel_refuses() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    listen();
    let receiver = namespaces.within(0, || receiver(address("127.0.0.1")));
    let udp = namespaces.within(0, || UdpOptions::new("127.0.0.1:0".parse().unwrap()).open().unwrap());
    let frames = frames(&[], udp.local_addr(), receiver.local_addr().unwrap());
    let before = namespaces.received_by(0, "lo");
    all_arrive(frames, LinkType::RAW, udp.output(), &receiver);
    let received = namespaces.received_by(0, "lo") - before;
    assert!(FRAMES.contains(&received), "{received}");
}
