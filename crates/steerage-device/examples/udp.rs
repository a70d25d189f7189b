//! A UDP socket as a device, over the loopback interface: `cargo run --release -p steerage-device --example udp`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

use steerage::{
    Batch, Builder, Cpu, DeviceError, Handler, Input, LinkType, Outcome,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
};

/// The longest packet in a datagram.
const PACKET_BYTES_MAX: usize = 1500;

/// How many datagrams are sent ahead of what was received: fewer than the socket's buffer holds.
const WINDOW: u64 = 64;

/// A tunnel's end: each datagram carries an IP packet.
struct Tunnel(UdpSocket);

impl Tunnel {
    fn bind() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        // A poll must not block.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }
}

impl RxQueue for Tunnel {
    fn capabilities(&self) -> Capabilities {
        // One byte more, so that a datagram that is too long can be told from the longest.
        Capabilities::pages(PACKET_BYTES_MAX + 1)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        // Flows are those of the packets inside the datagrams.
        out.set_link(LinkType::RAW);
        let (mut polled, mut too_long) = (Ok(Polled::More), 0);
        // `None` ends the filling, and makes no packet.
        out.fill(budget, |page| match self.0.recv(page) {
            Ok(len) if len <= PACKET_BYTES_MAX => Some(Filled::whole(len)),
            Ok(_) => {
                too_long = 1;
                None
            }
            Err(error) => {
                polled = match error.kind() {
                    ErrorKind::WouldBlock => Ok(Polled::Drained),
                    ErrorKind::Interrupted => Ok(Polled::More),
                    _ => Err(DeviceError::new("tunnel", "receive a datagram", error)),
                };
                None
            }
        });
        // Received and dropped, by the device.
        out.lost(too_long);
        polled
    }

    /// After `Polled::Drained`, the CPU sleeps until the socket is readable.
    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// Counts the packets, and those among them that are empty.
#[derive(Debug, Default)]
pub(crate) struct Tunnelled {
    pub(crate) packets: u64,
    pub(crate) empty: u64,
}

impl Handler for Tunnelled {
    type Moved = ();
    type Report = Self;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            self.packets += 1;
            self.empty += u64::from(packet.data().is_empty());
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> Self {
        self
    }
}

/// The `nth` datagram: an IPv4 packet with UDP inside, of one flow in 50. Every hundredth datagram is empty.
pub(crate) fn datagram(nth: u64) -> Vec<u8> {
    if nth % 100 == 99 {
        return Vec::new();
    }
    let mut packet = vec![0; 40];
    (packet[0], packet[3], packet[8], packet[9]) = (0x45, 40, 64, 17);
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet[20..24].copy_from_slice(&[4, nth as u8 % 50, 0, 9]);
    packet[25] = 20;
    packet
}

/// Sends `datagrams` to a tunnel whose packets `cpus` CPUs handle.
pub(crate) fn run(datagrams: u64, cpus: usize) -> Result<Outcome<Tunnelled>, Box<dyn Error>> {
    let tunnel = Tunnel::bind()?;
    let to = tunnel.0.local_addr()?;
    let input = Input::new("tunnel", "udp", vec![Box::new(tunnel)]);
    let running = Builder::new().virtual_cpus(cpus).input(input).build(|_cpu| Tunnelled::default())?.start()?;
    let handle = running.handle();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    for nth in 0..datagrams {
        // Nothing may get lost here. A real tunnel does not wait.
        while nth >= handle.snapshot().received() + WINDOW {
            thread::yield_now();
        }
        sender.send_to(&datagram(nth), to)?;
    }
    while handle.snapshot().received() < datagrams {
        thread::yield_now();
    }
    handle.stop();
    Ok(running.join())
}

fn main() -> Result<(), Box<dyn Error>> {
    for (cpu, Tunnelled { packets, empty }) in run(100_000, 2)?.reports {
        println!("CPU {cpu}: {packets} packets, {empty} of them empty");
    }
    Ok(())
}
