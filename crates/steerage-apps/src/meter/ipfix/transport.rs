//! The transport to a collector: UDP datagrams, or a TCP connection that is restored if it breaks.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use super::collector::{Collector, MTU_MIN, Transport};

/// The timeout for connecting.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// The first and the longest wait between two attempts to connect. The wait doubles each time.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// The timeout of a write. After it, the thread checks for a request to stop.
pub(super) const WRITE_LOOK: Duration = Duration::from_millis(250);
/// The size of the IP and UDP headers.
const UDP_OVER_IPV4: usize = 20 + 8;
const UDP_OVER_IPV6: usize = 40 + 8;
/// The size of messages over TCP. TCP itself has no limit for the size of a message.
const TCP_MESSAGE: usize = 16 << 10;

/// The transport to a collector.
#[derive(Debug)]
pub(super) struct Way {
    addresses: Vec<SocketAddr>,
    open: Open,
}

#[derive(Debug)]
enum Open {
    Udp(UdpSocket),
    Tcp(TcpStream),
    /// TCP without a connection at the moment.
    Down {
        since: Instant,
        retry_at: Instant,
        wait: Duration,
    },
}

/// The result of sending a message.
#[derive(Debug)]
pub(super) enum Sent {
    Yes,
    /// The message was sent, but the collector's host had refused an earlier one, so no program was
    /// listening then.
    AfterRefusal,
    /// The message is too long for the network.
    TooLong,
    /// The message was not sent.
    No,
    /// The connection broke.
    Broken,
}

impl Way {
    /// Opens the socket. For TCP, it also tries to connect.
    ///
    /// If the collector does not answer, the transport tries again later. The second result has the
    /// reason.
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

    /// The maximum length of a message, in bytes.
    pub(super) fn message_max(&self, mtu: usize) -> usize {
        match &self.open {
            Open::Udp(socket) => mtu - Self::udp_headers(socket),
            Open::Tcp(_) | Open::Down { .. } => TCP_MESSAGE,
        }
    }

    /// The maximum length of a message that every network carries, in bytes.
    pub(super) fn message_min(&self) -> usize {
        self.message_max(MTU_MIN)
    }

    fn udp_headers(socket: &UdpSocket) -> usize {
        if socket.local_addr().is_ok_and(|address| address.is_ipv6()) { UDP_OVER_IPV6 } else { UDP_OVER_IPV4 }
    }

    /// The time since which the collector is unreachable.
    pub(super) fn down_since(&self) -> Option<Instant> {
        match self.open {
            Open::Down { since, .. } => Some(since),
            _ => None,
        }
    }

    /// The time of the next attempt to connect.
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
                // Messages are as large as possible, so waiting for more data gains nothing.
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

    /// Sends a message. If the collector is slow, `progress` is called whenever it took some bytes
    /// (true), or none for a while (false).
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
        // The kernel reports the refusal of an earlier datagram instead of sending this one.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => match send() {
            Ok(_) => Sent::AfterRefusal,
            Err(_) => Sent::No,
        },
        Err(error) if error.raw_os_error() == Some(EMSGSIZE) => Sent::TooLong,
        Err(_) => Sent::No,
    }
}

/// "Message too long". The number is the same on every Linux architecture that Rust supports,
/// except MIPS and SPARC.
const EMSGSIZE: i32 = 90;

/// Detects that the collector has closed the connection. Without the check, a write would seem to
/// succeed, and its message would be lost.
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
