//! Makes the kernel resolve a neighbour, or check that the neighbour is still reachable.
//!
//! The kernel resolves a neighbour's link address only for a packet to this neighbour. So this
//! module sends an empty datagram to the neighbour's discard port (RFC 863). The command `ip neigh
//! ... use` would need a capability that the program has already dropped.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{BindToDevice, DontRoute};

use super::RouterInterface;

/// The minimum time between two datagrams to a neighbour, the same as between two probes of the
/// kernel.
const EVERY: Duration = Duration::from_secs(1);

const DISCARD_PORT: u16 = 9;

#[derive(Debug)]
struct Sockets {
    index: u32,
    v4: UdpSocket,
    /// `None` if the kernel does not support IPv6.
    v6: Option<UdpSocket>,
}

#[derive(Debug)]
pub(super) struct NeighbourProbes {
    sockets: Vec<Sockets>,
    last: HashMap<(u16, IpAddr), Instant>,
}

impl NeighbourProbes {
    pub(super) fn new(interfaces: &[RouterInterface]) -> io::Result<Self> {
        let bound = |name: &str, socket: UdpSocket| -> io::Result<UdpSocket> {
            setsockopt(&socket, BindToDevice, &name.into())?;
            // A probed neighbour is on the link, so the kernel must not use its routing table.
            setsockopt(&socket, DontRoute, &true)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let sockets = interfaces.iter().map(|RouterInterface { name, index, .. }| {
            let v4 = bound(name, UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?)?;
            let v6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).ok().and_then(|socket| bound(name, socket).ok());
            Ok(Sockets { index: *index, v4, v6 })
        });
        Ok(Self { sockets: sockets.collect::<io::Result<_>>()?, last: HashMap::new() })
    }

    pub(super) fn send(&mut self, neighbours: &[(u16, IpAddr)], now: Instant) {
        self.last.retain(|_, last| now.duration_since(*last) < EVERY);
        for neighbour in neighbours {
            let Some(sockets) = self.sockets.get(usize::from(neighbour.0)) else { continue };
            if self.last.contains_key(neighbour) {
                continue;
            }
            self.last.insert(*neighbour, now);
            let sent = match (neighbour.1, &sockets.v6) {
                (IpAddr::V4(to), _) => sockets.v4.send_to(&[], (to, DISCARD_PORT)),
                (IpAddr::V6(to), Some(socket)) => {
                    let scope = if to.is_unicast_link_local() { sockets.index } else { 0 };
                    socket.send_to(&[], SocketAddr::V6(SocketAddrV6::new(to, DISCARD_PORT, 0, scope)))
                }
                (IpAddr::V6(_), None) => continue,
            };
            if let Err(error) = sent {
                tracing::debug!("cannot have the kernel look for {}: {error}", neighbour.1);
            }
        }
    }
}
