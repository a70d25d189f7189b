//! Counts packets and bytes on each CPU: `cargo run --release -p steerage-device --example
//! counter -- capture.pcap`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::error::Error;

use steerage::{Batch, Builder, Cpu, Handler, Outcome};

#[derive(Debug, Default)]
pub(crate) struct Counter {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Handler for Counter {
    type Moved = ();
    type Report = Self;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        self.packets += batch.len() as u64;
        self.bytes += batch.iter_mut().map(|packet| packet.data().len() as u64).sum::<u64>();
    }

    fn finish(self, _cpu: &mut Cpu) -> Self {
        self
    }
}

pub(crate) fn run(device: &str) -> Result<Outcome<Counter>, Box<dyn Error>> {
    let input = steerage_device::open(device)?;
    Ok(Builder::new().input(input).build(|_cpu| Counter::default())?.start()?.join())
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = std::env::args().nth(1).unwrap_or("synthetic:packets=1000000".into());
    for (cpu, Counter { packets, bytes }) in run(&device)?.reports {
        println!("CPU {cpu}: {packets} packets, {bytes} bytes");
    }
    Ok(())
}
