//! Sends messages in UDP datagrams, or over a TCP connection that is opened again after it breaks.

use std::io::{self, IoSlice, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
use steerage::flow::wire::{ipv4, ipv6, udp};

use super::collector::{Collector, MTU_MIN, Transport};

const CONNECT_MAX: Duration = Duration::from_secs(2);
/// The wait between two attempts to connect doubles from the minimum to the maximum.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// After this time, a blocked write checks for a request to stop.
pub(super) const WRITE_LOOK: Duration = Duration::from_millis(250);
const UDP_OVER_IPV4: usize = ipv4::BYTES + udp::BYTES;
const UDP_OVER_IPV6: usize = ipv6::BYTES + udp::BYTES;
/// The maximum length of a message over TCP, which itself has no limit.
const TCP_MESSAGE: usize = 16 << 10;
/// A *train* is sent with one system call. Linux accepts at least 64 datagrams
/// (`UDP_MAX_SEGMENTS`).
pub(super) const TRAIN_MESSAGES: usize = 64;
/// The maximum number of bytes in a train: the longest IP packet minus the longest headers (IPv6
/// and UDP).
const TRAIN_BYTES: usize = 65_535 - UDP_OVER_IPV6;

#[derive(Debug)]
pub(super) struct Way {
    addresses: Vec<SocketAddr>,
    open: Open,
    takes_trains: bool,
    error: Option<io::Error>,
}

/// Messages of equal length, except that the last message may be shorter. The kernel splits a train
/// into datagrams (`UDP_SEGMENT`), which costs less than one system call for each datagram.
#[derive(Debug, Default)]
pub(super) struct Train {
    bytes: Vec<u8>,
    length: usize,
    messages: usize,
    records: u64,
}

impl Train {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.length, self.messages, self.records) = (0, 0, 0);
    }

    /// Returns false if the train has no room for the message.
    pub(super) fn add(&mut self, message: &[u8], records: u32, messages_max: usize) -> bool {
        if self.messages == 0 {
            self.length = message.len();
        }
        let is_whole = self.bytes.len() == self.length * self.messages;
        let has_room = self.messages < messages_max && self.bytes.len() + message.len() <= TRAIN_BYTES;
        if self.messages > 0 && !(is_whole && has_room) || message.len() > self.length {
            return false;
        }
        self.bytes.extend_from_slice(message);
        self.messages += 1;
        self.records += u64::from(records);
        true
    }

    pub(super) fn messages(&self) -> usize {
        self.messages
    }

    pub(super) fn records(&self) -> u64 {
        self.records
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[derive(Debug)]
enum Open {
    Udp(UdpSocket),
    Tcp(TcpStream),
    /// The transport is TCP, and there is no connection.
    Down {
        since: Instant,
        retry_at: Instant,
        wait: Duration,
    },
}

#[derive(Debug)]
pub(super) enum Sent {
    Yes,
    /// The message was sent, but the collector's host had refused an earlier message.
    AfterRefusal,
    TooLong,
    /// Nothing was sent: the kernel does not accept several datagrams in one call.
    NotTogether,
    /// Nothing was sent: the collector's host had refused an earlier message.
    Refused,
    No,
    Broken,
}

impl Way {
    /// Opens the socket. For TCP, also tries to connect.
    ///
    /// If the collector does not answer, the second result is the reason.
    pub(super) fn open(collector: &Collector) -> io::Result<(Self, Option<io::Error>)> {
        let addresses: Vec<_> = (collector.host.as_str(), collector.port).to_socket_addrs()?.collect();
        match collector.transport {
            Transport::Udp => {
                let open = Open::Udp(udp(&addresses)?);
                Ok((Self { addresses, open, takes_trains: true, error: None }, None))
            }
            Transport::Tcp => {
                let open = Open::down(Instant::now());
                let mut way = Self { addresses, open, takes_trains: false, error: None };
                let refused = if way.connect() { None } else { way.take_error() };
                Ok((way, refused))
            }
        }
    }

    pub(super) fn message_max(&self, mtu: usize) -> usize {
        match &self.open {
            Open::Udp(socket) => mtu - Self::udp_headers(socket),
            Open::Tcp(_) | Open::Down { .. } => TCP_MESSAGE,
        }
    }

    /// Returns the length of the longest message that every network supports.
    pub(super) fn message_min(&self) -> usize {
        self.message_max(MTU_MIN)
    }

    fn udp_headers(socket: &UdpSocket) -> usize {
        if socket.local_addr().is_ok_and(|address| address.is_ipv6()) { UDP_OVER_IPV6 } else { UDP_OVER_IPV4 }
    }

    /// Returns since when there is no connection, and the time of the next attempt to connect.
    pub(super) fn down(&self) -> Option<(Instant, Instant)> {
        match self.open {
            Open::Down { since, retry_at, .. } => Some((since, retry_at)),
            _ => None,
        }
    }

    pub(super) fn is_udp(&self) -> bool {
        matches!(self.open, Open::Udp(_))
    }

    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Tries to connect to each address of the collector. Returns true if a connection exists.
    pub(super) fn connect(&mut self) -> bool {
        let Open::Down { since, wait, .. } = self.open else { return true };
        let connected = first_open(&self.addresses, |address| {
            let stream = TcpStream::connect_timeout(address, CONNECT_MAX)?;
            stream.set_write_timeout(Some(WRITE_LOOK))?;
            // Messages are as large as possible, so Nagle's algorithm would bring no advantage.
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        let is_connected = connected.is_ok();
        match connected {
            Ok(stream) => self.open = Open::Tcp(stream),
            Err(error) => {
                self.open = Open::Down { since, retry_at: Instant::now() + wait, wait: (2 * wait).min(RETRY_MAX) };
                self.error = Some(error);
            }
        }
        is_connected
    }

    pub(super) fn takes_trains(&self) -> bool {
        self.takes_trains
    }

    /// If the collector is slow, calls `progress` for each write, with true if the collector has
    /// accepted bytes.
    pub(super) fn send(&mut self, train: &Train, mut progress: impl FnMut(bool)) -> Sent {
        match &mut self.open {
            Open::Udp(socket) => {
                let sent = send_datagrams(socket, train, &mut self.error);
                self.takes_trains &= !matches!(sent, Sent::NotTogether);
                sent
            }
            Open::Tcp(stream) => match check(stream).and_then(|()| write_all(stream, &train.bytes, &mut progress)) {
                Ok(()) => Sent::Yes,
                Err(error) => {
                    self.error = Some(error);
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

/// Opens a socket for the first address that `open` accepts. If there is none, returns the error of
/// the last address.
fn first_open<T>(addresses: &[SocketAddr], open: impl Fn(&SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut error = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in addresses {
        match open(address) {
            Ok(opened) => return Ok(opened),
            Err(cause) => error = cause,
        }
    }
    Err(error)
}

fn udp(addresses: &[SocketAddr]) -> io::Result<UdpSocket> {
    first_open(addresses, |address| {
        let from: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((from, 0))?;
        socket.connect(address)?;
        Ok(socket)
    })
}

fn send_datagrams(socket: &UdpSocket, train: &Train, why: &mut Option<io::Error>) -> Sent {
    let length = train.length as u16;
    let cut = [ControlMessage::UdpGsoSegments(&length)];
    let cut = if train.messages > 1 { &cut[..] } else { &[] };
    let bytes = [IoSlice::new(&train.bytes)];
    let send = || sendmsg::<SockaddrStorage>(socket.as_raw_fd(), &bytes, cut, MsgFlags::empty(), None);
    match send() {
        Ok(_) => Sent::Yes,
        // The collector's host has refused an earlier datagram, and the kernel has not sent the
        // present one. A new program at the collector's address must get at most one message
        // without templates.
        Err(Errno::ECONNREFUSED) if train.messages > 1 => Sent::Refused,
        Err(Errno::ECONNREFUSED) => match send() {
            Ok(_) => Sent::AfterRefusal,
            Err(error) => {
                *why = Some(error.into());
                Sent::No
            }
        },
        // EIO: the network card has no checksum offload, which Linux required before 6.11. The
        // errors other than EIO mean that a train is too long, that it has too many datagrams, or
        // that the kernel has no `UDP_SEGMENT`.
        Err(Errno::EIO | Errno::EINVAL | Errno::EMSGSIZE | Errno::EOPNOTSUPP) if train.messages > 1 => {
            Sent::NotTogether
        }
        Err(error) => {
            *why = Some(error.into());
            if error == Errno::EMSGSIZE { Sent::TooLong } else { Sent::No }
        }
    }
}

/// If the collector has closed the connection, the next write would appear to succeed although its
/// message is lost.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_train_has_messages_of_one_length_and_a_shorter_one_at_its_end() {
        let mut train = Train::default();
        let mut add = |length: usize| train.add(&vec![7; length], 20, TRAIN_MESSAGES);
        assert_eq!(
            [add(1000), add(1000), add(1001), add(999), add(999), add(1000)],
            [true, true, false, true, false, false]
        );
        assert_eq!((train.messages(), train.bytes(), train.records()), (3, 2999, 60));
        train.clear();
        assert!(train.add(&[7; 65_000], 1, TRAIN_MESSAGES), "a message alone may have any length");
        assert!(!train.add(&[7; 600], 1, TRAIN_MESSAGES), "no IP packet is that long");
        train.clear();
        assert_eq!((0..100).take_while(|_| train.add(&[7; 20], 1, TRAIN_MESSAGES)).count(), TRAIN_MESSAGES);
    }

    #[test]
    fn a_train_arrives_as_its_messages() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let sender = udp(&[receiver.local_addr().unwrap()]).unwrap();
        let messages: Vec<Vec<u8>> = (1..=13).map(|nth| vec![nth; if nth < 13 { 1400 } else { 300 }]).collect();
        let mut train = Train::default();
        assert!(messages.iter().all(|message| train.add(message, 1, TRAIN_MESSAGES)));
        let sent = send_datagrams(&sender, &train, &mut None);
        assert!(matches!(sent, Sent::Yes), "{sent:?}");
        for message in &messages {
            let mut got = [0; 2000];
            let length = receiver.recv(&mut got).unwrap();
            assert_eq!(&got[..length], message);
        }
    }
}
