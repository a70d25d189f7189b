//! Requests to rtnetlink(7).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, ParseableParametrized};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp, Stats64};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::stats::{StatsAttribute, StatsFilterMask, StatsMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::entry::{Change, Entry, Link, XdpPlace};
use crate::socket::Socket;

/// `NETLINK_ROUTE` is protocol 0.
pub(crate) const ROUTE: Option<rustix::net::Protocol> = None;

/// A socket for requests about links, addresses, routes and neighbours.
///
/// ```
/// let mut kernel = steerage_netlink::Rtnetlink::open()?;
/// let link = kernel.link("lo")?;
/// assert_eq!((link.index, link.name.as_deref()), (1, Some("lo")));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Rtnetlink(Socket);

impl Rtnetlink {
    /// Opens a socket in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub fn open() -> io::Result<Self> {
        Socket::for_requests(ROUTE, true).map(Self)
    }

    /// Opens a socket for a thread that must never wait. A reply that is not there at once is an error.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub fn open_without_waiting() -> io::Result<Self> {
        Socket::for_requests(ROUTE, false).map(Self)
    }

    /// The link of this name.
    ///
    /// # Errors
    /// If there is none, or the kernel does not reply.
    pub fn link(&mut self, name: &str) -> io::Result<Link> {
        let mut request = LinkMessage::default();
        request.attributes = vec![LinkAttribute::IfName(name.to_owned())];
        let mut found = None;
        self.0.request(RouteNetlinkMessage::GetLink(request), NLM_F_ACK, &mut |message| {
            if let Some(Change::Now(Entry::Link(link))) = Change::from_message(message) {
                found = Some(link);
            }
        })?;
        found.ok_or_else(|| not_understood("a link"))
    }

    /// What the link has counted since it was created.
    ///
    /// # Errors
    /// If there is no such link, or the kernel does not reply.
    pub fn statistics(&mut self, link: u32) -> io::Result<Stats64> {
        let mut request = StatsMessage::default();
        (request.header.ifindex, request.header.filter_mask) = (link, StatsFilterMask::Link64);
        let mut found = None;
        self.0.request(RouteNetlinkMessage::GetStats(request), NLM_F_ACK, &mut |message| {
            if let Ok(RouteNetlinkMessage::NewStats(reply)) =
                RouteNetlinkMessage::parse_with_param(message.body, message.kind)
            {
                let numbers = |attribute: &StatsAttribute| match attribute {
                    StatsAttribute::Link64(numbers) => Some(*numbers),
                    _ => None,
                };
                found = reply.attributes.iter().find_map(numbers);
            }
        })?;
        found.ok_or_else(|| not_understood("statistics"))
    }

    /// Attaches an XDP program to a place of the link, in place of the one that is there. For `None`, the place becomes
    /// empty. Programs that are attached through a link of bpf(2) stay. Needs `CAP_NET_ADMIN`.
    ///
    /// The place must be named: without it, the kernel chooses the driver's place if the driver supports XDP, and then
    /// removes no program from the place after the driver.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_xdp_program(&mut self, link: u32, place: XdpPlace, program: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = link;
        let program = LinkXdp::Fd(program.map_or(-1, |program| program.as_raw_fd()));
        request.attributes = vec![LinkAttribute::Xdp(vec![program, LinkXdp::Flags(place as u32)])];
        self.0.request(RouteNetlinkMessage::SetLink(request), NLM_F_ACK, &mut |_| {})
    }

    /// Lists all links, addresses, routes and neighbours, in this order, so that each entry comes after those that it
    /// refers to. If the tables change meanwhile, some entries come more than once, the last being the newest.
    ///
    /// # Errors
    /// If the kernel does not reply.
    pub fn list(&mut self, each: &mut dyn FnMut(Entry)) -> io::Result<()> {
        let routes = |family| {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            RouteNetlinkMessage::GetRoute(request)
        };
        let requests = [
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            routes(AddressFamily::Inet),
            routes(AddressFamily::Inet6),
            RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
        ];
        for request in requests {
            self.0.request(request, NLM_F_DUMP, &mut |message| {
                if let Some(Change::Now(entry)) = Change::from_message(message) {
                    each(entry);
                }
            })?;
        }
        Ok(())
    }
}

fn not_understood(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel's description of {what} is not understood"))
}
