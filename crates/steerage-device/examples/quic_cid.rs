//! Steers QUIC packets by connection id, so that a new address does not change the CPU.
//!
//! If steering used addresses and ports, a QUIC connection would move to another CPU whenever a
//! phone leaves its WLAN or a NAT forgets a mapping. QUIC puts a connection id into each packet
//! (RFC 9000, 5.1). A short header does not contain the length of the id, but the server that chose
//! the id knows the length.
//!
//! In two cases, the server cannot freely choose the CPU to which a connection id leads:
//!
//! * The first packets of a client contain an id that the *client* chose. The server answers with
//!   an id in the same *bucket*: it draws random ids until one of them is in this bucket. So all
//!   packets of the connection go to the same CPU, even if the bucket moves meanwhile.
//! * A client that changes its address on purpose switches to another id, so that observers cannot
//!   link the two addresses (RFC 9000, 9.5). The server issued this id earlier, from the same
//!   bucket. The hash has a secret key, so an observer learns nothing from the ids.
//!
//! The example creates its own packets in a small [`RxQueue`]. Run it without arguments.
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::vec;

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use steerage::{
    Batch, Builder, Cpu, CpuId, DeviceError, FlowKey, Handler, Hash, Input, Snapshot,
    device::{Capabilities, Completions, Polled, RxQueue},
    flow::{FlowHasher, HashKey, bucket_of},
};

const CID_BYTES: usize = 8;

const QUIC_PORT: u16 = 443;

// ---- the flow key

/// Returns the destination connection id of a QUIC packet. `None`: the packet is steered by its
/// flow.
fn quic_key(frame: &[u8]) -> Option<FlowKey> {
    match SlicedPacket::from_ethernet(frame).ok()?.transport? {
        TransportSlice::Udp(udp) if udp.destination_port() == QUIC_PORT => {
            destination_cid(udp.payload()).map(FlowKey::from_bytes)
        }
        _ => None,
    }
}

/// The position of the id is the same in all versions of QUIC (RFC 8999, 5).
fn destination_cid(packet: &[u8]) -> Option<&[u8]> {
    match packet {
        [first, rest @ ..] if first & LONG_HEADER == 0 => rest.get(..CID_BYTES),
        [_first, _, _, _, _version, len, rest @ ..] => rest.get(..usize::from(*len)),
        _ => None,
    }
}

const LONG_HEADER: u8 = 0x80;

// ---- the server, which sees connections

#[derive(Debug, Default)]
struct Server(BTreeMap<u32, u64>);

impl Handler for Server {
    type Moved = ();
    type Report = BTreeMap<u32, u64>;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            if let Some(connection) = packet.data().last_chunk() {
                *self.0.entry(u32::from_be_bytes(*connection)).or_default() += 1;
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> Self::Report {
        self.0
    }
}

struct Issuer {
    hasher: FlowHasher,
    /// This random generator is good enough for an example. The ids of a real server must be
    /// unpredictable.
    rng: fastrand::Rng,
}

impl Issuer {
    fn draw(&mut self) -> [u8; CID_BYTES] {
        self.rng.u64(..).to_be_bytes()
    }

    fn bucket(&self, cid: &[u8]) -> u16 {
        bucket_of(self.hasher.hash(&FlowKey::from_bytes(cid)))
    }

    /// This function makes 4096 random draws on average, and takes less than 100 us.
    fn issue_beside(&mut self, cid: &[u8]) -> [u8; CID_BYTES] {
        let bucket = self.bucket(cid);
        loop {
            let drawn = self.draw();
            if self.bucket(&drawn) == bucket {
                return drawn;
            }
        }
    }
}

// ---- the clients

fn traffic(connections: u32, issuer: &mut Issuer) -> Vec<Vec<u8>> {
    let mut stages = [const { Vec::new() }; 4];
    for connection in 0..connections {
        let [_, _, a, b] = connection.to_be_bytes();
        let (home, abroad) = ([10, 0, a, b], [10, 1, a, b]);
        let chosen_by_client = issuer.draw();
        let first = issuer.issue_beside(&chosen_by_client);
        let second = issuer.issue_beside(&chosen_by_client);

        stages[0].push(frame(home, 40_000, &initial(&chosen_by_client), connection));
        stages[1].push(frame(home, 40_000, &short(&first), connection));
        // A NAT gave the client another port. The client does not notice the new port, and keeps
        // its connection id.
        stages[2].push(frame(home, 50_000, &short(&first), connection));
        // The client knows that it moved to another network, so it uses its next connection id.
        stages[3].push(frame(abroad, 40_000, &short(&second), connection));
    }
    stages.concat()
}

fn initial(destination: &[u8]) -> Vec<u8> {
    const FIXED_BIT: u8 = 0x40;
    let mut header = vec![LONG_HEADER | FIXED_BIT, 0, 0, 0, 1, destination.len() as u8];
    header.extend_from_slice(destination);
    header.push(0);
    header
}

fn short(destination: &[u8; CID_BYTES]) -> Vec<u8> {
    [&[0x40], &destination[..]].concat()
}

/// The returned frame ends with the connection's number in clear text, which a real server could
/// not see.
fn frame(source: [u8; 4], port: u16, header: &[u8], connection: u32) -> Vec<u8> {
    let packet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4(source, [192, 0, 2, 1], 64)
        .udp(port, QUIC_PORT);
    let payload = [header, &connection.to_be_bytes()].concat();
    let mut frame = Vec::with_capacity(packet.size(payload.len()));
    packet.write(&mut frame, &payload).expect("a vector takes it, and it is short enough for UDP");
    frame
}

// ---- the device, which delivers the frames of a list

struct Frames(vec::IntoIter<Vec<u8>>);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        let longest = self.0.as_slice().iter().map(Vec::len).max();
        Capabilities::pages(longest.unwrap_or(0)).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        for _ in 0..budget {
            let Some(frame) = self.0.as_slice().first() else { return Ok(Polled::Ended) };
            if !out.copy_in(frame) {
                return Ok(Polled::More);
            }
            self.0.next();
        }
        Ok(Polled::More)
    }
}

// ---- running it

#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) scattered: BTreeSet<u32>,
    pub(crate) by_cpu: Vec<(CpuId, usize)>,
    pub(crate) snapshot: Snapshot,
}

pub(crate) fn run(cpus: usize, connections: u32) -> Result<(Seen, Seen), Box<dyn Error>> {
    // The key of a real server must be random and secret, or clients could overload one CPU.
    let hasher = FlowHasher::keyed(&HashKey::new([0x51; HashKey::LEN]));
    let frames = traffic(connections, &mut Issuer { hasher: hasher.clone(), rng: fastrand::Rng::with_seed(1) });
    let builder = || {
        let queues: Vec<Box<dyn RxQueue>> = vec![Box::new(Frames(frames.clone().into_iter()))];
        Builder::new().virtual_cpus(cpus).policy(Hash).hash(hasher.clone()).input(Input::new(
            "clients",
            "generator",
            queues,
        ))
    };
    Ok((serve(builder().flow_key(quic_key))?, serve(builder())?))
}

fn serve(builder: Builder) -> Result<Seen, Box<dyn Error>> {
    let outcome = builder.build(|_cpu| Server::default())?.start()?.join();
    let mut known = BTreeSet::new();
    let all = outcome.reports.iter().flat_map(|(_, connections)| connections.keys());
    Ok(Seen {
        scattered: all.copied().filter(|connection| !known.insert(*connection)).collect(),
        by_cpu: outcome.reports.iter().map(|(cpu, connections)| (*cpu, connections.len())).collect(),
        snapshot: outcome.snapshot,
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    const CONNECTIONS: u32 = 1000;
    let (by_cid, by_address) = run(4, CONNECTIONS)?;
    println!("{CONNECTIONS} connections, each from three addresses and ports, on 4 CPUs");
    for (how, seen) in [("connection id", by_cid), ("address and port", by_address)] {
        let (scattered, delivered) = (seen.scattered.len(), seen.snapshot.delivered());
        println!("by {how}: {scattered} of them were on more than one CPU, {delivered} packets delivered");
        seen.by_cpu.iter().for_each(|(cpu, connections)| println!("  CPU {cpu}: {connections} connections"));
    }
    Ok(())
}
