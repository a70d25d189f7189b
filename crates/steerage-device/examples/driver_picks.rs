//! A device that chooses the buckets of its packets, as the driver of a smart network card could.
//! The device knows the tenant of each packet, and keeps each tenant's packets together: `cargo run
//! --release -p steerage-device --example driver_picks`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::collections::BTreeSet;
use std::error::Error;

use steerage::device::{Capabilities, Completions, DeviceError, Filled, Polled, RxQueue};
use steerage::flow::wire::FrameBuilder;
use steerage::flow::{Affinity, hash_of_bucket};
use steerage::{Batch, Builder, Cpu, CpuMask, Handler, Hash, Input, Outcome};

pub(crate) const TENANTS: u8 = 100;

/// Packets of many flows. The last byte of the source address is the tenant's number.
pub(crate) struct Card {
    pub(crate) next: u32,
    pub(crate) left: u32,
}

impl RxQueue for Card {
    fn capabilities(&self) -> Capabilities {
        // Both directions of a flow belong to one tenant, and so to one bucket.
        Capabilities::pages(64).can_wait().names_buckets(Affinity::BothDirections)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let count = out.fill(budget.min(self.left as usize), |page| {
            let tenant = (self.next % u32::from(TENANTS)) as u8;
            let (from, to) = ((self.next >> 16) as u16, self.next as u16);
            let udp = FrameBuilder::udp(([10, 0, 0, tenant], from), ([0; 4], to));
            page[..60].copy_from_slice(&udp.frame_of(60));
            self.next += 1;
            // Consecutive tenants get distant buckets, because each CPU starts with a contiguous
            // range of buckets.
            let bucket = u16::from(tenant).wrapping_mul(41);
            Some(Filled::whole(60).with_hash(Some(hash_of_bucket(bucket))))
        });
        self.left -= count as u32;
        Ok(if self.left == 0 { Polled::Ended } else { Polled::More })
    }
}

#[derive(Default)]
pub(crate) struct Tenants(BTreeSet<u8>);

impl Handler for Tenants {
    type Moved = ();
    type Report = BTreeSet<u8>;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        self.0.extend(batch.iter_mut().map(|packet| packet.data()[29]));
    }

    fn finish(self, _cpu: &mut Cpu) -> BTreeSet<u8> {
        self.0
    }
}

pub(crate) fn run(card: Card, cpus: CpuMask) -> Result<Outcome<BTreeSet<u8>>, Box<dyn Error>> {
    let input = Input::new("card", "example", vec![Box::new(card)]);
    // The option `device_hash` does not matter: the device chooses buckets, which are not hashes.
    let builder = Builder::new().virtual_cpus(cpus.len()).policy(Hash).check_order(true).device_hash(false);
    Ok(builder.input(input).build(|_cpu| Tenants::default())?.start()?.join())
}

fn main() -> Result<(), Box<dyn Error>> {
    let cpus: CpuMask = (0..4).map(steerage::CpuId).collect();
    let outcome = run(Card { next: 0, left: 1_000_000 }, cpus)?;
    for (cpu, tenants) in &outcome.reports {
        println!("CPU {cpu} had the packets of {} tenants", tenants.len());
    }
    Ok(())
}
