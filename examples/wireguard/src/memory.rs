//! Measures the gateway without a network: traffic of eight peers is recorded in memory, and then sealed or opened by one CPU
//! and by two, in turn.
//!
//! Each packet has a number, and the output checks that the numbers of a peer only grow.

use std::array;
use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use steerage::device::{Capabilities, Completions, DeviceError, Outgoing, Polled, RxQueue, Sent, TxQueue};
use steerage::flow::even_share;
use steerage::limits::ORIGINATED_MAX;
use steerage::{BucketId, Builder, CpuId, CpuMask, Handler, Hash, Input, InputId, LinkType, Output, TxId};

use crate::FRAME_BYTES;
use crate::config::PeerConfig;
use crate::gateway::{Counts, Devices, Gateway, Peer, put_headers};
use crate::network::Network;

const PEERS: usize = 8;

/// The length of each packet: that of TCP in a tunnel.
const PACKET_BYTES: usize = 1420;

/// The number of a packet is in its last bytes.
const NUMBER_BYTES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Seal,
    Open,
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Run {
    work: Work,
    cpus: usize,
    packets: usize,
    /// Whether the masks change 100 times a second.
    shake: bool,
}

/// Prints a row per round, and the median at the end.
pub(crate) fn measure(rounds: usize, packets: usize) -> Result<(), Box<dyn Error>> {
    println!("the flow key of a handshake's first message: {:.0} us", handshake_key()?.as_nanos() as f64 / 1000.0);
    for work in [Work::Seal, Work::Open] {
        let mut ratios = Vec::new();
        for round in 0..rounds {
            // The one that begins changes from round to round.
            let order = if round % 2 == 0 { [1, 2] } else { [2, 1] };
            let mut nanos = [0.0; 3];
            for cpus in order {
                nanos[cpus] = run(Run { work, cpus, packets, shake: false })?;
            }
            ratios.push(nanos[1] / nanos[2]);
            println!(
                "{work:?}: {:.0} ns per packet on one CPU, {:.0} on two: {:.2}",
                nanos[1],
                nanos[2],
                nanos[1] / nanos[2]
            );
        }
        ratios.sort_by(f64::total_cmp);
        println!("{work:?}: median {:.2} of {rounds} rounds", ratios[ratios.len() / 2]);
        let nanos = run(Run { work, cpus: 2, packets, shake: true })?;
        println!("{work:?}: {nanos:.0} ns per packet while masks change, in order");
    }
    Ok(())
}

/// The time for the flow key of the first message of a handshake.
fn handshake_key() -> Result<Duration, Box<dyn Error>> {
    // The rate limiter lets these pass.
    const TIMES: u32 = 100;
    let Connected { network, mut theirs, .. } = connect(1)?;
    let mut frame = vec![0; 28 + 148];
    let first = theirs[0].format_handshake_initiation(&mut frame[28..], true);
    assert!(matches!(first, TunnResult::WriteToNetwork(_)), "{first:?}");
    put_headers(&mut frame, 40000, ([192, 0, 2, 1], 51820).into());
    let began = Instant::now();
    for _ in 0..TIMES {
        network.flow_key(&frame).ok_or("the message has no peer")?;
    }
    Ok(began.elapsed() / TIMES)
}

/// Records traffic, and runs the gateway over it.
fn run(run: Run) -> Result<f64, Box<dyn Error>> {
    let Connected { network, ours, theirs } = connect(run.cpus)?;
    let frames = match run.work {
        Work::Seal => (0..run.packets).map(packet).collect(),
        Work::Open => record(theirs, run.packets),
    };
    run_over(frames, run, &network, ours)
}

/// Runs the gateway over recorded traffic, and returns the nanoseconds per packet.
fn run_over(
    frames: Vec<Vec<u8>>,
    Run { work, cpus, packets, shake }: Run,
    network: &Arc<Network>,
    ours: [Peer; PEERS],
) -> Result<f64, Box<dyn Error>> {
    let devices = Devices { inside: InputId(u16::from(work == Work::Open)), to_inside: TxId(0), to_outside: TxId(0) };
    let ours = Mutex::new(ours.map(Some));
    let (keys, peers) = (Arc::clone(network), Arc::clone(network));
    let checked = Arc::new(Checked { work, latest: array::from_fn(|_| AtomicU32::new(0)) });
    let output = Arc::clone(&checked);
    let running =
        Builder::new()
            .cpus(CpuMask::from_iter((0..cpus as u16).map(CpuId)))
            .policy(Hash)
            .input(Input::new("memory", "memory", vec![Box::new(Recorded { frames, next: 0 })]))
            .output(Output::new("check", "memory", move |_cpu| {
                Ok(Box::new(Check(Arc::clone(&output))) as Box<dyn TxQueue>)
            }))
            .hash(network.hasher.clone())
            .flow_key_with_link(move |frame, _| keys.flow_key(frame))
            .linear_bytes(FRAME_BYTES)
            .originated_max(ORIGINATED_MAX)
            .build(move |cpu| {
                // Each CPU begins with the peers whose buckets it has.
                let mut gateway = Gateway::new(Arc::clone(&peers), devices);
                let mut ours = ours.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                for bucket in (0..4096).filter(|bucket| even_share(*bucket, cpus) == usize::from(cpu.0)) {
                    let mine = peers.in_bucket(bucket).iter();
                    let mine = mine.filter_map(|id| Some((*id, Box::new(ours[*id].take()?)))).collect();
                    gateway.bucket_arrives(BucketId { group: 0, bucket }, mine);
                }
                gateway
            })?;
    let began = Instant::now();
    let running = running.start()?;
    let handle = running.handle();
    let mut moves = 0;
    while !handle.wait_finished(Duration::from_millis(10)) {
        if shake {
            moves += 1;
            handle.set_rps_cpus(&CpuMask::from_iter([CpuId(moves % cpus as u16)]))?;
        }
    }
    let elapsed = began.elapsed();
    let outcome = running.join();
    let mut counts = Counts::default();
    outcome.reports.into_iter().for_each(|(_cpu, part)| counts += part);
    let done = if work == Work::Seal { counts.sealed } else { counts.opened };
    // The check refuses all packets after one that overtook another.
    let sent: u64 = outcome.snapshot.cpus.iter().map(|cpu| cpu.originated).sum();
    if [done, sent] != [packets as u64; 2] {
        let dropped = outcome.snapshot.dropped();
        return Err(format!("{done} of {packets} packets were done, and {sent} sent: {counts:?}, {dropped}").into());
    }
    Ok(elapsed.as_nanos() as f64 / packets as f64)
}

/// A network of peers, each with a session.
struct Connected {
    network: Arc<Network>,
    ours: [Peer; PEERS],
    theirs: [Tunn; PEERS],
}

/// Connects the peers. The same number of peers falls to each CPU.
fn connect(cpus: usize) -> Result<Connected, Box<dyn Error>> {
    let secret = || StaticSecret::from(array::from_fn(|_| fastrand::u8(..)));
    let (our_key, their_keys) = (secret(), array::from_fn::<_, PEERS, _>(|_| secret()));
    let peers = their_keys
        .each_ref()
        .map(|key| PeerConfig { public_key: PublicKey::from(key).to_bytes(), ..PeerConfig::default() });
    let mut peers = peers.to_vec();
    for (id, peer) in peers.iter_mut().enumerate() {
        peer.endpoint = Some(([192, 0, 2, id as u8], 51820).into());
        peer.allowed_ips.push(ip_network::IpNetwork::new_truncate([10, 0, 0, id as u8], 32)?);
    }
    let network = loop {
        let network = Network::new(our_key.clone(), 51820, peers.clone())?;
        let of_cpu = |cpu| (0..4096).filter(move |bucket| even_share(*bucket, cpus) == cpu);
        let count = |cpu| of_cpu(cpu).map(|bucket| network.in_bucket(bucket).len()).sum::<usize>();
        if (0..cpus).all(|cpu| count(cpu) == PEERS / cpus) {
            break Arc::new(network);
        }
    };
    let public_key = PublicKey::from(&our_key);
    let mut theirs = their_keys.map(|key| Tunn::new(key, public_key, None, None, 1, None));
    let mut ours = array::from_fn(|id| Peer::new(&network, id));
    for (our, their) in ours.iter_mut().zip(&mut theirs) {
        our.shake_hands(their).ok_or("the handshake failed")?;
    }
    Ok(Connected { network, ours, theirs })
}

impl Peer {
    /// Gives both sides a session. The other side begins.
    fn shake_hands(&mut self, other: &mut Tunn) -> Option<()> {
        let (mut there, mut back) = ([0; 256], [0; 256]);
        let TunnResult::WriteToNetwork(first) = other.format_handshake_initiation(&mut there, false) else {
            return None;
        };
        let TunnResult::WriteToNetwork(answer) = self.tunnel.decapsulate(None, first, &mut back) else { return None };
        let mut there = [0; 256];
        let TunnResult::WriteToNetwork(keepalive) = other.decapsulate(None, answer, &mut there) else { return None };
        matches!(self.tunnel.decapsulate(None, keepalive, &mut [0; 256]), TunnResult::Done).then_some(())
    }
}

/// The packet with this number, from and to the inner address of its peer.
fn packet(number: usize) -> Vec<u8> {
    let mut packet = vec![0; PACKET_BYTES];
    let peer = [10, 0, 0, (number % PEERS) as u8];
    (packet[0], packet[8], packet[9]) = (0x45, 64, 17);
    packet[2..4].copy_from_slice(&(PACKET_BYTES as u16).to_be_bytes());
    packet[12..16].copy_from_slice(&peer);
    packet[16..20].copy_from_slice(&peer);
    packet[PACKET_BYTES - NUMBER_BYTES..].copy_from_slice(&(number as u32).to_be_bytes());
    packet
}

/// The messages of the peers, as a socket received them.
fn record(mut theirs: [Tunn; PEERS], packets: usize) -> Vec<Vec<u8>> {
    let seal = |number: usize| {
        let mut frame = vec![0; PACKET_BYTES + 60];
        let sealed = theirs[number % PEERS].encapsulate(&packet(number), &mut frame[28..]);
        let len = if let TunnResult::WriteToNetwork(message) = sealed { message.len() } else { 0 };
        frame.truncate(28 + len);
        put_headers(&mut frame, 40000, ([192, 0, 2, 1], 51820).into());
        frame
    };
    (0..packets).map(seal).collect()
}

/// Frames in memory. The device waits for the CPUs, as a file does.
struct Recorded {
    frames: Vec<Vec<u8>>,
    next: usize,
}

impl RxQueue for Recorded {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(LinkType::RAW);
        for _ in 0..budget {
            let Some(frame) = self.frames.get(self.next) else { return Ok(Polled::Ended) };
            if !out.copy_in(frame) {
                break; // No page is free now.
            }
            self.next += 1;
        }
        Ok(Polled::More)
    }
}

/// The order of each peer's packets.
struct Checked {
    work: Work,
    /// The latest number of each peer, plus one.
    latest: [AtomicU32; PEERS],
}

struct Check(Arc<Checked>);

impl Checked {
    /// The peer and the number of a packet. Messages to a peer are numbered by WireGuard.
    fn number(&self, frame: &[u8]) -> Option<(usize, u32)> {
        let at = |at: usize| frame.get(at..)?.first_chunk::<4>().copied();
        match self.work {
            Work::Open => Some((usize::from(at(12)?[3]), u32::from_be_bytes(at(PACKET_BYTES - NUMBER_BYTES)?))),
            Work::Seal => Some((usize::from(at(16)?[3]), u32::from_le_bytes(at(28 + 8)?))),
        }
    }
}

impl TxQueue for Check {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let frame = packet.received().data;
            if let Some((peer, number)) = self.0.number(frame) {
                // Relaxed: when a bucket moves, the new CPU sees what the old one stored.
                let latest = self.0.latest[peer].swap(number + 1, Ordering::Relaxed);
                if latest > number {
                    return Err(DeviceError::new(
                        "check",
                        "keep the order",
                        std::io::Error::other("a packet overtook"),
                    ));
                }
            }
            sent.packets += 1;
            sent.bytes += frame.len() as u64;
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKETS: usize = 20_000;

    #[test]
    fn peers_keep_their_order_while_masks_change() {
        for work in [Work::Seal, Work::Open] {
            run(Run { work, cpus: 2, packets: PACKETS, shake: true }).unwrap();
        }
    }

    /// The check sees a packet that overtook another of its peer.
    #[test]
    fn the_check_can_fail() {
        let Connected { network, ours, theirs } = connect(1).unwrap();
        let mut frames = record(theirs, 1000);
        frames.swap(500, 500 + PEERS);
        let run = Run { work: Work::Open, cpus: 1, packets: 1000, shake: false };
        let error = run_over(frames, run, &network, ours).unwrap_err().to_string();
        assert!(error.starts_with("1000 of 1000 packets were done"), "{error}"); // But not all of them were sent.
    }

    /// A message with the number of a session that was never made belongs to no peer, and a packet
    /// for an address that nobody has neither.
    #[test]
    fn strangers_have_no_flow_key() {
        let Connected { network, theirs, .. } = connect(1).unwrap();
        let mut message = record(theirs, 1).remove(0);
        let key = network.flow_key(&message).unwrap();
        assert_eq!(network.flow_key(&packet(0)), Some(key));
        message[28 + 5] ^= 1; // The number of the receiver, without the lowest 8 bits.
        assert_eq!(network.flow_key(&message), None);
        let mut stranger = packet(0);
        stranger[18] = 1; // 10.0.1.0
        assert_eq!(network.flow_key(&stranger), None);
    }
}
