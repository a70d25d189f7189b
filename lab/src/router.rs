//! A benchmark of the router without real devices: the output takes no time.

use std::sync::Arc;

use fastrand::Rng;
use steerage::{
    DeviceError, Input, Output, TxId,
    device::{Capabilities, Completions, Filled, Outgoing, Polled, RxQueue, Sent, TxQueue},
    flow::wire::{FrameBuilder, port::DISCARD},
};
use steerage_router::{Forwarding, Hop, Interface, Neighbour, Neighbours, Routes, Table, Target};

use crate::error::LabError;
use crate::load::Pace;

const FRAME_BYTES: usize = 64;
/// The number of networks of 256 addresses, whose routes lead through `ROUTERS` routers.
const ROUTES: u32 = 1000;
const ROUTERS: u8 = 16;

/// UDP packets from 65,536 sources, each to a random address.
struct Packets {
    pace: Pace,
    frames: u64,
    sent: u64,
    rng: Rng,
    template: [u8; FRAME_BYTES],
}

/// When the device changes the addresses of a frame, it also changes the IPv4 identification, so
/// that the checksum stays correct.
fn template() -> [u8; FRAME_BYTES] {
    let udp = FrameBuilder::udp(([10, 0, 0, 0], 0), ([100, 0, 0, 0], DISCARD));
    udp.frame_of(FRAME_BYTES).try_into().expect("a frame of this length")
}

impl RxQueue for Packets {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::pages(FRAME_BYTES);
        can.can_wait = self.pace.can_wait();
        can
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let due = self.pace.due(out, budget);
        let count = (self.frames - self.sent).saturating_sub(self.pace.lost).min(due as u64) as usize;
        let filled = out.fill(count, |page| {
            let drawn = self.rng.u64(..);
            let (source, network, host) = (drawn as u16, ((drawn >> 16) as u32 % ROUTES) as u16, (drawn >> 40) as u8);
            let frame: &mut [u8; FRAME_BYTES] = page.first_chunk_mut().expect("a page holds a frame");
            *frame = self.template;
            frame[28..30].copy_from_slice(&source.to_be_bytes());
            // Two octets of 100.0.0.0/8 select a network of 256 addresses, and one octet the host.
            frame[31..33].copy_from_slice(&network.to_be_bytes());
            frame[33] = host;
            let words = [source, u16::from(frame[31]), u16::from_be_bytes([frame[32], frame[33]])];
            let sum: u32 = words.into_iter().map(u32::from).sum();
            frame[18..20].copy_from_slice(&(0xffff - (sum % 0xffff) as u16).to_be_bytes());
            self.pace.take();
            Some(Filled::whole(FRAME_BYTES))
        });
        out.prefetch_pages(budget);
        self.sent += filled as u64;
        let came = self.sent + self.pace.lost;
        Ok(if came >= self.frames { Polled::Ended } else { self.pace.polled(count, budget) })
    }
}

/// An output that sends like a network card, without CPU time: it reads only the first cache line
/// of each packet.
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

fn table() -> Result<Table, LabError> {
    // The destination link address of the frames that `FrameBuilder` makes.
    let ours = [2, 0, 0, 0, 0, 2];
    let interface = Interface {
        output: TxId(0),
        mac: Some(ours),
        mtu: 1500,
        up: true,
        // The router drops packets from its own address and from broadcast addresses.
        ipv4: Some([10, 2, 0, 1].into()),
        ipv6: None,
        broadcasts: vec![[10, 2, 0, 255].into()],
    };
    let router = |nth: u32| [10, 1, 0, nth as u8 % ROUTERS].into();
    let mut routes = Routes::default();
    for nth in 0..ROUTES {
        let [_, _, high, low] = nth.to_be_bytes();
        let prefix = format!("100.{high}.{low}.0/24");
        let prefix = prefix.parse().map_err(|error| LabError::set_up("a route", error))?;
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

/// Creates the router, the device that delivers `packets` packets, and the output. If `rate` is
/// set, `rate` packets arrive per second, even if the receive path does not accept all of them.
///
/// # Errors
/// Returns an error if the system cannot provide a socket for the router.
pub fn router(packets: u64, rate: Option<f64>) -> Result<(Arc<Forwarding>, Input, Output), LabError> {
    let forwarding = Forwarding::new(vec![0]).map_err(|error| LabError::set_up("a socket for the router", error))?;
    forwarding.show(table()?);
    let queue =
        Packets { pace: Pace::new(rate), frames: packets, sent: 0, rng: Rng::with_seed(1), template: template() };
    let input = Input::new("packets", "bench", vec![Box::new(queue)]);
    let output = Output::new("sink", "bench", |_| Ok(Box::new(Sink(0))));
    Ok((forwarding, input, output))
}
