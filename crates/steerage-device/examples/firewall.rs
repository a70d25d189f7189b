//! A firewall between two TAPs, which reads its rules again every second: `cargo run --release -p
//! steerage-device --example firewall -- inside outside rules.txt`
#![expect(clippy::print_stderr, reason = "an example says what is wrong")]

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, atomic::AtomicU64, atomic::Ordering};
use std::{error::Error, fs, time::Duration};

use steerage::{Batch, Builder, Cpu, Handler, TxId, flow::protocol::has_ports};
use steerage_device::tap::{Layer, TapOptions};

/// The blocked ports, for either end of a flow. The file has one port per line.
pub(crate) type Rules = HashSet<u16>;

/// The current rules, which any thread may replace. The number changes with each replacement.
#[derive(Default)]
pub(crate) struct Shared(AtomicU64, Mutex<Arc<Rules>>);

impl Shared {
    pub(crate) fn set(&self, rules: Rules) {
        *self.1.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
        self.0.fetch_add(1, Ordering::Release);
    }
}

pub(crate) struct Firewall(Arc<Shared>, u64, Arc<Rules>, [TxId; 2]);

impl Firewall {
    pub(crate) fn new(shared: &Arc<Shared>, outputs: [TxId; 2]) -> Self {
        let rules = Arc::clone(&shared.1.lock().unwrap_or_else(PoisonError::into_inner));
        Self(Arc::clone(shared), 0, rules, outputs)
    }
}

impl Handler for Firewall {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let Self(shared, version, rules, outputs) = self;
        let now = shared.0.load(Ordering::Acquire);
        if let Some(new) = (now != *version).then(|| shared.1.try_lock().ok()).flatten() {
            (*version, *rules) = (now, Arc::clone(&new));
        }
        let to = outputs[usize::from(batch.input().0)];
        for packet in batch.iter_mut() {
            let flow = packet.flow_key();
            // The key of an ICMP flow has an identifier instead of ports.
            let has_ports = flow.and_then(|flow| flow.protocol()).is_some_and(has_ports);
            let mut ends = flow.map_or([None; 2], |flow| [flow.source(), flow.destination()]).into_iter().flatten();
            let is_blocked = has_ports && ends.any(|end| rules.contains(&end.port()));
            if is_blocked { packet.discard() } else { packet.transmit(to) }
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn read(file: &str) -> Result<Rules, Box<dyn Error>> {
    Ok(fs::read_to_string(file)?.lines().map(str::parse).collect::<Result<_, _>>()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let [inside, outside, file] = [1, 2, 3].map(|nth| std::env::args().nth(nth).unwrap_or_default());
    let [inside, outside] = [TapOptions::new(Layer::Tap, inside).open()?, TapOptions::new(Layer::Tap, outside).open()?];
    let mut builder = Builder::new().input(inside.input()?).input(outside.input()?);
    let outputs = [outside, inside].map(|tap| builder.add_output(tap.output()));
    let shared = Arc::<Shared>::default();
    shared.set(read(&file)?);
    let rules = Arc::clone(&shared);
    let running = builder.build(move |_| Firewall::new(&rules, outputs))?.start()?;
    while !running.handle().wait_finished(Duration::from_secs(1)) {
        read(&file).map_or_else(|error| eprintln!("{file}: {error}; the old rules stay"), |rules| shared.set(rules));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use steerage::packet::Verdict;
    use steerage::testing::{self, HandlerTester};

    use super::*;

    fn frame(from: [u8; 4], to: [u8; 4], port: u16) -> Vec<u8> {
        let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(from, to, 64).udp(4000, port);
        let mut frame = Vec::new();
        packet.write(&mut frame, &[0; 20]).unwrap();
        frame
    }

    const HOST: [u8; 4] = [10, 0, 0, 1];
    const BAD: [u8; 4] = [192, 0, 2, 7];

    #[test]
    fn new_rules_are_in_force_from_the_next_batch_on() {
        let shared = Arc::<Shared>::default();
        let rules = Arc::clone(&shared);
        let firewall = move |_| Firewall::new(&rules, [TxId(0), TxId(1)]);
        let mut tester = HandlerTester::new(firewall);
        // A ping whose identifier is the number of a blocked port.
        let mut ping = Vec::new();
        let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(HOST, [10, 0, 0, 2], 64);
        packet.icmpv4_echo_request(25, 1).write(&mut ping, &[]).unwrap();
        let frames = || [frame(HOST, BAD, 80), frame(BAD, HOST, 80), frame(HOST, [10, 0, 0, 2], 25), ping.clone()];
        let sent = Verdict::Transmitted(TxId(0));
        assert_eq!(tester.handle(frames()), [sent; 4]);
        shared.set(Rules::from([25]));
        assert_eq!(tester.handle(frames()), [sent, sent, Verdict::Discarded, sent]);
        shared.set(Rules::from([80]));
        assert_eq!(tester.handle(frames()), [Verdict::Discarded, Verdict::Discarded, sent, sent]);
        // A thread that holds the lock of the rules does not delay any packet.
        let guard = shared.1.lock().unwrap();
        shared.0.fetch_add(1, Ordering::Release);
        assert_eq!(tester.handle(frames()), [Verdict::Discarded, Verdict::Discarded, sent, sent]);
        drop(guard);
    }

    #[test]
    fn each_side_hears_the_other() {
        let mut builder = Builder::new().virtual_cpus(2);
        builder.add_input(testing::input([frame(HOST, BAD, 1)]));
        builder.add_input(testing::input([frame(BAD, HOST, 2), frame(BAD, HOST, 3)]));
        let sides = [testing::output(), testing::output()];
        let recorded = [sides[0].1.clone(), sides[1].1.clone()];
        let outputs = sides.map(|(output, _)| builder.add_output(output));
        let shared = Arc::<Shared>::default();
        let make = move |_| Firewall::new(&shared, outputs);
        builder.build(make).unwrap().start().unwrap().join();
        let mut sent = recorded.map(|side| side.packets().into_iter().map(|packet| packet.bytes).collect::<Vec<_>>());
        // The order of packets is defined within a flow only, and these are two flows.
        sent[1].sort_by_key(|frame| frame[37]);
        assert_eq!(sent, [vec![frame(HOST, BAD, 1)], vec![frame(BAD, HOST, 2), frame(BAD, HOST, 3)]]);
    }
}
