//! Counts packets and bytes by application. The first bytes of the payload identify the
//! application. If the first bytes are not known, the ports identify the application: `cargo run
//! --release -p steerage-device --example dpi -- eth0`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::{collections::BTreeMap, error::Error, time::Duration};

use steerage::{Batch, Builder, Cpu, Handler, Packet};

const SIGNATURES: [(&[u8], &str); 8] = [
    (b"\x16\x03", "TLS"),
    (b"SSH-", "SSH"),
    (b"HTTP/1.", "HTTP"),
    (b"GET ", "HTTP"),
    (b"POST ", "HTTP"),
    (b"PUT ", "HTTP"),
    (b"HEAD ", "HTTP"),
    (b"\x13BitTorrent protocol", "BitTorrent"),
];

const PORTS: [(u16, &str); 5] = [(22, "SSH"), (53, "DNS"), (80, "HTTP"), (123, "NTP"), (443, "TLS or QUIC")];

fn application(packet: &Packet<'_>) -> &'static str {
    let payload = packet.dissection().payload_offset.and_then(|at| packet.data().get(at as usize..));
    let signed = |(start, _): &&(&[u8], _)| payload.is_some_and(|payload| payload.starts_with(start));
    if let Some((_, name)) = SIGNATURES.iter().find(signed) {
        return name;
    }
    let Some(flow) = packet.flow_key() else { return "no IP" };
    let mut ports = [flow.source(), flow.destination()].into_iter().flatten().map(|end| end.port());
    ports.find_map(|port| Some(PORTS.iter().find(|(known, _)| *known == port)?.1)).unwrap_or("other")
}

/// For each application, the number of packets and the number of their bytes on the wire.
pub(crate) type Counts = BTreeMap<&'static str, (u64, u64)>;

#[derive(Default)]
pub(crate) struct Dpi(Counts);

impl Handler for Dpi {
    type Moved = ();
    type Report = Counts;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            let (packets, bytes) = self.0.entry(application(&packet)).or_default();
            (*packets, *bytes) = (*packets + 1, *bytes + packet.wire_len() as u64);
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> Counts {
        self.0
    }
}

/// Runs until the device ends or `stop` is set. Returns the counts, summed over all CPUs.
pub(crate) fn run(device: &str, stop: &AtomicBool) -> Result<Counts, Box<dyn Error>> {
    let input = steerage_device::open(device)?;
    let running = Builder::new().input(input).build(|_cpu| Dpi::default())?.start()?;
    while !running.handle().wait_finished(Duration::from_millis(100)) {
        if stop.load(Ordering::Relaxed) {
            running.handle().stop();
        }
    }
    let outcome = running.join();
    outcome.notes().iter().for_each(|note| println!("{note}"));
    let mut all = Counts::new();
    for (name, (packets, bytes)) in outcome.reports.into_iter().flat_map(|(_cpu, counts)| counts) {
        let sum = all.entry(name).or_default();
        *sum = (sum.0 + packets, sum.1 + bytes);
    }
    Ok(all)
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("examples/demo.pcapng".into());
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;
    for (name, (packets, bytes)) in run(&device, &stop)? {
        println!("{name:12} {packets:10} packets {bytes:12} bytes");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use steerage::flow::wire::FrameBuilder;
    use steerage::testing;

    use super::*;

    #[test]
    fn the_payload_counts_before_the_ports() {
        let tcp = |port: u16, payload: &[u8]| {
            FrameBuilder::tcp(([10, 0, 0, 1], 40_000), ([10, 0, 0, 2], port)).frame(payload)
        };
        let frames = [
            tcp(443, b"\x16\x03\x01\x02\x00"),
            tcp(8080, b"GET / HTTP/1.1\r\n\r\n"),
            tcp(443, b"SSH-2.0-OpenSSH_9.6\r\n"),
            tcp(443, b"\x17\x03\x03"),
            tcp(80, b""),
            tcp(9, b"\x16"),
            FrameBuilder::udp(([10, 0, 0, 2], 53), ([10, 0, 0, 1], 40_000)).frame(&[0; 20]),
            vec![0; 60],
        ];
        let bytes = |nth: &[usize]| (nth.len() as u64, nth.iter().map(|nth| frames[*nth].len() as u64).sum());
        let expected = [
            ("DNS", bytes(&[6])),
            ("HTTP", bytes(&[1, 4])),
            ("SSH", bytes(&[2])),
            ("TLS", bytes(&[0])),
            ("TLS or QUIC", bytes(&[3])),
            ("no IP", bytes(&[7])),
            ("other", bytes(&[5])),
        ];
        assert_eq!(testing::run(|_cpu| Dpi::default(), frames.clone()).report, Counts::from(expected));
    }

    #[test]
    fn all_packets_of_a_capture_are_counted_once() {
        let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo.pcapng");
        let counts = run(capture, &AtomicBool::new(false)).unwrap();
        assert_eq!(counts.values().map(|(packets, _)| packets).sum::<u64>(), 1000);
        assert!(counts["DNS"].0 > 0 && counts.len() > 2, "{counts:?}");
    }
}
