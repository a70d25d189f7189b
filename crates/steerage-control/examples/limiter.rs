//! Limits the packet rate of each flow between two network interfaces through AF_XDP, and serves
//! metrics for Prometheus: `cargo run --release -p steerage-control --example limiter -- eth1 eth2
//! 5000`
#![expect(clippy::print_stdout, reason = "an example says where its page is")]

use std::sync::{Arc, atomic::AtomicBool, atomic::Ordering};
use std::{error::Error, time::Duration};

use steerage::flow::{Part, Table};
use steerage::stats::{CounterError, CpuCounter, NamedCounter};
use steerage::{Batch, BucketId, Builder, Cpu, CpuId, FlowKey, Handler, Input, Output, Timestamp, TxId};
use steerage_control::metrics::{ADDRESS_DEFAULT, Listener, Source};
use steerage_device::af_xdp::{AfXdpOptions, AfXdpOutput};

/// The maximum number of flows on a CPU. Further flows are not limited. Flows that are idle are
/// removed from the table.
const FLOWS_MAX: usize = 1_000_000;
const IDLE: Duration = Duration::from_secs(10);

/// The maximum burst of a flow, as the time in which the flow may send so many packets at its rate.
const BURST: Duration = Duration::from_millis(50);

/// How many packets the flow may still send, and when the flow's last packet arrived.
pub(crate) struct Credit(f64, Timestamp);

impl Credit {
    fn takes(&mut self, rate: f64, now: Timestamp) -> bool {
        let earned = self.0 + rate * now.since(self.1).as_secs_f64();
        (self.0, self.1) = (earned.min(burst(rate)), now);
        let may_pass = self.0 >= 1.0;
        self.0 -= f64::from(u8::from(may_pass));
        may_pass
    }
}

fn burst(rate: f64) -> f64 {
    (rate * BURST.as_secs_f64()).max(1.0)
}

pub(crate) struct Limiter {
    /// The rate of each flow, in packets per second.
    rate: f64,
    flows: Table<FlowKey, Credit>,
    /// Packets of input `i` leave through `outputs[i]`.
    outputs: [TxId; 2],
    passed: CpuCounter,
    limited: CpuCounter,
}

impl Handler for Limiter {
    type Moved = Part<FlowKey, Credit>;
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        let (to, now, rate) = (self.outputs[usize::from(batch.input().0)], cpu.now(), self.rate);
        let mut limited = 0;
        for packet in batch.iter_mut() {
            let (bucket, key) = (packet.bucket(), packet.flow_key());
            let credit = key.and_then(|key| self.flows.entry_with(bucket, key, now, || Credit(burst(rate), now)));
            if credit.is_none_or(|credit| credit.takes(rate, now)) {
                packet.transmit(to);
            } else {
                packet.discard();
                limited += 1;
            }
        }
        self.passed.add(batch.len() as u64 - limited);
        self.limited.add(limited);
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        self.flows.expire(cpu.now(), 10_000, |_flow, _credit| {});
        Some(cpu.now() + Duration::from_millis(100))
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Self::Moved> {
        self.flows.leave(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, flows: Self::Moved) {
        self.flows.arrive(bucket, flows);
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

pub(crate) fn counters(builder: &Builder) -> Result<[NamedCounter; 2], CounterError> {
    let passed = builder.counters().add("within_rate", "Packets within the rate of their flow.", "packets")?;
    Ok([passed, builder.counters().add("above_rate", "Packets above the rate of their flow.", "packets")?])
}

pub(crate) fn make([passed, limited]: &[NamedCounter; 2], outputs: [TxId; 2], rate: f64, cpu: CpuId) -> Limiter {
    let flows = Table::new(FLOWS_MAX, IDLE);
    Limiter { rate, flows, outputs, passed: passed.on(cpu), limited: limited.on(cpu) }
}

/// Opens an interface as an input that receives all its packets, and as an output.
pub(crate) fn open(interface: &str) -> Result<(Input, Output), Box<dyn Error>> {
    let taken = AfXdpOptions::new(interface).take("all".parse()?).open()?;
    Ok((taken.input, AfXdpOutput::new(interface).open()?))
}

pub(crate) fn run(
    ports: [(Input, Output); 2],
    rate: f64,
    listener: Listener,
    stop: &AtomicBool,
) -> Result<(), Box<dyn Error>> {
    let [(one, to_one), (other, to_other)] = ports;
    let mut builder = Builder::new().input(one).input(other);
    let outputs = [builder.add_output(to_other), builder.add_output(to_one)];
    let counters = counters(&builder)?;
    let running = builder.build(move |cpu| make(&counters, outputs, rate, cpu))?.start()?;
    let handle = running.handle();
    let _page = listener.serve(Source::new(handle.clone()).prefix("limiter"))?;
    while !handle.wait_finished(Duration::from_millis(100)) {
        if stop.load(Ordering::Relaxed) {
            handle.stop();
        }
    }
    running.join().notes().iter().for_each(|note| println!("{note}"));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let [one, other, rate] = [1, 2, 3].map(|nth| std::env::args().nth(nth).unwrap_or_default());
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;
    let listener = Listener::bind("metrics", ADDRESS_DEFAULT)?;
    println!("http://{}/metrics", listener.address());
    run([open(&one)?, open(&other)?], rate.parse()?, listener, &stop)
}

#[cfg(test)]
mod tests {
    use steerage::flow::wire::FrameBuilder;
    use steerage::packet::Verdict;
    use steerage::testing::{HandlerTester, TesterOptions};

    use super::*;

    #[test]
    fn each_flow_has_its_rate_also_on_another_cpu() {
        let builder = Builder::new();
        let named = counters(&builder).unwrap();
        let options = TesterOptions { cpus: 2, ..TesterOptions::default() };
        let (count, rate) = (named.clone(), 100.0);
        let mut tester = HandlerTester::with(options, move |cpu| make(&count, [TxId(1), TxId(0)], rate, cpu));
        let frame = |port: u16| FrameBuilder::udp(([10, 0, 0, 1], port), ([10, 0, 0, 2], 53)).frame(&[0; 20]);
        let passed =
            |verdicts: Vec<Verdict>| verdicts.iter().filter(|one| **one == Verdict::Transmitted(TxId(1))).count();
        // At the rate of this test, a burst (the packets of 50 ms) has 5 packets.
        assert_eq!(passed(tester.handle(vec![frame(1); 20])), 5);
        assert_eq!(passed(tester.handle(vec![frame(2); 3])), 3);
        tester.move_to(CpuId(1));
        assert_eq!(passed(tester.handle(vec![frame(1); 20])), 0, "the credit of the flow has moved");
        tester.advance(Duration::from_millis(20));
        assert_eq!(passed(tester.handle(vec![frame(1); 20])), 2);
        // The limiter passes frames that belong to no flow.
        assert_eq!(passed(tester.handle([[0; 60]])), 1);
        assert_eq!(named.map(|counter| counter.total()), [11, 53]);
    }
}
