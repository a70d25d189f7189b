//! A UDP socket as a device. The datagrams are sent over the loopback interface: `cargo run
//! --release -p steerage-device --example udp_device`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::os::fd::{AsFd, BorrowedFd};
use std::{error::Error, io, io::ErrorKind, net::Ipv4Addr, net::UdpSocket};

use steerage::device::{Capabilities, Completions, DeviceError, Filled, Polled, RxQueue};
use steerage::{Batch, BuildError, Builder, Cpu, Handler, Input, LinkType, Outcome};

const PACKET_BYTES_MAX: usize = 1500;

/// One end of a tunnel. Each datagram carries an IP packet of up to [`PACKET_BYTES_MAX`] bytes.
pub(crate) struct Tunnel(UdpSocket);

impl Tunnel {
    pub(crate) fn bind() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?; // A poll must not block.
        Ok(Self(socket))
    }
}

impl RxQueue for Tunnel {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(PACKET_BYTES_MAX + 1) // A datagram that is too long fills the extra byte.
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let (mut polled, mut too_long) = (Ok(Polled::More), 0);
        out.set_link(LinkType::RAW);
        // `None` ends the filling.
        out.fill(budget, |page| match self.0.recv(page) {
            Ok(len) if len <= PACKET_BYTES_MAX => Some(Filled::whole(len)),
            Ok(_) => {
                too_long = 1;
                None
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => None,
            Err(error) => {
                polled = if error.kind() == ErrorKind::WouldBlock { Ok(Polled::Drained) } else { Err(error) };
                None
            }
        });
        out.lost(too_long); // Datagrams that this device received and dropped.
        polled.map_err(|error| DeviceError::new("tunnel", "receive a datagram", error))
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd()) // After `Polled::Drained`, the CPU sleeps until the socket is readable.
    }
}

pub(crate) struct Count(u64, u64);

impl Handler for Count {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        self.0 += batch.len() as u64;
        (self.0 >= self.1).then(|| cpu.stop());
    }

    fn finish(self, _cpu: &mut Cpu) -> u64 {
        self.0
    }
}

pub(crate) fn run(tunnel: Tunnel, stop_at: u64) -> Result<Outcome<u64>, BuildError> {
    let input = Input::new("tunnel", "udp", vec![Box::new(tunnel)]);
    Ok(Builder::new().virtual_cpus(2).input(input).build(move |_cpu| Count(0, stop_at))?.start()?.join())
}

fn main() -> Result<(), Box<dyn Error>> {
    let tunnel = Tunnel::bind()?;
    println!("send 10 datagrams to {}", tunnel.0.local_addr()?);
    println!("{} bytes came", run(tunnel, 10)?.snapshot.received_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use steerage::Timestamp;
    use steerage::testing::QueueTester;

    use super::*;

    /// An empty socket produces no packet. A datagram of zero bytes produces one packet.
    #[test]
    fn each_datagram_makes_one_packet_unless_it_is_too_long() {
        let tunnel = Tunnel::bind().unwrap();
        let to = tunnel.0.local_addr().unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut tester = QueueTester::new(Box::new(tunnel)).unwrap();
        assert_eq!(tester.poll(Timestamp::ZERO, 64).unwrap(), (Polled::Drained, vec![]));
        for len in [20, 0, 1500, 1501, 40] {
            sender.send_to(&vec![0x45; len], to).unwrap();
        }
        let mut received = Vec::new();
        while received.len() < 4 {
            received.extend(tester.poll(Timestamp::ZERO, 64).unwrap().1);
        }
        assert_eq!(received.iter().map(Vec::len).collect::<Vec<_>>(), [20, 0, 1500, 40]);
        assert_eq!((tester.lost(), tester.link()), (1, LinkType::RAW));
    }

    #[test]
    fn the_run_ends_when_enough_has_come() {
        let tunnel = Tunnel::bind().unwrap();
        let to = tunnel.0.local_addr().unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // All datagrams fit into the socket's buffer, and belong to one flow.
        for _ in 0..50 {
            sender.send_to(&[0x45; 40], to).unwrap();
        }
        let outcome = run(tunnel, 50).unwrap();
        assert_eq!(outcome.reports.iter().map(|(_, count)| count).sum::<u64>(), 50);
        assert_eq!((outcome.snapshot.received(), outcome.snapshot.received_bytes()), (50, 50 * 40));
        steerage_fixtures::assert_at_rest(&outcome.snapshot);
    }
}
