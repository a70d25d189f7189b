//! Prints the names with the most DNS queries per second: `cargo run --release -p steerage-device
//! --example dns_rates -- eth0`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::{collections::HashMap, error::Error, mem::take, sync::mpsc, time::Duration};

use steerage::{Batch, Builder, Cpu, Handler, Packet, Timestamp, flow::protocol::UDP};

/// Limits the names that a CPU counts per second, so that random names cannot fill the memory.
const NAMES_MAX: usize = 10_000;
type Queries = HashMap<Vec<u8>, u64>;

struct DnsRates(Queries, mpsc::Sender<Queries>);

impl Handler for DnsRates {
    type Moved = ();
    type Report = Queries;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            let mut text = [0; 256];
            let Some(name) = query(&packet).and_then(|query| name(query, &mut text)) else { continue };
            if let Some(count) = self.0.get_mut(name) {
                *count += 1;
            } else if self.0.len() < NAMES_MAX {
                self.0.insert(name.to_vec(), 1);
            }
        }
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        drop(self.1.send(take(&mut self.0))); // The main thread receives until all handlers have ended.
        Some(cpu.now() + Duration::from_secs(1))
    }

    fn finish(self, _cpu: &mut Cpu) -> Queries {
        self.0
    }
}

fn query<'p>(packet: &'p Packet<'_>) -> Option<&'p [u8]> {
    let to = packet.flow_key().filter(|flow| flow.protocol() == Some(UDP))?.destination()?;
    packet.data().get(packet.dissection().payload_offset.filter(|_| to.port() == 53)? as usize..)
}

/// Writes the queried name in lower case, with a dot before each label. `None`: not a query.
fn name<'t>(message: &[u8], text: &'t mut [u8; 256]) -> Option<&'t [u8]> {
    let mut at = 12;
    while let len @ 1..64 = usize::from(*message.get(at)?) {
        text.get_mut(at - 12..=at - 12 + len)?.copy_from_slice(message.get(at..=at + len)?);
        text[at - 12] = b'.';
        at += 1 + len;
    }
    text.make_ascii_lowercase();
    // A byte other than 0 begins a pointer to an earlier name, but there is no earlier name.
    (message[at] == 0 && at < 12 + 255 && message[2] < 0x80).then_some(&text[..at - 12])
}

fn print(parts: impl Iterator<Item = Queries>) {
    let mut sum = Queries::new();
    parts.flatten().for_each(|(name, count)| *sum.entry(name).or_default() += count);
    let mut sorted: Vec<_> = sum.into_iter().map(|(name, count)| (count, name)).collect();
    sorted.sort();
    sorted.iter().rev().take(10).for_each(|(count, name)| println!("{count:8}/s {}", name.escape_ascii()));
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("synthetic:packets=1000000".into());
    let (sender, seconds) = mpsc::channel();
    let make = move |_cpu| DnsRates(Queries::new(), sender.clone());
    let running = Builder::new().input(steerage_device::open(&device)?).build(make)?.start()?;
    while !running.handle().wait_finished(Duration::from_secs(1)) {
        print(seconds.try_iter());
    }
    let last = running.join().reports.into_iter().map(|(_cpu, queries)| queries);
    print(seconds.try_iter().chain(last));
    Ok(())
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use steerage::testing::{self, HandlerTester};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn frame(ports: (u16, u16), flags: u8, name: &[u8]) -> Vec<u8> {
        let message = [&[0, 1, flags, 0, 0, 1, 0, 0, 0, 0, 0, 0], name, &[0, 1, 0, 1]].concat();
        let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        let mut frame = Vec::new();
        packet.udp(ports.0, ports.1).write(&mut frame, &message).unwrap();
        frame
    }

    fn query(name: &[u8]) -> Vec<u8> {
        frame((4000, 53), 1, name)
    }

    fn counts<const N: usize>(names: [(&[u8], u64); N]) -> Queries {
        names.into_iter().map(|(name, count)| (name.to_vec(), count)).collect()
    }

    #[test]
    fn each_second_has_its_queries_and_so_has_the_part_of_one_before_the_end() {
        let (sender, seconds) = mpsc::channel();
        let mut tester = HandlerTester::new(move |_cpu| DnsRates(Queries::new(), sender.clone()));
        tester.handle([query(b"\x07example\x03com\0"), query(b"\x07eXample\x03COM\0"), query(b"\x02de\0")]);
        tester.advance(SECOND);
        tester.handle([query(b"\x01a\x02bc\0")]);
        tester.advance(SECOND / 4);
        let last = tester.finish().report;

        // The handler's first tick is called before its first packet.
        let sent = [Queries::new(), counts([(b".example.com", 2), (b".de", 1)])];
        assert_eq!(seconds.try_iter().collect::<Vec<_>>(), sent);
        assert_eq!(last, counts([(b".a.bc", 1)]));
    }

    #[test]
    fn only_queries_to_port_53_count() {
        let name = b"\x01a\x01b\0";
        let from_server = frame((53, 4000), 0x81, name);
        let response_to_53 = frame((53, 53), 0x81, name);
        // An ICMP error belongs to the flow of the packet that the error quotes.
        let mut error = Vec::new();
        let icmp =
            PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64).icmpv4_raw(3, 3, [0; 4]);
        icmp.write(&mut error, &frame((53, 53), 1, name)[14..]).unwrap();
        let frames = [query(name), from_server, response_to_53, error, frame((4000, 5353), 1, name), vec![0; 60]];
        let (sender, _seconds) = mpsc::channel();
        let tested = testing::run(move |_cpu| DnsRates(Queries::new(), sender.clone()), frames);
        assert_eq!(tested.report, counts([(b".a.b", 1)]));
    }

    #[test]
    fn names_that_are_cut_or_loop_are_no_names() {
        let find = |message: &[u8]| name(message, &mut [0; 256]).map(<[u8]>::to_vec);
        let whole = [&[0; 12][..], b"\x3f", &[b'A'; 63], b"\x01b\0"].concat();
        assert_eq!(find(&whole), Some([b".", &[b'a'; 63][..], b".b"].concat()));
        for cut in 0..whole.len() {
            assert_eq!(find(&whole[..cut]), None, "{cut}");
        }
        // Invalid names: a pointer to itself, a pointer after a label, and label lengths that are
        // not allowed.
        for name in [&b"\xc0\x0c"[..], b"\x01a\xc0\x0c\0", b"\xff\xff", b"\x40", b"\x80\0"] {
            assert_eq!(find(&[&[0; 12], name, &[0; 99]].concat()), None, "{name:?}");
        }
        // A name has at most 255 bytes, so four labels of 63 bytes are too long.
        for (labels, is_name) in [(3, true), (4, false)] {
            let name = [&[63][..], &[b'a'; 63]].concat().repeat(labels);
            assert_eq!(find(&[&[0; 12], &name[..], &[0]].concat()).is_some(), is_name, "{labels}");
        }
    }

    #[test]
    fn random_names_do_not_fill_the_memory() {
        let frames: Vec<_> = (0..NAMES_MAX + 10).map(|n| query(format!("\x05{n:05}\0").as_bytes())).collect();
        let (sender, _seconds) = mpsc::channel();
        let tested = testing::run(move |_cpu| DnsRates(Queries::new(), sender.clone()), frames);
        assert_eq!(tested.report.len(), NAMES_MAX);
    }
}
