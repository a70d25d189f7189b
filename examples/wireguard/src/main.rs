//! A WireGuard gateway on all CPUs.
//!
//! ```text
//! cargo run --release --manifest-path examples/wireguard/Cargo.toml -- wg0.conf wg0
//! ip addr add 10.0.0.1/24 dev wg0
//! ```
//!
//! | file | what it has |
//! |---|---|
//! | `config` | the configuration file |
//! | `network` | which peer a packet belongs to: the flow key |
//! | `gateway` | the packet function |
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its user")]

mod config;
mod gateway;
mod memory;
mod network;
mod traffic;

use std::error::Error;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, thread};

use nix::sys::signal::{SigSet, Signal};
use steerage::device::{Capabilities, Completions, DeviceError, Polled, RxQueue};
use steerage::limits::ORIGINATED_MAX;
use steerage::{Builder, CpuId, CpuMask, Input, InputId, LinkType, TxId};
use steerage_device::tap::{Layer, TapOptions};
use steerage_device::udp::UdpOptions;

use crate::gateway::{Counts, Devices, Gateway, Peer};
use crate::network::{Network, birth};

const USAGE: &str = "usage: steerage-wireguard FILE INTERFACE [--no-offload] [--gro] [--shake]";

/// The MTU of a WireGuard interface: 1500 bytes minus the headers of IPv6, UDP and WireGuard.
const MTU: usize = 1420;

/// The longest packet that a CPU sends: an encrypted packet with its headers.
const FRAME_BYTES: usize = MTU + 80;

/// The options of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    /// If true, the kernel neither merges nor segments packets. The TUN has no super-frames (merged
    /// packets), and the socket delivers each datagram separately.
    no_offload: bool,
    /// If true, steerage merges the packets of a batch before it calls the packet function.
    gro: bool,
    /// If true, the CPU mask changes 100 times a second.
    shake: bool,
}

impl Options {
    fn read(words: &[String]) -> Option<Self> {
        let mut read = Self::default();
        for word in words {
            match word.as_str() {
                "--no-offload" => read.no_offload = true,
                "--gro" => read.gro = true,
                "--shake" => read.shake = true,
                _ => return None,
            }
        }
        Some(read)
    }
}

/// An input that delivers one artificial frame for each peer. When the CPU that has the peer's
/// bucket receives the frame, the CPU creates the peer's state. Peers with a keepalive start their
/// handshake on their own.
struct Births(std::ops::Range<usize>);

impl RxQueue for Births {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(birth(0).len())
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(LinkType::RAW);
        for _ in 0..budget {
            if self.0.is_empty() {
                return Ok(Polled::Ended);
            }
            if !out.copy_in(&birth(self.0.start)) {
                break; // No page is free now.
            }
            self.0.start += 1;
        }
        Ok(Polled::More)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["memory"] => return memory::measure(5, 400_000),
        ["memory", rounds, packets] => return memory::measure(rounds.parse()?, packets.parse()?),
        _ => {}
    }
    let [file, interface, options @ ..] = &args[..] else { return Err(USAGE.into()) };
    let options = Options::read(options).ok_or(USAGE)?;
    let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let config = config::read(&text).map_err(|error| format!("{file}: {error}"))?;
    config.ignored.iter().for_each(|key| eprintln!("{file}: {key} is left to you"));
    let private_key = config.private_key.ok_or_else(|| format!("{file}: [Interface] has no PrivateKey"))?;

    // An IPv6 socket that is bound to the unspecified address also receives IPv4 packets.
    let outside = UdpOptions::new((Ipv6Addr::UNSPECIFIED, config.listen_port).into());
    let outside = outside.offloads(!options.no_offload).open()?;
    let inside = TapOptions::new(Layer::Tun, interface.as_str()).mtu(MTU).offloads(!options.no_offload).open()?;
    let port = outside.local_addr().port();
    let network = Arc::new(Network::new(private_key, port, config.peers)?);
    println!("listening on port {port} for {} peers", network.peers.len());

    // All threads block the signals. One thread waits for them.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
    signals.thread_block()?;
    let devices = Devices { inside: InputId(0), to_inside: TxId(0), to_outside: TxId(1) };
    let (keys, peers) = (Arc::clone(&network), Arc::clone(&network));
    let running = Builder::new()
        .input(inside.input()?)
        .input(outside.input()?)
        .input(Input::new("peers", "births", vec![Box::new(Births(0..network.peers.len()))]))
        .output(inside.output())
        .output(outside.output())
        .hash(network.hasher.clone())
        .flow_key_with_link(move |frame, _| keys.flow_key(frame))
        .linear_bytes(FRAME_BYTES)
        .originated_max(ORIGINATED_MAX)
        .coalesce(options.gro)
        .build(move |_cpu| {
            let made = Arc::clone(&peers);
            Gateway::new(Arc::clone(&peers), devices, Box::new(move |id| Peer::new(&made, id)))
        })?
        .start()?;

    let handle = running.handle();
    let stopper = handle.clone();
    thread::spawn(move || signals.wait().map(|_signal| stopper.stop()));
    let cpus = running.handle().snapshot().cpus.len();
    let mut count = 0;
    let every = if options.shake { Duration::from_millis(10) } else { Duration::from_secs(1) };
    while !handle.wait_finished(every) {
        network.limiter.reset_count(); // It does nothing if the second is not over.
        if options.shake {
            count += 1;
            handle.set_rps_cpus(&CpuMask::from_iter([CpuId(count % cpus as u16)]))?;
        }
    }
    let outcome = running.join();
    let mut counts = Counts::default();
    outcome.reports.into_iter().for_each(|(_cpu, part)| counts += part);
    println!("{counts:?}");
    println!("dropped: {}, moves: {count}", outcome.snapshot.dropped());
    Ok(())
}
