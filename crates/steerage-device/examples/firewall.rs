//! A firewall between two TAPs, which reads its rules again every second: `cargo run --release -p
//! steerage-device --example firewall -- inside outside rules.txt`
#![expect(clippy::print_stderr, reason = "an example says what is wrong")]

use std::collections::HashSet;
use std::{error::Error, fs, sync::Arc, time::Duration};

use steerage::messages::TakesMessages;
use steerage::{Batch, Builder, Cpu, Handler, TxId, flow::protocol::has_ports};
use steerage_device::tap::{Layer, TapOptions};

/// Blocked ports, one per line of the rules file. A flow is blocked if either port is in the set.
pub(crate) type Rules = HashSet<u16>;

/// At the start and after a panic, the firewall has no rules, and no packet passes.
pub(crate) struct Firewall(Option<Arc<Rules>>, [TxId; 2]);

impl Handler for Firewall {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let to = self.1[usize::from(batch.input().0)];
        for packet in batch.iter_mut() {
            let flow = packet.flow_key();
            // The key of an ICMP flow has an identifier instead of ports.
            let has_ports = flow.and_then(|flow| flow.protocol()).is_some_and(has_ports);
            let mut ends = flow.map_or([None; 2], |flow| [flow.source(), flow.destination()]).into_iter().flatten();
            let mut is_blocked = |rules: &Arc<Rules>| has_ports && ends.any(|end| rules.contains(&end.port()));
            if self.0.as_ref().is_none_or(&mut is_blocked) { packet.discard() } else { packet.transmit(to) }
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

impl TakesMessages for Firewall {
    type Message = Arc<Rules>;

    fn message(&mut self, rules: Arc<Rules>, _cpu: &mut Cpu) {
        self.0 = Some(rules);
    }
}

fn read(file: &str) -> Result<Arc<Rules>, Box<dyn Error>> {
    Ok(Arc::new(fs::read_to_string(file)?.lines().map(str::parse).collect::<Result<_, _>>()?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let [inside, outside, file] = [1, 2, 3].map(|nth| std::env::args().nth(nth).unwrap_or_default());
    let [inside, outside] = [TapOptions::new(Layer::Tap, inside).open()?, TapOptions::new(Layer::Tap, outside).open()?];
    let mut builder = Builder::new().input(inside.input()?).input(outside.input()?);
    let outputs = [outside, inside].map(|tap| builder.add_output(tap.output()));
    let (instance, post) = builder.build_with_messages(8, move |_cpu| Firewall(None, outputs))?;
    post.to_all(&read(&file)?);
    let running = instance.start()?;
    while !running.handle().wait_finished(Duration::from_secs(1)) {
        match read(&file) {
            Ok(rules) => drop(post.to_all(&rules)),
            Err(error) => eprintln!("{file}: {error}; the old rules stay"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use steerage::messages::{Post, WithMessages};
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
        let post = Post::new(1);
        let of_cpu = post.clone();
        let firewall = move |cpu| WithMessages::new(cpu, Firewall(None, [TxId(0), TxId(1)]), &of_cpu);
        let mut tester = HandlerTester::new(firewall);
        post.connect(tester.control());
        let mut ping = Vec::new();
        let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(HOST, [10, 0, 0, 2], 64);
        packet.icmpv4_echo_request(25, 1).write(&mut ping, &[]).unwrap();
        let frames = || [frame(HOST, BAD, 80), frame(BAD, HOST, 80), frame(HOST, [10, 0, 0, 2], 25), ping.clone()];
        let sent = Verdict::Transmitted(TxId(0));
        assert_eq!(tester.handle(frames()), [Verdict::Discarded; 4], "there are no rules yet");
        let expected = [
            (Rules::new(), [sent; 4]),
            (Rules::from([25]), [sent, sent, Verdict::Discarded, sent]),
            (Rules::from([80]), [Verdict::Discarded, Verdict::Discarded, sent, sent]),
        ];
        for (rules, verdicts) in expected {
            assert!(post.to_all(&Arc::new(rules)).is_empty());
            tester.advance(Duration::ZERO);
            assert_eq!(tester.handle(frames()), verdicts);
        }
    }

    #[test]
    fn each_side_hears_the_other() {
        let mut builder = Builder::new().virtual_cpus(2);
        builder.add_input(testing::input([frame(HOST, BAD, 1)]));
        builder.add_input(testing::input([frame(BAD, HOST, 2), frame(BAD, HOST, 3)]));
        let sides = [testing::output(), testing::output()];
        let recorded = [sides[0].1.clone(), sides[1].1.clone()];
        let outputs = sides.map(|(output, _)| builder.add_output(output));
        let (instance, post) = builder.build_with_messages(1, move |_cpu| Firewall(None, outputs)).unwrap();
        assert!(post.to_all(&Arc::default()).is_empty());
        instance.start().unwrap().join();
        let mut sent = recorded.map(|side| side.packets().into_iter().map(|packet| packet.bytes).collect::<Vec<_>>());
        // The sent packets belong to two flows, and only packets of the same flow keep their order.
        sent[1].sort_by_key(|frame| frame[37]);
        assert_eq!(sent, [vec![frame(HOST, BAD, 1)], vec![frame(BAD, HOST, 2), frame(BAD, HOST, 3)]]);
    }
}
