//! Passes packets between two TUN interfaces in two network namespaces, without encryption.
//!
//! ```text
//! ip netns add a; ip netns add b
//! cargo run --release -p steerage-device --example tun_bridge -- a tun0 b tun0 on
//! ip -n a addr add 10.99.0.1/24 dev tun0; ip -n b addr add 10.99.0.2/24 dev tun0
//! ip netns exec b iperf3 -s -D; ip netns exec a iperf3 -c 10.99.0.2
//! ```
//!
//! With the argument `on`, super-frames pass in one piece. With the argument `off`, the kernel
//! splits super-frames into packets before it passes them on.
//!
//! Each TUN has its own CPU, which also handles the packets: this small handler would not be faster
//! on another CPU. With `steered` as a further argument, the default policy spreads packets over
//! CPUs, which would help a tunnel that encrypts. The program ends when its standard input ends.
#![expect(clippy::print_stdout, reason = "an example shows what it counted")]

use std::fs::File;
use std::io::Read;
use std::{env, io, thread};

use nix::sched::{CloneFlags, setns};
use steerage::{Batch, Builder, Cpu, CpuMask, Handler, TxId};
use steerage_device::tap::{Layer, Tap, TapOptions};

struct Bridge;

impl Handler for Bridge {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        let to = TxId(u8::from(batch.queue() == 0));
        batch.iter_mut().for_each(|packet| packet.transmit(to));
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn open(namespace: &str, interface: &str, offloads: bool) -> Result<Tap, Failure> {
    // A separate thread is necessary, because each thread has its own network namespace.
    let open = || -> Result<Tap, Failure> {
        setns(File::open(format!("/run/netns/{namespace}"))?, CloneFlags::CLONE_NEWNET)?;
        Ok(TapOptions::new(Layer::Tun, interface).offloads(offloads).open()?)
    };
    thread::scope(|scope| scope.spawn(open).join().unwrap_or_else(|_| Err("the thread panicked".into())))
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = env::args().skip(1).collect();
    let (args, steered) = args.split_at(args.len().min(5));
    let ([near, near_tun, far, far_tun, offloads], [] | [_]) = (args, steered) else {
        return Err("usage: tun_bridge NAMESPACE TUN NAMESPACE TUN on|off [steered]".into());
    };
    let (near, far) = (open(near, near_tun, offloads == "on")?, open(far, far_tun, offloads == "on")?);
    let mut builder = Builder::new().input(near.input()?).input(far.input()?);
    if steered.is_empty() {
        // As in the kernel, an empty mask disables steering.
        builder = builder.rps_cpus(CpuMask::default());
    }
    let builder = builder.output(near.output()).output(far.output());
    let running = builder.build(|_| Bridge)?.start()?;
    let _ = io::stdin().read(&mut [0]);
    running.handle().stop();
    let ledger = running.join().snapshot;
    for queue in &ledger.queues {
        println!("{} {} frames, {:?}", queue.device, queue.received, queue.device_counts);
    }
    println!("dropped: {}", ledger.dropped());
    Ok(())
}
