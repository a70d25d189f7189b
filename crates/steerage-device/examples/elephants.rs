//! A custom policy: buckets with much work (elephants) are handled by the last CPU of the mask, and
//! all other buckets by the other CPUs. A small flow then never waits for a large flow. `cargo run
//! --release -p steerage-device --example elephants`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::error::Error;

use steerage::packet::each;
use steerage::policy::{GroupLoad, GroupStart, MapRequest, Plan, Policy};
use steerage::{Builder, Snapshot, stats::MoveCause};

/// A bucket that takes this share of a CPU's time becomes an elephant. An elephant stays an
/// elephant until its share is less than half of `ELEPHANT`, so that the bucket does not move back
/// and forth.
const ELEPHANT: f64 = 0.1;

#[derive(Clone, Debug)]
pub(crate) struct LastForElephants;

impl Policy for LastForElephants {
    fn name(&self) -> &'static str {
        "elephants"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
        Plan { order: group.order.to_vec(), active: (group.order.len() - 1).max(1) }
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        let window = load.window?; // Only these checks measure the buckets.
        let (last, others) = load.order.split_last().filter(|(_, others)| !others.is_empty())?;
        let mut map = Box::new(*load.map);
        for (bucket, cpu) in map.iter_mut().enumerate() {
            let is_there = *cpu == *last;
            let limit = if is_there { ELEPHANT / 2.0 } else { ELEPHANT };
            match window.buckets[bucket] >= limit {
                true => *cpu = *last,
                false if is_there => *cpu = others[bucket % others.len()],
                false => {}
            }
        }
        (map[..] != load.map[..]).then(|| MapRequest::new(map, MoveCause::Balance))
    }
}

pub(crate) fn run(device: &str, cpus: usize) -> Result<Snapshot, Box<dyn Error>> {
    let builder = Builder::new().virtual_cpus(cpus).input(steerage_device::open(device)?).policy(LastForElephants);
    Ok(builder.build(each(|packet| _ = packet.flow_key()))?.start()?.join().snapshot)
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("synthetic:packets=3000000,flows=10000,zipf=1.3,rate=500000".into());
    for cpu in run(&device, 4)?.cpus {
        println!("CPU {}: {} packets", cpu.cpu, cpu.processed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use steerage::limits::BUCKETS;
    use steerage::policy::PolicyTester;

    use super::*;

    #[test]
    fn an_elephant_goes_to_the_last_cpu_and_returns_when_it_shrinks() {
        let mut tester = PolicyTester::new(LastForElephants, 4);
        assert_eq!((tester.buckets_of(3), tester.check()), (0, None));
        (tester.work()[7], tester.work()[9]) = (0.3, 0.09);
        assert_eq!((tester.check(), tester.map()[7], tester.busy(3)), (Some(MoveCause::Balance), 3, 0.3));
        assert_eq!((tester.check(), tester.buckets_of(3)), (None, 1));
        tester.work()[7] = 0.06;
        assert_eq!(tester.check(), None);
        tester.work()[7] = 0.04;
        assert_eq!((tester.check(), tester.buckets_of(3)), (Some(MoveCause::Balance), 0));
        assert_eq!((0..3).map(|cpu| tester.buckets_of(cpu)).sum::<usize>(), BUCKETS);
    }

    #[test]
    fn one_cpu_has_elephants_as_well() {
        let mut tester = PolicyTester::new(LastForElephants, 1);
        tester.work()[7] = 0.9;
        assert_eq!((tester.check(), tester.buckets_of(0)), (None, BUCKETS));
    }

    #[test]
    fn flows_keep_their_order() {
        let ledger = run("synthetic:packets=100000,flows=1000,zipf=1.5", 4).unwrap();
        assert_eq!((ledger.delivered(), &*ledger.groups[0].policy), (100_000, "elephants"));
        steerage_fixtures::assert_at_rest(&ledger);
    }
}
