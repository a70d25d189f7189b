//! Network namespaces for one test, and traffic between them.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockProtocol, SockType, SockaddrStorage, recvfrom, sendto, setsockopt,
    shutdown, socket, sockopt,
};

use steerage::flow::wire::checksum::{finish, sum};
use steerage::flow::wire::{icmp, icmp6, ipv4, put};

use crate::{HANG, own_name, skip, skip_on_this_kernel, until};

const ANSWER: Duration = Duration::from_millis(500);

/// Network namespaces, which have connections and IPv6 addresses only if a test adds them.
#[derive(Debug)]
pub struct Namespaces(Vec<String>);

impl Namespaces {
    /// If this process may not create network namespaces, prints why and returns `None`. In CI, the
    /// test fails instead.
    pub fn new(count: usize) -> Option<Self> {
        let namespaces = Self((0..count).map(|_| fresh_name()).collect());
        let made = namespaces.0.iter().all(|name| ip(&format!("netns add {name}")));
        if !made || !fs::exists("/dev/net/tun").unwrap_or(false) {
            skip("network namespaces take root, and this test also needs /dev/net/tun");
            return None;
        }
        for nth in 0..count {
            namespaces.must(nth, "link set lo up");
        }
        Some(namespaces)
    }

    /// Runs `ip` with the arguments `args` in one of the namespaces, and fails if `ip` fails.
    pub fn must(&self, nth: usize, args: &str) {
        assert!(ip(&format!("-n {} {args}", self.0[nth])), "ip {args}");
    }

    /// Joins two of the namespaces with a veth pair, and brings both ends up.
    pub fn veth(&self, (one, name): (usize, &str), (other, peer): (usize, &str)) {
        self.veth_to(one, name, self, other, peer);
    }

    /// Joins one of these namespaces with one of `others` by a veth pair, and brings both ends up.
    pub fn veth_to(&self, one: usize, name: &str, others: &Self, other: usize, peer: &str) {
        self.must(one, &format!("link add {name} type veth peer name {peer} netns {}", others.0[other]));
        for (ends, nth, name) in [(self, one, name), (others, other, peer)] {
            // Without a link-local address, the kernel sends no packets of its own.
            ends.must(nth, &format!("link set dev {name} addrgenmode none"));
            ends.must(nth, &format!("link set dev {name} up"));
        }
    }

    /// Moves a network card to one of the namespaces, and brings the card up. When the namespace is
    /// deleted, the kernel moves the card back to the initial namespace, with some delay.
    pub fn card(&self, nth: usize, name: &str) {
        assert!(ip(&format!("link set dev {name} netns {}", self.0[nth])), "move {name}");
        self.must(nth, &format!("link set dev {name} addrgenmode none"));
        self.must(nth, &format!("link set dev {name} up"));
    }

    /// Returns a command that runs in one of the namespaces, with the /sys of that namespace.
    pub fn command(&self, nth: usize, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[nth]]).args(words);
        command
    }

    /// Creates the VLAN interface `NAME.ID`, and brings it up. `None` if the kernel does not
    /// support VLANs.
    pub fn vlan(&self, nth: usize, cable: &str, id: u16) -> Option<String> {
        let name = format!("{cable}.{id}");
        self.optional(nth, &format!("link add link {cable} name {name} type vlan id {id}"))?;
        self.must(nth, &format!("link set dev {name} up"));
        Some(name)
    }

    /// Creates the bonding interface `bond0`. `None` if the kernel does not support bonds.
    pub fn bond(&self, nth: usize, options: &str) -> Option<()> {
        self.optional(nth, &format!("link add bond0 type bond {options}"))
    }

    fn optional(&self, nth: usize, args: &str) -> Option<()> {
        if ip(&format!("-n {} {args}", self.0[nth])) {
            return Some(());
        }
        skip_on_this_kernel(&format!("this kernel does not support `ip {args}`"));
        None
    }

    /// Assigns 10.210.0.`host` and fd00:210::`host` to an interface.
    pub fn address(&self, nth: usize, host: usize, device: &str) {
        self.must(nth, &format!("addr add 10.210.0.{host}/24 dev {device}"));
        self.must(nth, &format!("addr add fd00:210::{host}/64 dev {device} nodad"));
    }

    /// The number of packets that an interface has received, according to the kernel's counter.
    pub fn received_by(&self, nth: usize, device: &str) -> u64 {
        self.counted(nth, device, 1)
    }

    /// Returns a column of the interface's row in /proc/net/dev (proc_pid_net(5)).
    pub fn counted(&self, nth: usize, device: &str, column: usize) -> u64 {
        self.within(nth, || counted_here(device, column))
    }

    /// Switches offload features of an interface, as `ethtool -K` does: `tso off gro on`.
    pub fn features(&self, nth: usize, device: &str, features: &str) {
        let args = ["-K", device].into_iter().chain(features.split(' '));
        let set = self.within(nth, || Command::new("ethtool").args(args).output().unwrap());
        assert!(set.status.success(), "ethtool -K {device} {features}: {set:?}");
    }

    /// Gives an interface a queueing discipline, such as `tbf rate 8kbit burst 2kb limit 3kb`. If
    /// the kernel does not support this queueing discipline, prints why and returns false. In CI,
    /// the test fails instead.
    pub fn shape(&self, nth: usize, device: &str, discipline: &str) -> bool {
        let args = ["qdisc", "add", "dev", device, "root"].into_iter().chain(discipline.split(' '));
        let shaped = self.within(nth, || Command::new("tc").args(args).status());
        let is_shaped = shaped.is_ok_and(|status| status.success());
        if !is_shaped {
            skip("there is no tc, or this kernel does not have the queueing discipline");
        }
        is_shaped
    }

    /// The number of packets that the kernel has dropped because of wrong checksums.
    pub fn checksum_errors(&self) -> u64 {
        (0..self.0.len()).map(|nth| self.within(nth, checksum_errors_here)).sum()
    }

    /// Runs `body` in one of the namespaces, on a separate thread.
    pub fn within<R: Send>(&self, nth: usize, body: impl FnOnce() -> R + Send) -> R {
        within(&self.0[nth], body)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}

pub(crate) fn fresh_name() -> String {
    format!("st-{}", own_name())
}

pub(crate) fn ip(args: &str) -> bool {
    // Errors of deleting a namespace are hidden, because the namespace may no longer exist.
    let stderr = if args.starts_with("netns del") { Stdio::null() } else { Stdio::inherit() };
    Command::new("ip").args(args.split_whitespace()).stderr(stderr).status().is_ok_and(|status| status.success())
}

pub(crate) fn within<R: Send>(namespace: &str, body: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let run = || {
            setns(File::open(format!("/run/netns/{namespace}")).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            body()
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns a column of the interface's row in /proc/net/dev, in the namespace of this thread.
pub(crate) fn counted_here(device: &str, column: usize) -> u64 {
    let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let row = table.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
    row.unwrap().split_whitespace().nth(column).unwrap().parse().unwrap()
}

fn checksum_errors_here() -> u64 {
    let read = |file: &str| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
    let (v4, v6) = (read("snmp"), read("snmp6"));
    let lines: Vec<&str> = v4.lines().collect();
    let in_tables = lines.chunks(2).filter_map(|pair| {
        let at = pair[0].split_whitespace().position(|name| name == "InCsumErrors")?;
        pair[1].split_whitespace().nth(at)
    });
    let in_rows = v6.lines().filter_map(|row| row.split_once("InCsumErrors")).map(|(_, count)| count.trim());
    let counts: Vec<u64> = in_tables.chain(in_rows).map(|count| count.parse().unwrap()).collect();
    assert!(counts.len() >= 5, "ICMP, TCP and UDP of IPv4, ICMP and UDP of IPv6: {counts:?}");
    counts.iter().sum()
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Sends the request `ask` until a reply arrives for which `is_answer` returns true.
fn asked(socket: &UdpSocket, to: SocketAddr, ask: &[u8], mut is_answer: impl FnMut(&[u8]) -> bool) {
    socket.set_read_timeout(Some(ANSWER)).unwrap();
    let (start, mut answer) = (Instant::now(), [0; 65536]);
    loop {
        assert!(start.elapsed() < HANG, "{to} does not answer");
        // Sending may fail because the kernel may not have a route yet.
        if socket.send_to(ask, to).is_err() {
            thread::sleep(Duration::from_millis(2));
            continue;
        }
        loop {
            match socket.recv_from(&mut answer) {
                Ok((len, _)) if is_answer(&answer[..len]) => return,
                Ok(_) => {}
                Err(error) if is_late(&error) => break,
                Err(error) => panic!("{to}: {error}"),
            }
        }
    }
}

/// Pings `to` from this namespace, with `bytes` bytes of payload, until `to` replies.
pub fn ping(to: IpAddr, bytes: usize) {
    let (family, protocol, ask, answer) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, icmp::ECHO, icmp::ECHO_REPLY),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, icmp6::ECHO, icmp6::ECHO_REPLY),
    };
    let socket: UdpSocket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).unwrap().into();
    let mut echo = vec![0x5a; icmp::BYTES + bytes];
    put(&mut echo, 0, [ask, 0, 0, 0, 0x12, 0x34, 0, 1]);
    if to.is_ipv4() {
        // For IPv6, the kernel computes the checksum of the ICMP message.
        let checksum = finish(sum(&echo, 0));
        put(&mut echo, icmp::CHECKSUM_AT, checksum.to_be_bytes());
    }
    // For IPv4, the raw socket returns the IP header before the ICMP message.
    let at = if to.is_ipv4() { ipv4::BYTES } else { 0 };
    let is_ours = |got: &[u8]| got.get(at).is_some_and(|kind| *kind == answer) && got[at + 4..] == echo[4..];
    asked(&socket, SocketAddr::new(to, 0), &echo, is_ours);
}

/// Sends `count` datagrams to `to`, and waits until `to` has returned each datagram.
pub fn udp_exchange(to: SocketAddr, count: u32, bytes: usize) {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    for number in 0..count {
        let mut payload = vec![number as u8; bytes.max(4)];
        payload[..4].copy_from_slice(&number.to_be_bytes());
        asked(&socket, to, &payload, |answer| answer == payload);
    }
}

/// Binds a socket when the port is free. A child process that another thread has just forked may
/// hold a closed socket open, until the child executes another program.
pub fn bind_when_free(at: impl ToSocketAddrs) -> UdpSocket {
    when_free(|| UdpSocket::bind(&at))
}

/// Listens for TCP connections when the port is free, as [`bind_when_free`] does for UDP.
pub fn listen_when_free(at: impl ToSocketAddrs) -> TcpListener {
    when_free(|| TcpListener::bind(&at))
}

fn when_free<S>(bind: impl Fn() -> io::Result<S>) -> S {
    let start = Instant::now();
    loop {
        match bind() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && start.elapsed() < HANG => thread::yield_now(),
            bound => return bound.unwrap(),
        }
    }
}

/// Returns a port that a program under test can bind, for UDP or for TCP.
///
/// The port is below 32768, the first port that Linux by default gives to a socket that asks for any
/// port. This process never binds the port. If it did, a child that another
/// thread has just forked could hold the port when the program binds it.
pub fn free_port() -> u16 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    loop {
        let nth = process::id().wrapping_mul(64).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
        let port = 21_000 + (nth % 11_000) as u16;
        let is_bound = |file: &str| {
            let table = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
            let mut addresses = table.lines().filter_map(|row| row.split_whitespace().nth(1));
            addresses.any(|address| address.ends_with(&format!(":{port:04X}")))
        };
        if !["udp", "udp6", "tcp", "tcp6"].into_iter().any(is_bound) {
            return port;
        }
    }
}

/// A UDP socket that returns each datagram to its sender, and the socket's address.
#[derive(Debug)]
pub struct Echo(Option<(UdpSocket, thread::JoinHandle<()>)>, pub SocketAddr);

impl Echo {
    /// Listens on a free port of `address`, which must be an address of this namespace.
    pub fn new(address: IpAddr) -> Self {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        let at = socket.local_addr().unwrap();
        let ours = socket.try_clone().unwrap();
        let answer = move || {
            let mut buffer = [0; 65536];
            // After the socket is shut down, `recvfrom` returns no sender, which
            // `UdpSocket::recv_from` does not expect.
            let fd = socket.as_raw_fd();
            while let Ok((len, Some(from))) = recvfrom::<SockaddrStorage>(fd, &mut buffer) {
                if len == 0 {
                    break;
                }
                let _ = sendto(fd, &buffer[..len], &from, MsgFlags::empty());
            }
        };
        Self(Some((ours, thread::spawn(answer))), at)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        if let Some((socket, answers)) = self.0.take() {
            shutdown(socket.as_raw_fd(), Shutdown::Both).ok();
            let _ = answers.join();
        }
    }
}

/// The size in bytes of a message that the kernel cuts into [`DATAGRAMS`] datagrams.
pub const MESSAGE_BYTES: usize = 20_500;
/// The size in bytes of each datagram of a message, except the last datagram.
pub const DATAGRAM_BYTES: usize = 1000;
/// The number of datagrams into which the kernel cuts a message.
pub const DATAGRAMS: usize = MESSAGE_BYTES.div_ceil(DATAGRAM_BYTES);

/// Returns a UDP socket whose messages the kernel cuts into datagrams of `bytes` bytes.
pub fn cutting_socket(address: IpAddr, bytes: usize) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    setsockopt(&socket, sockopt::UdpGsoSegment, &(bytes as i32)).unwrap();
    socket
}

/// The unspecified address, `0.0.0.0` or `::`, of the same address family as the argument.
pub fn any(of: IpAddr) -> IpAddr {
    if of.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Checks that a message arrives in another namespace as unchanged datagrams, in order. Returns how
/// many messages were sent.
pub fn datagrams_in_one_piece(namespaces: &Namespaces, from: usize, to: usize, address: IpAddr) -> usize {
    let receiver = namespaces.within(to, || UdpSocket::bind((address, 0)).unwrap());
    let sender = namespaces.within(from, || cutting_socket(any(address), DATAGRAM_BYTES));
    message_arrives((&sender, receiver.local_addr().unwrap()), &receiver, MESSAGE_BYTES, DATAGRAM_BYTES)
}

/// Sends messages of `bytes` bytes from a [`cutting_socket`] until `receiver` gets all datagrams of
/// one message. Each datagram must be unchanged, and the datagrams of a message in order. Returns how
/// many messages were sent: on a busy machine, datagrams may be lost.
pub fn message_arrives(
    (sender, to): (&UdpSocket, SocketAddr),
    receiver: &UdpSocket,
    bytes: usize,
    datagram_bytes: usize,
) -> usize {
    // Each message of this process has its own number, so that a late datagram is not taken for one
    // of a later message.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    receiver.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (mut messages, mut buffer) = (0, vec![0; bytes]);
    until(&format!("a message arrives at {to}"), || {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let message = numbered_message(number, bytes, datagram_bytes);
        sender.send_to(&message, to).unwrap();
        messages += 1;
        let (mut arrived, mut next) = (0, 0);
        while next < bytes.div_ceil(datagram_bytes) {
            let got = match receiver.recv(&mut buffer) {
                Ok(len) => &buffer[..len],
                Err(error) if is_late(&error) => return false,
                Err(error) => panic!("{to}: {error}"),
            };
            let [of, nth] = [0, 4].map(|at| u32::from_be_bytes(got[at..at + 4].try_into().unwrap()));
            let message = numbered_message(of, bytes, datagram_bytes);
            let datagram = message.chunks(datagram_bytes).nth(nth as usize);
            assert!(of <= number && datagram == Some(got), "{to}: a datagram has changed");
            if of == number {
                assert!(nth as usize >= next, "{to}: datagram {nth} arrived after datagram {}", next - 1);
                (arrived, next) = (arrived + 1, nth as usize + 1);
            }
        }
        arrived == next
    });
    messages
}

/// The first bytes of each datagram are the number of the message and the datagram's number in the
/// message.
fn numbered_message(number: u32, bytes: usize, datagram_bytes: usize) -> Vec<u8> {
    let mut message: Vec<u8> = (0..bytes).map(|at| (at / datagram_bytes * 3 + at) as u8).collect();
    for (nth, datagram) in message.chunks_mut(datagram_bytes).enumerate() {
        datagram[..4].copy_from_slice(&number.to_be_bytes());
        datagram[4..8].copy_from_slice(&(nth as u32).to_be_bytes());
    }
    message
}

/// Transfers `bytes` bytes by TCP to an address in another namespace, and compares every byte.
pub fn tcp_transfer(namespaces: &Namespaces, from: usize, to: usize, address: IpAddr, bytes: usize) {
    tcp_transfer_in_steps(namespaces, (from, to), address, (bytes, 1), |_| {});
}

/// Like [`tcp_transfer`], but transfers the bytes in `steps` equal parts. Calls `step` with the
/// number of each part that has arrived, counted from 1, while the transfer of later parts
/// continues. While a call of `step` runs, the receiver reads at most two further parts.
pub fn tcp_transfer_in_steps(
    namespaces: &Namespaces,
    (from, to): (usize, usize),
    address: IpAddr,
    (bytes, steps): (usize, usize),
    mut step: impl FnMut(usize) + Send,
) {
    let listener = namespaces.within(to, || TcpListener::bind((address, 0)).unwrap());
    let at = listener.local_addr().unwrap();
    let chunk = |nth: usize| -> Vec<u8> { (0..1000).map(|at| (nth * 31 + at * 7 + (nth >> 8)) as u8).collect() };
    let (arrived, parts) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        scope.spawn(move || parts.into_iter().for_each(&mut step));
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(HANG)).unwrap();
            let mut got = vec![0; 1000];
            for nth in 0..bytes / 1000 {
                stream.read_exact(&mut got).unwrap();
                assert!(got == chunk(nth), "what TCP carried is not what was sent");
                let part = (nth + 1) * steps / (bytes / 1000);
                if part > nth * steps / (bytes / 1000) {
                    arrived.send(part).unwrap();
                }
            }
            assert_eq!(stream.read(&mut got).unwrap(), 0);
        });
        let mut stream = namespaces.within(from, || TcpStream::connect_timeout(&at, HANG).unwrap());
        stream.set_write_timeout(Some(HANG)).unwrap();
        for nth in 0..bytes / 1000 {
            stream.write_all(&chunk(nth)).unwrap();
        }
    });
}

/// Parses an address.
pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Exchanges pings, UDP and TCP between two namespaces, whose addresses end in 1 and 2.
pub fn converse(namespaces: &Namespaces, one: usize, other: usize) {
    namespaces.within(one, || ping(address("10.210.0.2"), 56));
    namespaces.within(other, || ping(address("fd00:210::1"), 1300));
    // This ping packet is so long that the kernel sends it in fragments.
    namespaces.within(one, || ping(address("fd00:210::2"), 4000));
    for to in ["10.210.0.2", "fd00:210::2"] {
        let echo = namespaces.within(other, || Echo::new(address(to)));
        let at = echo.1;
        namespaces.within(one, || udp_exchange(at, 200, 700));
        tcp_transfer(namespaces, one, other, address(to), 4_000_000);
    }
    tcp_transfer(namespaces, other, one, address("10.210.0.1"), 4_000_000);
}
