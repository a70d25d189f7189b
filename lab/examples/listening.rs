//! The two programs of `lab/peers/listen/measure.sh`. The sender keeps a steady rate and writes the
//! time into each packet. The receiver reports how late its packet function gets packets.
//!
//! ```text
//! listening send ADDRESS:PORT PACKETS_PER_SECOND SECONDS
//! listening receive DEVICE [TAKE]
//! ```
#![allow(clippy::print_stdout, reason = "the output of a tool")]

use std::error::Error;
use std::net::UdpSocket;
use std::sync::mpsc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use steerage::{Batch, Builder, Cpu, Handler, Instance};
use steerage_device::af_packet::{self, AfPacketOptions};
use steerage_device::af_xdp::{self, AfXdpOptions};
use steerage_lab::histogram::Histogram;

/// The length of a datagram's payload: the time of sending, in nanoseconds of the monotonic clock.
const STAMP_BYTES: usize = 8;
/// The length of the headers of Ethernet, IPv4 and UDP.
const HEADER_BYTES: usize = 14 + 20 + 8;
/// A sender that is late by more nanoseconds than this skips packets instead of sending a burst.
const BEHIND_MAX: f64 = 1e6;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["send", to, rate, seconds] => send(to, rate.parse()?, seconds.parse()?),
        ["receive", device] => receive(device, ""),
        ["receive", device, take] => receive(device, take),
        _ => {
            Err("usage: listening send ADDRESS:PORT PACKETS_PER_SECOND SECONDS | listening receive DEVICE [TAKE]"
                .into())
        }
    }
}

fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sends packets at equal intervals, and polls the clock in between. A rate of 0 sends nothing.
/// Prints the number of packets and the mean time of send(2). Over a veth, send(2) also runs the
/// kernel code that receives, unless the receiver uses busy polling.
fn send(to: &str, rate: f64, seconds: f64) -> Result<(), Box<dyn Error>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    if rate == 0.0 {
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
    let (start, gap) = (now() as f64, 1e9 / rate);
    let (mut due, mut sent, mut sending) = (if rate == 0.0 { f64::INFINITY } else { start }, 0_u64, 0);
    while due < start + seconds * 1e9 {
        let time = now();
        if (time as f64) < due {
            std::hint::spin_loop();
            continue;
        }
        socket.send(&time.to_ne_bytes())?;
        sending += now() - time;
        sent += 1;
        due = (due + gap).max(time as f64 - BEHIND_MAX);
    }
    println!("{sent} {}", sending / sent.max(1));
    Ok(())
}

#[derive(Default)]
struct Late(Histogram);

impl Handler for Late {
    type Moved = ();
    type Report = Histogram;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let now = now();
        for packet in batch.iter_mut() {
            if let Some(stamp) = packet.data().get(HEADER_BYTES..).and_then(<[u8]>::first_chunk::<STAMP_BYTES>) {
                self.0.add(now.saturating_sub(u64::from_ne_bytes(*stamp)));
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> Histogram {
        self.0
    }
}

fn receive(device: &str, take: &str) -> Result<(), Box<dyn Error>> {
    let input = match af_xdp::Named::read(device) {
        Some(named) => named.apply(AfXdpOptions::new(named.interface).take(take.parse()?))?.open()?.input,
        None => {
            let named = af_packet::Named::read(device).ok_or("the device is not an interface")?;
            named.apply(AfPacketOptions::new(named.interface))?.open()?.input
        }
    };
    let running = Builder::new().input(input).build(|_| Late::default()).and_then(Instance::start)?;
    println!("ready");
    let (end, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lines().count();
        let _ = end.send(());
    });
    let _ = ended.recv_timeout(Duration::from_secs(60));
    let handle = running.handle();
    handle.stop();
    let outcome = running.join();
    let mut late = Histogram::new();
    outcome.reports.iter().for_each(|(_, report)| late.merge(report));
    let micros = |permille| late.permille(permille) as f64 / 1e3;
    let count = late.count();
    println!("received {count} p50_us {:.1} p99_us {:.1} p999_us {:.1}", micros(500), micros(990), micros(999));
    Ok(())
}
