//! Receives and sends by UDP sockets, for tunnels and overlays. User's guide: docs/tunnels.md.
//!
//! Each packet is an IP packet, whose headers the device creates or reads. The kernel merges the
//! received datagrams of a flow (`UDP_GRO`) into one [super-frame](steerage::Packet::offload).
//! Packets of a batch with the same addresses and traffic class are sent as one message
//! (`UDP_SEGMENT`), and one system call sends as many messages as possible.
//!
//! Each queue is a socket. Several sockets share one address (`SO_REUSEPORT`). The kernel spreads
//! flows over the sockets of an address. If an input and an output of a process have the same
//! address in the same network namespace, the input and the output share their sockets.

mod headers;
mod queue;
mod send;
mod spec;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use steerage::device::{DeviceCounts, RxQueue, TxQueue};
use steerage::{DeviceError, Input, Output};

use crate::namespace::Namespace;
use crate::offloads::whole::Whole;
use crate::options::setters;
use crate::send_room::SendRoom;
use crate::sys::{bind, set, socket};

pub use spec::is_spec;

/// The maximum number of sockets per address. (The kernel has no limit.)
pub const QUEUES_MAX: usize = 256;

/// The smallest MTU. Every IPv4 host must accept packets of 68 bytes (RFC 791).
pub const MTU_MIN: usize = 68;

/// The largest MTU: the length of the longest IP packet.
pub const MTU_MAX: usize = 65_535;

/// The smallest size of the kernel's buffer for received datagrams, in bytes.
pub const BUFFER_MIN: usize = 4096;
/// The largest size of the kernel's buffer for received datagrams, in bytes.
pub const BUFFER_MAX: usize = 1 << 30;

/// The default size of a receive buffer in bytes: 10 ms of datagrams at 6 Gbit/s. Without
/// CAP_NET_ADMIN, `net.core.rmem_max` limits the buffer.
const BUFFER: usize = 8 << 20;

/// The maximum number of entries that one call of `take_errors` reads from a socket's error queue.
const ERRORS_MAX: usize = 64;

/// The number of log lines about path MTUs is limited, because peers can cause such lines.
const MTU_LINES_MAX: u64 = 16;

/// The address to which the sockets are bound, and the options of the sockets.
///
/// ```
/// use steerage_device::udp::UdpOptions;
///
/// let udp = UdpOptions::new("127.0.0.1:0".parse()?).queues(2).open()?;
/// assert_ne!(udp.local_addr().port(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpOptions {
    /// The address and port.
    pub address: SocketAddr,
    /// The number of sockets. `None`: 1, or as many sockets as this process already has open.
    pub queues: Option<usize>,
    /// The size of the kernel's receive buffer for each socket, in bytes.
    pub receive_buffer: usize,
    /// The longest packet that handlers can write to or keep. Merged packets can be longer.
    pub mtu: usize,
    /// True if the kernel adapts to the MTU of the path (path MTU discovery).
    pub pmtu: bool,
    /// True if the kernel merges received datagrams, and splits sent messages into datagrams.
    pub offloads: bool,
}

/// UDP sockets that share an address.
#[derive(Clone, Debug)]
pub struct Udp(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    asked: SocketAddr,
    local: SocketAddr,
    namespace: Namespace,
    sockets: Vec<OwnedFd>,
    rooms: Vec<SendRoom>,
    mtu: usize,
    is_input: AtomicBool,
    whole: Whole,
    /// The counts that the first queue reports. Some counts are shared by all queues and senders.
    counts: Arc<DeviceCounts>,
    /// The path MTU in the last error report, and the number of log lines about path MTUs.
    path_mtu: AtomicU64,
    lines: AtomicU64,
}

const COUNTS: &[&str] = &[
    "super_frames",
    "wire_packets",
    "wire_bytes",
    "bad_datagrams",
    "no_block",
    "truncated",
    "socket_drops",
    "icmp_errors",
    "too_long",
    "path_mtu",
];
const TRUNCATED: usize = 5;
const DROPS: usize = 6;
/// The first queue reports `ICMP_ERRORS`, `TOO_LONG` and `PATH_MTU` for all sockets. Any thread may
/// increase the three counts, even after the first queue has ended. The final report is complete.
const ICMP_ERRORS: usize = 7;
const TOO_LONG: usize = 8;
const PATH_MTU: usize = 9;

/// The sockets that this process has open. The mutex is locked while sockets are opened.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl UdpOptions {
    /// Creates options for sockets that are bound to `address`, with default values.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, queues: None, receive_buffer: BUFFER, mtu: 1500, pmtu: true, offloads: true }
    }

    setters! {
        /// The number of sockets, 1 to [`QUEUES_MAX`]. Default: as many sockets as this process
        /// already has open at the address, or 1 if it has none.
        queues: usize => Some;
        /// The size of the kernel's receive buffer for each socket, in bytes. Default: 8 MiB.
        receive_buffer: usize;
        /// The longest packet, with headers, that handlers can write to or keep. Handlers can read
        /// longer packets than `mtu`, for example merged packets. Default: 1500.
        mtu: usize;
        /// Whether the kernel discovers the MTU of the path and refuses longer packets
        /// (`too_long`), instead of fragmenting them. Default: yes, because fragments have no ports
        /// for steering, and a lost fragment loses the packet.
        pmtu: bool;
        /// Whether datagrams of a flow are received as [super-frames](steerage::Packet::offload),
        /// and packets to one destination are sent as one message. Default: yes.
        offloads: bool;
    }

    /// Opens the sockets. Shares the sockets if this process has the same address open.
    ///
    /// # Errors
    /// [`DeviceError`] if the address is in use, if it is not an address of this machine, or if
    /// this process has the address open with a different number of queues.
    pub fn open(&self) -> Result<Udp, DeviceError> {
        let namespace = Namespace::here();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|shared| shared.strong_count() > 0);
        let same = |shared: &Arc<Shared>| {
            let named = [shared.asked, shared.local].contains(&self.address);
            named && self.address.port() != 0 && shared.namespace == namespace
        };
        if let Some(shared) = open.iter().filter_map(Weak::upgrade).find(same) {
            if self.queues.is_some_and(|queues| queues != shared.sockets.len()) {
                let differs = format!("it is open with {} queue(s)", shared.sockets.len());
                let cause = io::Error::new(io::ErrorKind::AlreadyExists, differs);
                return Err(self.error("open the address again", cause).advise("name its options once, and the same"));
            }
            return Ok(Udp(shared));
        }
        let shared = Arc::new(self.bind(namespace)?);
        open.push(Arc::downgrade(&shared));
        Ok(Udp(shared))
    }

    fn bind(&self, namespace: Namespace) -> Result<Shared, DeviceError> {
        let count = self.queues.unwrap_or(1);
        let is_sane = (1..=QUEUES_MAX).contains(&count)
            && (MTU_MIN..=MTU_MAX).contains(&self.mtu)
            && (BUFFER_MIN..=BUFFER_MAX).contains(&self.receive_buffer);
        if !is_sane {
            let wrong = format!(
                "queues are 1 to {QUEUES_MAX}, an MTU {MTU_MIN} to {MTU_MAX}, a buffer {BUFFER_MIN} to {BUFFER_MAX}"
            );
            return Err(self.error("open sockets", io::Error::new(io::ErrorKind::InvalidInput, wrong)));
        }
        let (mut local, mut sockets, mut rooms) = (self.address, Vec::with_capacity(count), Vec::with_capacity(count));
        for _ in 0..count {
            let fd = self.socket(count > 1).map_err(|e| self.error("open a socket", e))?;
            let (name, name_bytes) = headers::name_of(local);
            let advice = "choose another port, or an address that `ip addr` lists";
            bind(&fd, &name.0[..name_bytes]).map_err(|e| self.error("bind a socket", e).advise(advice))?;
            let bound = sys::bound(&fd).map_err(|e| self.error("ask for the socket's address", e))?;
            local = headers::address_of(&bound).unwrap_or(local);
            rooms.push(SendRoom::of(&fd).map_err(|e| self.error("ask for the socket's buffer", e))?);
            sockets.push(fd);
        }
        Ok(Shared {
            asked: self.address,
            local,
            namespace,
            sockets,
            rooms,
            mtu: self.mtu,
            is_input: AtomicBool::new(false),
            whole: Whole::new(self.offloads),
            counts: Arc::new(DeviceCounts::new(COUNTS)),
            path_mtu: AtomicU64::new(0),
            lines: AtomicU64::new(0),
        })
    }

    fn socket(&self, shares: bool) -> io::Result<OwnedFd> {
        let is_v6 = self.address.is_ipv6();
        let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
        let fd = socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)?;
        let discover = if self.pmtu { libc::IP_PMTUDISC_DO } else { libc::IP_PMTUDISC_DONT };
        for (v4, v6, value) in [
            (libc::IP_PKTINFO, libc::IPV6_RECVPKTINFO, 1),
            (libc::IP_RECVTOS, libc::IPV6_RECVTCLASS, 1),
            (libc::IP_RECVERR, libc::IPV6_RECVERR, 1),
            (libc::IP_MTU_DISCOVER, libc::IPV6_MTU_DISCOVER, discover),
        ] {
            // An IPv6 socket without IPV6_V6ONLY also receives and sends IPv4.
            set(&fd, libc::IPPROTO_IP, v4, &value)?;
            if is_v6 {
                set(&fd, libc::IPPROTO_IPV6, v6, &value)?;
            }
        }
        if shares {
            set(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1)?;
        }
        let merged = if self.offloads { set(&fd, libc::SOL_UDP, headers::UDP_GRO, &1) } else { Ok(()) };
        if let Err(error) = merged {
            tracing::info!("the kernel does not merge datagrams for sockets (Linux 5.0 does): {error}");
        }
        let bytes = self.receive_buffer as i32;
        for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
            // Without CAP_NET_ADMIN: `net.core.rmem_max` and `net.core.wmem_max` are the limits.
            if set(&fd, libc::SOL_SOCKET, forced, &bytes).is_err() {
                set(&fd, libc::SOL_SOCKET, plain, &bytes)?;
            }
        }
        Ok(fd)
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(format!("udp:{}", self.address), operation, cause)
    }
}

impl Udp {
    /// Returns the address to which the sockets are bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    /// Returns an input that receives the datagrams that peers send to the address.
    ///
    /// # Errors
    /// [`DeviceError`] if these sockets have an input already.
    pub fn input(&self) -> Result<Input, DeviceError> {
        // `Relaxed` suffices, because no other memory is published by this flag.
        if self.0.is_input.swap(true, Ordering::Relaxed) {
            let cause = io::Error::new(io::ErrorKind::AlreadyExists, "this process receives from it already");
            return Err(DeviceError::new(self.0.name(), "receive from the address", cause).advise("name it once"));
        }
        let queue = |nth| Box::new(queue::Queue::new(Arc::clone(&self.0), nth)) as Box<dyn RxQueue>;
        Ok(Input::new(self.0.name(), "udp", (0..self.0.sockets.len()).map(queue).collect()))
    }

    /// Returns an output that sends from the sockets' address. The sockets are assigned to CPUs in
    /// turn.
    pub fn output(&self) -> Output {
        let (shared, mut next) = (Arc::clone(&self.0), 0);
        let open = move |_cpu| {
            let send = send::Send::new(Arc::clone(&shared), next);
            next = (next + 1) % shared.sockets.len();
            Ok(Box::new(send) as Box<dyn TxQueue>)
        };
        Output::new(self.0.name(), "udp", open)
    }
}

impl Shared {
    fn name(&self) -> String {
        format!("udp:{}", self.local)
    }

    fn error(&self, operation: &'static str, cause: io::Error) -> DeviceError {
        DeviceError::new(self.name(), operation, cause)
    }

    /// Empties a socket's error queue of the reports of routers and peers, because poll(2) reports
    /// a socket as ready as long as its error queue has an entry.
    #[cold]
    fn take_errors(&self, nth: usize) {
        use std::os::fd::AsFd;
        let mut error = sys::Received::EMPTY;
        for _ in 0..ERRORS_MAX {
            if sys::receive_one(self.sockets[nth].as_fd(), &mut [], &mut [], true, &mut error).is_err() {
                break;
            }
            let Some(report) = headers::report(&error.control) else { continue };
            self.counts.add(ICMP_ERRORS, report.is_icmp.into());
            let Some(mtu) = report.path_mtu else { continue };
            self.counts.raise_to(PATH_MTU, mtu.into());
            // `Relaxed` suffices, because no other memory is published by these counters.
            let before = self.path_mtu.swap(mtu.into(), Ordering::Relaxed);
            if before != u64::from(mtu) && self.lines.fetch_add(1, Ordering::Relaxed) < MTU_LINES_MAX {
                let peer = headers::address_of(&error.name).map(|peer| peer.ip().to_canonical());
                tracing::warn!(device = %self.name(), ?peer, "longer packets than {mtu} bytes do not fit the path");
            }
        }
    }
}

/// Returns true for an error about an earlier datagram or about one peer, after which the socket
/// remains usable.
fn is_of_a_peer(error: &io::Error) -> bool {
    const OF_A_PEER: [i32; 12] = [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EMSGSIZE,
        libc::EPROTO,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
        libc::EACCES,
        libc::EHOSTDOWN,
        libc::ENONET,
        libc::ETIMEDOUT,
        libc::ECONNRESET,
    ];
    error.raw_os_error().is_some_and(|error| OF_A_PEER.contains(&error))
}
