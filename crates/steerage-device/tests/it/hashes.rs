//! Tests hashes that a device sets: the values, and which packets a hash keeps together. With a
//! hash of the device, the receiving CPU does not read a frame's headers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use steerage::flow::wire::{FrameBuilder, ipv4, protocol};
use steerage::threads::Softnet;
use steerage::{
    Affinity, Batch, Builder, Cpu, CpuId, DeviceError, Handle, Handler, Hash, Input, Snapshot,
    device::{Blocks, Capabilities, Claim, Completions, Filled, Opened, Polled, Region, RxQueue},
    flow::{self, FlowHash, FlowHasher, HashKey, even_share},
};
use steerage_device::DeviceHash;
use steerage_device::af_packet::{AfPacketOptions, Direction};
use steerage_device::af_xdp::{AfXdpOptions, Mode};
use steerage_fixtures::cable::Net;
use steerage_fixtures::manual_clock::{self, ManualClock};
use steerage_fixtures::until;

use crate::common::send_raw;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Got {
    frame: Vec<u8>,
    hash: u32,
    bucket: u16,
    cpu: CpuId,
}

type Log = Arc<Mutex<Vec<Got>>>;

/// Records each packet. This handler requires only that packets of one direction of a flow stay
/// together.
struct Notes {
    log: Log,
    reads: bool,
}

impl Handler for Notes {
    type Moved = ();
    type Report = ();

    const AFFINITY: Affinity = Affinity::OneDirection;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let got = batch.iter_mut().map(|packet| Got {
            frame: if self.reads { packet.data().to_vec() } else { Vec::new() },
            hash: packet.flow_hash().0,
            bucket: packet.bucket().bucket,
            cpu: cpu.id(),
        });
        self.log.lock().unwrap().extend(got);
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn two_cpus() -> Builder {
    let mask = [CpuId(1), CpuId(2)].into_iter().collect();
    Builder::new().virtual_cpus(3).rps_cpus(mask).policy(Hash).check_order(true)
}

/// Returns the `count` packets that `send` has sent, without probes, and the final ledger.
fn received(builder: Builder, input: Input, count: usize, send: impl FnOnce(&Handle)) -> (Vec<Got>, Snapshot) {
    let log = Log::default();
    let of_cpus = Arc::clone(&log);
    let built = builder.input_on(input, &[CpuId(0)], None);
    let running = built.build(move |_| Notes { log: Arc::clone(&of_cpus), reads: true }).unwrap().start().unwrap();
    let handle = running.handle();
    send(&handle);
    let ours = || log.lock().unwrap().iter().filter(|got| !is_probe(got)).count();
    until("all frames come", || ours() >= count);
    handle.stop();
    let ledger = running.join().snapshot;
    let (probes, got): (Vec<Got>, Vec<Got>) = log.lock().unwrap().drain(..).partition(is_probe);
    assert_eq!((got.len(), ledger.dropped().total(), ledger.reordered()), (count, 0, Some(0)));
    assert!(probes.windows(2).all(|pair| pair[0] == pair[1]), "{probes:?}");
    (got, ledger)
}

fn inputs(net: &Net, hash: DeviceHash) -> [(&'static str, Input); 2] {
    let listening = AfPacketOptions::new("near0").direction(Direction::In).device_hash(hash);
    let taking = AfXdpOptions::new("near0").take("all".parse().unwrap()).device_hash(hash).mode(Mode::Native);
    net.near(|| [("af_packet", listening.open().unwrap().input), ("af_xdp", taking.open().unwrap().input)])
}

/// AF_XDP leaves frames to the kernel until the first poll. Sends probe packets until AF_XDP
/// receives one, which shows that the CPU polls the queue.
fn wait_for_polls(net: &Net, kind: &str, handle: &Handle) {
    if kind == "af_xdp" {
        until("AF_XDP polls", || {
            net.far(|| send_raw("far0", &[probe()]));
            handle.snapshot().received() > 0
        });
    }
}

fn probe() -> Vec<u8> {
    let mut frame = [&TO[..], &FROM, &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    frame
}

fn is_probe(got: &Got) -> bool {
    got.frame[12..14] == [0x88, 0xb5]
}

const FROM: [u8; 6] = [2, 0, 0, 0, 0, 2];
const TO: [u8; 6] = [2, 0, 0, 0, 0, 1];

#[derive(Clone, Copy)]
struct Part {
    offset: u16,
    more: bool,
}

const WHOLE: Part = Part { offset: 0, more: false };

/// In a later fragment, the bytes of the ports are payload.
fn udp4(from: (u8, u16), to: (u8, u16), id: u16, part: Part) -> Vec<u8> {
    let built = FrameBuilder::ip([10, 1, 0, from.0], [10, 1, 0, to.0], protocol::UDP).with_ip(|ip| {
        let more = if part.more { ipv4::MORE_FRAGMENTS } else { 0 };
        (ip.identification, ip.fragment) = (id, (part.offset / 8) | more);
    });
    built.stations(FROM, TO).frame(&udp(from.1, to.1))
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    let mut udp = [from.to_be_bytes(), to.to_be_bytes(), 24_u16.to_be_bytes(), [0, 0]].concat();
    udp.resize(24, 0);
    udp
}

fn udp6(from: (u8, u16), to: (u8, u16), id: u16, part: Part) -> Vec<u8> {
    let address = |host: u8| [0xfd00, 1, 0, 0, 0, 0, 0, host.into()];
    let part = (part.offset | u16::from(part.more)).to_be_bytes();
    let fragment = [&[protocol::UDP, 0][..], &part, &u32::from(id).to_be_bytes(), &udp(from.1, to.1)].concat();
    FrameBuilder::ip(address(from.0), address(to.0), protocol::FRAGMENT).stations(FROM, TO).frame(&fragment)
}

const FLOWS: u16 = 64;

fn both_directions() -> Vec<Vec<u8>> {
    let ends = |flow: u16| ((1, 1000 + flow), (2, 53));
    let each = (0..FLOWS).map(ends);
    each.flat_map(|(one, other)| [udp4(one, other, 0, WHOLE), udp4(other, one, 0, WHOLE)]).collect()
}

/// AF_PACKET and AF_XDP report the kernel's hash, which is equal for both directions of a flow and
/// different for each flow. The hash selects the CPU, and steerage computes no hash.
#[test]
fn the_kernels_values_steer() {
    let Some(net) = Net::new() else { return };
    let frames = both_directions();
    let mut by_device = Vec::new();
    for (kind, input) in inputs(&net, DeviceHash::Always) {
        assert_eq!(input.queues[0].capabilities().hash, Some(Affinity::BothDirections), "{kind}");
        let sent = |handle: &Handle| {
            wait_for_polls(&net, kind, handle);
            net.far(|| send_raw("far0", &frames));
        };
        let (got, ledger) = received(two_cpus(), input, frames.len(), sent);
        assert_eq!((&*ledger.queues[0].hash, got.len()), ("device", frames.len()), "{kind}");
        let values: BTreeMap<Vec<u8>, u32> = got.iter().map(|got| (got.frame.clone(), got.hash)).collect();
        for got in &got {
            let cpu = CpuId(1 + even_share(got.bucket, 2) as u16);
            assert_eq!((got.cpu, got.bucket), (cpu, flow::bucket_of(FlowHash(got.hash))), "{kind}: {got:?}");
        }
        for pair in frames.chunks(2) {
            assert_eq!(values[&pair[0]], values[&pair[1]], "{kind}: the directions of a flow");
        }
        let distinct: BTreeSet<u32> = values.values().copied().collect();
        assert_eq!(distinct.len(), usize::from(FLOWS), "{kind}");
        by_device.push(values);
    }
    assert_eq!(by_device[0], by_device[1]);
}

fn datagrams() -> Vec<[Vec<u8>; 3]> {
    let parts = [Part { offset: 0, more: true }, Part { offset: 24, more: true }, Part { offset: 48, more: false }];
    let of = |flow: u16| {
        let make = if flow % 4 < 2 { udp4 } else { udp6 };
        let mut fragments = parts.map(|part| make((1, 1000 + flow), (2, 53), flow, part));
        if flow % 2 == 1 {
            fragments.reverse();
        }
        fragments
    };
    (0..FLOWS).map(of).collect()
}

/// Packets from AF_PACKET are steered by the kernel's hash, and packets from AF_XDP by steerage's
/// hash.
#[test]
fn fragments_of_a_datagram_meet() {
    let Some(net) = Net::new() else { return };
    let datagrams = datagrams();
    let frames: Vec<Vec<u8>> = (0..3).flat_map(|nth| datagrams.iter().map(move |parts| parts[nth].clone())).collect();
    let whole = both_directions();
    for (kind, input) in inputs(&net, DeviceHash::Always) {
        let sent = |handle: &Handle| {
            wait_for_polls(&net, kind, handle);
            net.far(|| send_raw("far0", &[&frames[..], &whole[..]].concat()));
        };
        let all = frames.len() + whole.len();
        let (got, ledger) = received(two_cpus(), input, all, sent);
        for parts in &datagrams {
            let came = got.iter().filter(|got| parts.contains(&got.frame));
            let cpus: Vec<CpuId> = came.clone().map(|got| got.cpu).collect();
            assert!(cpus.len() == 3 && cpus.iter().all(|cpu| *cpu == cpus[0]), "{kind}: {cpus:?}");
            let hashes: BTreeSet<u32> = came.map(|got| got.hash).collect();
            assert_eq!(hashes.len(), 1, "{kind}: {hashes:?}");
        }
        let hashed = ledger.queues[0].hashed;
        match kind {
            "af_packet" => assert_eq!(hashed, 0),
            _ => assert_eq!(hashed, ledger.received() - whole.len() as u64),
        }
    }
}

#[test]
fn fragments_of_sockets_meet() {
    use std::net::UdpSocket;

    use steerage_fixtures::cable::{FAR, NEAR};

    let Some(net) = Net::new() else { return };
    for (kind, input) in inputs(&net, DeviceHash::Always) {
        let sent = |handle: &Handle| {
            wait_for_polls(&net, kind, handle);
            net.far(|| {
                for nth in 0..FLOWS {
                    let socket = UdpSocket::bind((FAR, 0)).unwrap();
                    let payload = [u8::try_from(nth).unwrap(); 4000];
                    if nth % 2 == 0 {
                        socket.connect((NEAR, 9)).unwrap();
                        socket.send(&payload).unwrap();
                    } else {
                        socket.send_to(&payload, (NEAR, 9)).unwrap();
                    }
                }
            });
        };
        let (got, _) = received(two_cpus(), input, 3 * usize::from(FLOWS), sent);
        let mut datagrams = BTreeMap::<u8, Vec<CpuId>>::new();
        for got in got {
            // Two datagrams may have the same identification, so the payload distinguishes them.
            datagrams.entry(*got.frame.last().unwrap()).or_default().push(got.cpu);
        }
        assert_eq!(datagrams.len(), usize::from(FLOWS));
        for cpus in datagrams.values() {
            assert!(cpus.len() == 3 && cpus.iter().all(|cpu| *cpu == cpus[0]), "{kind}: {cpus:?}");
        }
    }
}

#[test]
fn where_directions_must_meet_the_hash_is_ours() {
    struct BothDirections;

    impl Handler for BothDirections {
        type Moved = ();
        type Report = ();

        fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

        fn finish(self, _: &mut Cpu) {}
    }

    let Some(net) = Net::new() else { return };
    let hash = |asked, affinity: Option<Affinity>| {
        inputs(&net, asked).map(|(_, input)| {
            let builder = Builder::new().virtual_cpus(2).input(input);
            let builder = affinity.into_iter().fold(builder, Builder::device_affinity);
            builder.build(|_| BothDirections).unwrap().handle().snapshot().queues[0].hash.clone()
        })
    };
    assert!(hash(DeviceHash::IfSafe, None).iter().all(|hash| *hash != "device"));
    assert!(hash(DeviceHash::Never, Some(Affinity::OneDirection)).iter().all(|hash| *hash != "device"));
    // A packet from a veth may have the hash of a network card that steerage does not see.
    assert!(hash(DeviceHash::IfSafe, Some(Affinity::OneDirection)).iter().all(|hash| *hash != "device"));
    // A user who chooses the device's hash must know which packets the hash sends to the same CPU.
    assert_eq!(hash(DeviceHash::Always, None), ["device"; 2]);
}

/// A bridge and a veth forward hashes of network cards, whose keys may be public. Packets of a TAP
/// come from a program, so no card has hashed them.
#[test]
fn a_hash_of_unknown_origin_is_not_used() {
    let Some(net) = Net::new() else { return };
    net.near(|| {
        for args in ["link add bridge0 type bridge", "link set bridge0 up", "tuntap add tap0 mode tap"] {
            let done = std::process::Command::new("ip").args(args.split(' ')).status().unwrap();
            assert!(done.success(), "ip {args}");
        }
    });
    let affinity = |name: &str, hash, direction| {
        let options = AfPacketOptions::new(name).direction(direction).device_hash(hash);
        net.near(|| options.open().unwrap().input.queues[0].capabilities().hash)
    };
    for name in ["bridge0", "near0"] {
        assert_eq!(affinity(name, DeviceHash::IfSafe, Direction::In), None, "{name}");
        assert_eq!(affinity(name, DeviceHash::Always, Direction::In), Some(Affinity::BothDirections), "{name}");
    }
    assert_eq!(affinity("tap0", DeviceHash::IfSafe, Direction::In), Some(Affinity::OneDirection));
    assert_eq!(affinity("tap0", DeviceHash::IfSafe, Direction::InOut), None, "what this machine sends");
}

/// A device that delivers numbered frames, each of a different flow. Every third frame has no hash.
struct SomeHashed {
    next: u16,
}

impl RxQueue for SomeHashed {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(128).can_wait().hashes(Affinity::OneDirection)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.fill(budget, |page| {
            let frame = numbered(self.next);
            page[..frame.len()].copy_from_slice(&frame);
            let hash = set_hash(self.next);
            self.next += 1;
            (self.next <= 3000).then(|| Filled::whole(frame.len()).with_hash(hash))
        });
        Ok(if self.next >= 3000 { Polled::Ended } else { Polled::More })
    }
}

fn numbered(number: u16) -> Vec<u8> {
    udp4((1, number), (2, 53), 0, WHOLE)
}

fn set_hash(number: u16) -> Option<FlowHash> {
    (number % 3 != 0).then(|| FlowHash(u32::from(number).wrapping_mul(0x9e37_79b9)))
}

/// steerage computes the hash of each frame that the device delivers without a hash. Hashes that
/// the device has set stay unchanged.
#[test]
fn frames_without_a_hash_get_ours() {
    let hasher = || FlowHasher::keyed(&HashKey::MICROSOFT);
    let input = Input::new("some", "test", vec![Box::new(SomeHashed { next: 0 })]);
    let (got, ledger) = received(two_cpus().hash(hasher()), input, 3000, |_| ());
    for got in &got {
        let number = u16::from_be_bytes([got.frame[34], got.frame[35]]);
        let ours = || hasher().hash(&flow::dissect(&got.frame, flow::LinkType::ETHERNET, flow::Layers::Inner).key);
        let hash = set_hash(number).unwrap_or_else(ours);
        let cpu = CpuId(1 + even_share(flow::bucket_of(hash), 2) as u16);
        assert_eq!((got.hash, got.bucket, got.cpu), (hash.0, flow::bucket_of(hash), cpu), "{number}");
    }
    assert_eq!((&*ledger.queues[0].hash, ledger.queues[0].hashed), ("device", 1000));
    let unhashed = got.iter().filter(|got| u16::from_be_bytes([got.frame[34], got.frame[35]]) % 3 == 0);
    let cpus: BTreeSet<CpuId> = unhashed.map(|got| got.cpu).collect();
    assert_eq!(cpus.len(), 2);
}

#[test]
fn hashes_that_are_not_wanted_are_replaced() {
    let input = Input::new("some", "test", vec![Box::new(SomeHashed { next: 0 })]);
    let (got, ledger) = received(two_cpus().device_hash(false), input, 3000, |_| ());
    assert_eq!((got.len(), ledger.queues[0].hashed), (3000, 3000));
    assert_ne!(ledger.queues[0].hash, "device");
}

#[test]
fn nothing_is_hashed_while_one_cpu_has_all_buckets() {
    for cpus in [1, 2] {
        let input = Input::new("some", "test", vec![Box::new(SomeHashed { next: 0 })]);
        let mask = (1..=cpus).map(CpuId).collect();
        let builder = Builder::new().virtual_cpus(3).rps_cpus(mask).policy(Hash).device_hash(false);
        let built = builder.input_on(input, &[CpuId(0)], None).build(|_| Notes { log: Log::default(), reads: false });
        let running = built.unwrap().start().unwrap();
        let handle = running.handle();
        until("all frames come", || handle.snapshot().delivered() >= 3000);
        handle.stop();
        let hashed = running.join().snapshot.queues[0].hashed;
        assert_eq!(hashed, if cpus == 1 { 0 } else { 3000 }, "{cpus} CPUs");
    }
}

#[test]
fn queues_have_masks_of_their_own() {
    let queue = || Box::new(SomeHashed { next: 0 }) as Box<dyn RxQueue>;
    let input = Input::new("some", "test", vec![queue(), queue(), queue()]);
    let builder = Builder::new().virtual_cpus(4).policy(Hash).input(input);
    let builder = builder.queue_rps_cpus(0, [CpuId(2)].into_iter().collect());
    let builder = builder.queue_rps_cpus(2, [CpuId(0), CpuId(3)].into_iter().collect());
    let log = Log::default();
    let of_cpus = Arc::clone(&log);
    let running = builder.build(move |_| Notes { log: Arc::clone(&of_cpus), reads: false }).unwrap().start().unwrap();
    let handle = running.handle();
    until("all frames come", || log.lock().unwrap().len() >= 9000);
    handle.stop();
    let ledger = running.join().snapshot;
    let masks = ledger.queues.iter().map(|queue| queue.rps_cpus.iter().map(|cpu| cpu.0).collect::<Vec<u16>>());
    assert!(masks.eq([vec![2], vec![0, 1, 2, 3], vec![0, 3]]));
    // All three queues receive the same packets. CPU 2 handles the packets of the first queue.
    let count = |cpu| log.lock().unwrap().iter().filter(|got| got.cpu == CpuId(cpu)).count();
    let counts: Vec<usize> = (0..4).map(count).collect();
    assert_eq!(counts.iter().sum::<usize>(), 9000);
    assert!(counts[2] > 3000 && counts[0] > counts[1] && counts[3] > counts[1], "{counts:?}");
}

const HIDDEN: usize = 60;
const HIDDEN_BYTES: usize = 64;

/// Lends frames whose memory cannot be read until the device is closed.
struct Hidden {
    blocks: Option<(Blocks, Claim)>,
    claim: Option<Claim>,
    done: bool,
    hashes: bool,
}

impl RxQueue for Hidden {
    fn capabilities(&self) -> Capabilities {
        Capabilities::blocks(128).can_wait().hashes(Affinity::OneDirection)
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        let (blocks, claim) = self.blocks.take().unwrap();
        self.claim = Some(claim);
        Ok(Opened::lending(blocks))
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        if std::mem::replace(&mut self.done, true) {
            return Ok(Polled::NotBefore(steerage::Timestamp::from_nanos(u64::MAX)));
        }
        let claim = self.claim.as_ref().unwrap();
        for nth in 0..HIDDEN {
            let mut frame = out.blocks(claim).unwrap().lend(claim, 0, nth * HIDDEN_BYTES, HIDDEN_BYTES).unwrap();
            if self.hashes {
                frame.set_hash((nth as u32).wrapping_mul(0x9e37_79b9));
            }
            out.push(frame, HIDDEN_BYTES);
        }
        protect(out.blocks(claim).unwrap().readable(claim, 0), libc::PROT_NONE);
        Ok(Polled::More)
    }

    fn stop(&mut self) -> bool {
        false
    }
}

fn protect(bytes: &[u8], to: i32) {
    assert_eq!(bytes.as_ptr().addr() % 4096, 0);
    // SAFETY: the memory stays mapped. Reading this memory while it is unreadable would end the
    // process, which is what the test checks.
    let done = unsafe { libc::mprotect(bytes.as_ptr().cast_mut().cast(), bytes.len(), to) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Reading the memory of hidden frames would end the process.
#[test]
fn headers_are_untouched_where_they_are_received() {
    hide(true);
}

/// Without the device's hashes, the receiving CPU reads the headers in unreadable memory, which
/// ends the process.
#[test]
fn headers_are_read_where_there_is_no_hash() {
    use std::os::unix::process::ExitStatusExt;

    if std::env::var_os("STEERAGE_TEST_HIDDEN").is_some() {
        return hide(false);
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hashes::headers_are_read_where_there_is_no_hash", "--test-threads", "1"])
        .env("STEERAGE_TEST_HIDDEN", "1")
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(libc::SIGSEGV), "{child:?}");
}

fn hide(hashes: bool) {
    let blocks = Blocks::map(1, 4096).unwrap();
    let queue = Hidden { blocks: Some(blocks), claim: None, done: false, hashes };
    let input = Input::new("hidden", "test", vec![Box::new(queue)]);
    let log = Log::default();
    let of_cpus = Arc::clone(&log);
    let builder = Builder::new().virtual_cpus(2).policy(Hash).input_on(input, &[CpuId(0)], None);
    let built = builder.build(move |_| Notes { log: Arc::clone(&of_cpus), reads: false }).unwrap();
    let (parts, handle) = built.split();
    let clock = ManualClock::default();
    let cpus: Vec<Softnet<Notes, ManualClock>> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
    let [mut receiver, mut worker] = <[_; 2]>::try_from(cpus).unwrap();
    while log.lock().unwrap().len() < HIDDEN {
        receiver.step();
        worker.step();
    }
    let queue = handle.snapshot().queues.swap_remove(0);
    assert_eq!((&*queue.hash, queue.hashed, queue.received), ("device", 0, HIDDEN as u64));
    let cpus: BTreeSet<CpuId> = log.lock().unwrap().iter().map(|got| got.cpu).collect();
    assert_eq!(cpus.len(), 2, "all on one CPU: nothing had to be hashed");
    for got in log.lock().unwrap().iter() {
        assert_eq!(got.cpu, CpuId(even_share(got.bucket, 2) as u16));
    }
    manual_clock::end(&handle, [&mut receiver, &mut worker]);
}
