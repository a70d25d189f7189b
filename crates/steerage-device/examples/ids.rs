//! Finds port scans, and stops after ten scans: `cargo run --release -p steerage-device --example
//! ids -- capture.pcap`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::{collections::HashMap, error::Error, net::IpAddr, net::SocketAddr, time::Duration};

use steerage::flow::{Layers, PacketClock, Part, Table, flow_key};
use steerage::{Batch, BucketId, Builder, Cpu, FlowKey, Handler, LinkType, WallTime};

/// A source that tries `PORTS` ports within the time `WINDOW` is a scanner.
const PORTS: usize = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// The run stops when a CPU has found `ALERTS_MAX` scans.
const ALERTS_MAX: usize = 10;

/// The maximum number of sources per CPU. A source that is silent for `WINDOW` is removed.
const SOURCES_MAX: usize = 100_000;

/// For each port that a source tried, the time of the last attempt to connect to the port.
type Ports = HashMap<u16, WallTime>;

pub(crate) struct Ids {
    sources: Table<IpAddr, Ports, WallTime>,
    clock: PacketClock,
    alerts: Vec<(WallTime, IpAddr)>,
}

impl Default for Ids {
    fn default() -> Self {
        Self { sources: Table::new(SOURCES_MAX, WINDOW), clock: PacketClock::default(), alerts: Vec::new() }
    }
}

impl Handler for Ids {
    type Moved = Part<IpAddr, Ports, WallTime>;
    type Report = Vec<(WallTime, IpAddr)>;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            let now = self.clock.see(packet.time(), cpu.now());
            let is_syn = packet.dissection().tcp_flags.is_some_and(|flags| flags & 0x12 == 0x02); // without ACK
            let ends = packet.flow_key().and_then(|flow| Some((flow.source()?.ip(), flow.destination()?.port())));
            let Some((source, port)) = ends.filter(|_| is_syn) else { continue };
            let Some(ports) = self.sources.entry(packet.bucket(), source, now) else { continue };
            ports.retain(|_, tried| now.since(*tried) < WINDOW);
            if ports.insert(port, now).is_none() && ports.len() == PORTS {
                ports.clear();
                self.alerts.push((now, source));
                if self.alerts.len() == ALERTS_MAX {
                    cpu.stop();
                }
            }
        }
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Self::Moved> {
        self.sources.leave(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, sources: Self::Moved) {
        self.sources.arrive_with(bucket, sources, |here, arrived| here.0.extend(arrived.0));
    }

    fn finish(self, _cpu: &mut Cpu) -> Self::Report {
        self.alerts
    }
}

/// All packets of a source go to one CPU.
fn by_source(frame: &[u8]) -> Option<FlowKey> {
    let host = SocketAddr::new(flow_key(frame, LinkType::ETHERNET, Layers::Inner)?.source()?.ip(), 0);
    FlowKey::between(host, host, 0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("synthetic:packets=1000000,mix=tcp4".into());
    let builder = Builder::new().input(steerage_device::open(&device)?).flow_key(by_source);
    let reports = builder.build(|_cpu| Ids::default())?.start()?.join().reports;
    for (time, source) in reports.into_iter().flat_map(|(_cpu, alerts)| alerts) {
        println!("{time}: {source} tried {PORTS} ports within {WINDOW:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use etherparse::PacketBuilder;
    use steerage::testing::{self, Frame};
    use steerage::{CpuId, CpuMask, Hash, Instance, Outcome, threads::Stepped};
    use steerage_fixtures::manual_clock::ManualClock;

    use super::*;

    type Alert = (WallTime, IpAddr);
    const TARGET: [u8; 4] = [192, 0, 2, 1];

    fn seconds(seconds: u64) -> WallTime {
        WallTime::from_nanos(seconds * 1_000_000_000)
    }

    fn syn(source: [u8; 4], port: u16, time: u64, is_response: bool) -> Frame {
        let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(source, TARGET, 64).tcp(4000, port, 0, 1000).syn();
        let packet = if is_response { packet.ack(1) } else { packet };
        let mut frame = Vec::new();
        packet.write(&mut frame, &[]).unwrap();
        Frame::new(frame).with_time(seconds(time))
    }

    fn instance(cpus: usize, frames: impl IntoIterator<Item = Frame>) -> Instance<Ids> {
        let builder = Builder::new().virtual_cpus(cpus).input(testing::input(frames)).flow_key(by_source);
        builder.policy(Hash).rps_cpus(mask(0)).build(|_cpu| Ids::default()).unwrap()
    }

    fn mask(cpu: u16) -> CpuMask {
        [CpuId(cpu)].into_iter().collect()
    }

    fn run(frames: impl IntoIterator<Item = Frame>) -> Outcome<Vec<Alert>> {
        instance(1, frames).start().unwrap().join()
    }

    #[test]
    fn a_scan_is_many_ports_within_the_window() {
        let source = [10, 0, 0, 1];
        let alerts = |frames: Vec<Frame>| run(frames).reports.remove(0).1;
        let attempts = |every: u64| (0..40).map(move |nth| syn(source, nth, u64::from(nth) * every, false)).collect();
        // The source tries the 20th port after 19 intervals. Then counting starts again.
        assert_eq!(alerts(attempts(1)), [(seconds(19), source.into()), (seconds(39), source.into())]);
        assert_eq!(alerts(attempts(3)), [(seconds(57), source.into()), (seconds(117), source.into())]);
        assert_eq!(alerts(attempts(4)), []);
        // These are no scans: one port that is tried repeatedly, and a server that answers many
        // clients.
        assert_eq!(alerts((0..40).map(|_| syn(source, 80, 1, false)).collect()), []);
        assert_eq!(alerts((0..40).map(|port| syn(source, port, 1, true)).collect()), []);
        // Two sources together try enough ports for a scan, but neither source alone does.
        assert_eq!(alerts((0..38).map(|nth| syn([10, 0, 0, nth as u8 % 2], nth, 1, false)).collect()), []);
    }

    #[test]
    fn enough_scans_stop_the_run() {
        let scans = (0..20_000).map(|nth| syn([10, 0, 0, (nth / PORTS % 250) as u8], nth as u16, 1, false));
        let outcome = run(scans);
        assert!(outcome.snapshot.received() < 20_000, "{}", outcome.snapshot.received());
        assert!(outcome.reports[0].1.len() >= ALERTS_MAX);
    }

    /// Each source has tried some ports when its bucket moves to the other CPU.
    #[test]
    fn a_scan_is_seen_although_its_bucket_moves() {
        let sources: Vec<[u8; 4]> = (0..ALERTS_MAX as u8 - 1).map(|source| [10, 0, 1, source]).collect();
        let ports =
            |ports: Range<u16>| ports.flat_map(|port| sources.iter().map(move |source| syn(*source, port, 1, false)));
        // The CPUs handle the packets of `between` during the move, which ends before the sources
        // try their other ports.
        let between = (0..30_000).map(|port| syn([10, 0, 2, 1], port, 1, true));
        let frames = ports(0..PORTS as u16 / 2).chain(between).chain(ports(PORTS as u16 / 2..PORTS as u16));
        let (parts, handle) = instance(2, frames).split();
        let mut cpus: Vec<_> = parts.into_iter().map(|part| part.enter(ManualClock::default())).collect();
        while handle.snapshot().delivered() == 0 {
            cpus[0].step();
        }
        handle.set_rps_cpus(&mask(1)).unwrap();
        while !cpus.iter_mut().map(|cpu| cpu.step()).fold(true, |all, stepped| all & (stepped == Stepped::Finished)) {}

        let alerts: Vec<Vec<Alert>> = cpus.into_iter().map(|cpu| cpu.finish()).collect();
        let mut found: Vec<IpAddr> = alerts.concat().into_iter().map(|(_, source)| source).collect();
        found.sort();
        assert_eq!(found, sources.into_iter().map(IpAddr::from).collect::<Vec<_>>());
        assert_eq!(alerts[1].len(), ALERTS_MAX - 1);
        assert!(handle.snapshot().moves.buckets > 0);
    }
}
