//! The way to a collector: datagrams, or a connection that may break and is made again.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use super::collector::{Collector, MTU_MIN, Transport};

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long to wait between two tries to connect: doubled each time.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// A write that takes longer is looked after: perhaps somebody asks for the end.
pub(super) const WRITE_LOOK: Duration = Duration::from_millis(250);
/// The headers of IP and UDP.
const UDP_OVER_IPV4: usize = 20 + 8;
const UDP_OVER_IPV6: usize = 40 + 8;
/// The size of messages over TCP, which has no limit of its own but that of a message.
const TCP_MESSAGE: usize = 16 << 10;

/// The way to a collector.
#[derive(Debug)]
pub(super) struct Way {
    addresses: Vec<SocketAddr>,
    open: Open,
}

#[derive(Debug)]
enum Open {
    Udp(UdpSocket),
    Tcp(TcpStream),
    /// TCP, between two connections.
    Down {
        since: Instant,
        retry_at: Instant,
        wait: Duration,
    },
}

/// What became of a message.
#[derive(Debug)]
pub(super) enum Sent {
    Yes,
    /// It was sent, but the collector's host had refused an earlier one: nobody listens there, or did not then.
    AfterRefusal,
    /// The network takes no message of this size.
    TooLong,
    /// It was not sent.
    No,
    /// The connection broke.
    Broken,
}

impl Way {
    /// Opens the socket, and for TCP tries to connect. A collector that does not answer is tried again later, and the error says
    /// why it did not.
    pub(super) fn open(collector: &Collector) -> io::Result<(Self, Option<io::Error>)> {
        let addresses: Vec<_> = (collector.host.as_str(), collector.port).to_socket_addrs()?.collect();
        match collector.transport {
            Transport::Udp => {
                let open = Open::Udp(udp(&addresses)?);
                Ok((Self { addresses, open }, None))
            }
            Transport::Tcp => {
                let mut way = Self { addresses, open: Open::down(Instant::now()) };
                let refused = way.connect().err();
                Ok((way, refused))
            }
        }
    }

    /// The most bytes of a message.
    pub(super) fn message_max(&self, mtu: usize) -> usize {
        match &self.open {
            Open::Udp(socket) => mtu - Self::udp_headers(socket),
            Open::Tcp(_) | Open::Down { .. } => TCP_MESSAGE,
        }
    }

    /// The most bytes of a message that every network takes.
    pub(super) fn message_min(&self) -> usize {
        self.message_max(MTU_MIN)
    }

    fn udp_headers(socket: &UdpSocket) -> usize {
        if socket.local_addr().is_ok_and(|address| address.is_ipv6()) { UDP_OVER_IPV6 } else { UDP_OVER_IPV4 }
    }

    /// Since when the collector cannot be reached.
    pub(super) fn down_since(&self) -> Option<Instant> {
        match self.open {
            Open::Down { since, .. } => Some(since),
            _ => None,
        }
    }

    /// When to try to connect again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        match self.open {
            Open::Down { retry_at, .. } => Some(retry_at),
            _ => None,
        }
    }

    pub(super) fn is_udp(&self) -> bool {
        matches!(self.open, Open::Udp(_))
    }

    /// Tries to connect to each address of the collector.
    pub(super) fn connect(&mut self) -> io::Result<()> {
        let Open::Down { since, wait, .. } = self.open else { return Ok(()) };
        let mut error = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
        for address in &self.addresses {
            let connected = TcpStream::connect_timeout(address, CONNECT_MAX).and_then(|stream| {
                stream.set_write_timeout(Some(WRITE_LOOK))?;
                // Messages are as large as they can be, so nothing is gained by waiting for more.
                stream.set_nodelay(true)?;
                Ok(stream)
            });
            match connected {
                Ok(stream) => {
                    self.open = Open::Tcp(stream);
                    return Ok(());
                }
                Err(cause) => error = cause,
            }
        }
        self.open = Open::Down { since, retry_at: Instant::now() + wait, wait: (2 * wait).min(RETRY_MAX) };
        Err(error)
    }

    /// Sends a message. `progress` is called whenever a collector that takes its time has taken some of it, or nothing for a while.
    pub(super) fn send(&mut self, message: &[u8], mut progress: impl FnMut(bool)) -> Sent {
        match &mut self.open {
            Open::Udp(socket) => send_datagram(socket, message),
            Open::Tcp(stream) => match check(stream).and_then(|()| write_all(stream, message, &mut progress)) {
                Ok(()) => Sent::Yes,
                Err(_) => {
                    self.open = Open::down(Instant::now());
                    Sent::Broken
                }
            },
            Open::Down { .. } => Sent::No,
        }
    }
}

impl Open {
    fn down(now: Instant) -> Self {
        Self::Down { since: now, retry_at: now, wait: RETRY_MIN }
    }
}

fn udp(addresses: &[SocketAddr]) -> io::Result<UdpSocket> {
    let mut error = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in addresses {
        let from: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let made = UdpSocket::bind(from).and_then(|socket| socket.connect(address).map(|()| socket));
        match made {
            Ok(socket) => return Ok(socket),
            Err(cause) => error = cause,
        }
    }
    Err(error)
}

fn send_datagram(socket: &UdpSocket, message: &[u8]) -> Sent {
    let send = || socket.send(message);
    match send() {
        Ok(_) => Sent::Yes,
        // The kernel tells of an earlier datagram in place of sending this one.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => match send() {
            Ok(_) => Sent::AfterRefusal,
            Err(_) => Sent::No,
        },
        Err(error) if error.raw_os_error() == Some(EMSGSIZE) => Sent::TooLong,
        Err(_) => Sent::No,
    }
}

/// "Message too long", on every architecture of Linux that Rust has but MIPS and SPARC.
const EMSGSIZE: i32 = 90;

/// Finds out that the collector has closed the connection. A write alone would seem to succeed, and its message would be lost.
fn check(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match peeked {
        Ok(0) => Err(io::ErrorKind::ConnectionReset.into()),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8], progress: &mut impl FnMut(bool)) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                progress(true);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                progress(false)
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
