//! A router that is all work: a device that brings packets for many networks, a table of routes to them, and an output that
//! costs nothing.

use std::sync::Arc;

use fastrand::Rng;
use steerage::{
    DeviceError, Input, Output, TxId,
    device::{Capabilities, Completions, Filled, Outgoing, Polled, RxQueue, Sent, TxQueue},
};
use steerage_apps::forward::{Forwarding, Hop, Interface, Neighbour, Neighbours, Routes, Table, Target};

use crate::error::BenchError;

const FRAME_BYTES: usize = 64;
/// To so many networks, of 256 addresses each, behind so many routers.
const ROUTES: u32 = 1000;
const ROUTERS: u8 = 16;

/// UDP packets of 65,536 sources, each to a random address.
struct Packets {
    left: u64,
    rng: Rng,
}

/// From 10.0.x.x to 100.x.x.x, its checksum right for an identification that makes up for both.
const PACKET: [u8; FRAME_BYTES] = {
    let mut frame = [0; FRAME_BYTES];
    (frame[0], frame[6]) = (2, 2);
    (frame[12], frame[14], frame[17], frame[22], frame[23]) = (8, 0x45, 50, 64, 17);
    (frame[26], frame[30]) = (10, 100);
    // 0x4500 + 50 + 64 * 256 + 17 + 10 * 256 + 100 * 256, and the identification's 0xffff, which is 0 here.
    let checksum = !(0x4500_u16 + 50 + 0x4011 + 0x0a00 + 0x6400);
    (frame[24], frame[25]) = ((checksum >> 8) as u8, checksum as u8);
    (frame[37], frame[39]) = (9, 30);
    frame
};

impl RxQueue for Packets {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(FRAME_BYTES).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let count = (budget as u64).min(self.left) as usize;
        let filled = out.fill(count, |page| {
            let drawn = self.rng.u64(..);
            let (source, network, host) = (drawn as u16, ((drawn >> 16) as u32 % ROUTES) as u16, (drawn >> 40) as u8);
            let frame: &mut [u8; FRAME_BYTES] = page.first_chunk_mut().expect("a page holds a frame");
            *frame = PACKET;
            frame[28..30].copy_from_slice(&source.to_be_bytes());
            // 100.0.0.0/8 in networks of 256: two octets of the network, and the host.
            frame[31..33].copy_from_slice(&network.to_be_bytes());
            frame[33] = host;
            let words = [source, u16::from(frame[31]), u16::from_be_bytes([frame[32], frame[33]])];
            let sum: u32 = words.into_iter().map(u32::from).sum();
            frame[18..20].copy_from_slice(&(0xffff - (sum % 0xffff) as u16).to_be_bytes());
            Some(Filled::whole(FRAME_BYTES))
        });
        out.prefetch_pages(budget);
        self.left -= filled as u64;
        Ok(if self.left == 0 { Polled::Ended } else { Polled::More })
    }
}

/// A card that sends at no cost: it looks at each packet's first line.
struct Sink(u8);

impl TxQueue for Sink {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let data = packet.received().data;
            self.0 ^= data[0];
            sent.packets += 1;
            sent.bytes += data.len() as u64;
        }
        Ok(sent)
    }
}

fn table() -> Result<Table, BenchError> {
    let ours = [2, 0, 0, 0, 0, 0];
    let interface = Interface {
        output: TxId(0),
        mac: Some(ours),
        mtu: 1500,
        up: true,
        // No source of the packets: those from the router's own address or from a broadcast address are dropped.
        ipv4: Some([10, 2, 0, 1].into()),
        ipv6: None,
        broadcasts: vec![[10, 2, 0, 255].into()],
    };
    let router = |nth: u32| [10, 1, 0, nth as u8 % ROUTERS].into();
    let mut routes = Routes::default();
    for nth in 0..ROUTES {
        let [_, _, high, low] = nth.to_be_bytes();
        let prefix = format!("100.{high}.{low}.0/24");
        let prefix = prefix.parse().map_err(|error| BenchError::set_up("a route", error))?;
        routes.insert(prefix, Target::Via(vec![Hop { interface: 0, gateway: Some(router(nth)), weight: 1 }]));
    }
    let neighbours = (0..ROUTERS).map(|nth| {
        let mac = [2, 0, 0, 0, 1, nth];
        ((0, router(u32::from(nth))), Arc::new(Neighbour::new(Some(mac))))
    });
    Ok(Table {
        interfaces: vec![interface],
        routes: Arc::new(routes),
        neighbours: Arc::new(Neighbours::from_iter(neighbours)),
    })
}

/// One run's router, its device that brings so many packets, and the output.
///
/// # Errors
/// Where the system has no sockets for it.
pub fn router(packets: u64) -> Result<(Arc<Forwarding>, Input, Output), BenchError> {
    let forwarding = Forwarding::new(vec![0]).map_err(|error| BenchError::set_up("a socket for the router", error))?;
    forwarding.show(table()?);
    let input = Input::new("packets", "bench", vec![Box::new(Packets { left: packets, rng: Rng::with_seed(1) })]);
    let output = Output::new("sink", "bench", |_| Ok(Box::new(Sink(0))));
    Ok((forwarding, input, output))
}
