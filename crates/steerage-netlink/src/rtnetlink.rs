//! Requests to the kernel over rtnetlink(7), through a [`Rtnetlink`] socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NetlinkSerializable};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, LinkXdp};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::RouteMessage;

use crate::entry::{Change, Entry, Link, XdpPlace};
use crate::socket::{Each, Socket};

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
    /// Fails if the kernel refuses the socket.
    pub fn open() -> io::Result<Self> {
        Socket::open(None, 0).map(Self)
    }

    fn request(&mut self, request: &RouteNetlinkMessage, flags: u16, each: &mut dyn FnMut(Change)) -> io::Result<()> {
        self.exchange(request, flags, &mut |message| Change::from_message(message).into_iter().for_each(&mut *each))
    }

    pub(crate) fn exchange(&mut self, request: &RouteNetlinkMessage, flags: u16, each: Each<'_>) -> io::Result<()> {
        let mut body = vec![0; request.buffer_len()];
        request.serialize(&mut body);
        self.0.request(request.message_type(), flags, &body, each)
    }

    /// Returns the link with this name.
    ///
    /// # Errors
    /// Fails if no link has this name, or the kernel does not reply.
    pub fn link(&mut self, name: &str) -> io::Result<Link> {
        self.described(0, vec![LinkAttribute::IfName(name.to_owned())])
    }

    /// Returns the link with this index.
    ///
    /// # Errors
    /// Fails if no link has this index, or the kernel does not reply.
    pub fn link_at(&mut self, index: u32) -> io::Result<Link> {
        self.described(index, Vec::new())
    }

    /// Returns the ports of a bond or a bridge.
    ///
    /// # Errors
    /// Fails if the kernel does not reply.
    pub fn ports(&mut self, controller: u32) -> io::Result<Vec<Link>> {
        let mut ports = Vec::new();
        self.request(
            &RouteNetlinkMessage::GetLink(LinkMessage::default()),
            NLM_F_DUMP,
            &mut |change| match change.entry {
                Entry::Link(link) if link.controller == Some(controller) => ports.push(link),
                _ => {}
            },
        )?;
        Ok(ports)
    }

    fn described(&mut self, index: u32, attributes: Vec<LinkAttribute>) -> io::Result<Link> {
        let mut found = None;
        let request = RouteNetlinkMessage::GetLink(link_message(index, attributes));
        self.request(&request, NLM_F_ACK, &mut |change| {
            if let Entry::Link(link) = change.entry {
                found = Some(link);
            }
        })?;
        // Other crates need the link's name and its MTU.
        found
            .filter(|link| link.name.is_some() && link.mtu.is_some())
            .ok_or_else(|| io::Error::other("the kernel's description of the link is not understood"))
    }

    /// Sets a link up. Requires `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// Fails if the kernel refuses the change.
    pub fn set_up(&mut self, link: u32) -> io::Result<()> {
        let mut message = link_message(link, Vec::new());
        (message.header.flags, message.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
        self.request(&RouteNetlinkMessage::SetLink(message), NLM_F_ACK, &mut |_| {})
    }

    /// Sets the MTU of a link. Requires `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// Fails if the kernel refuses the change.
    pub fn set_mtu(&mut self, link: u32, mtu: u32) -> io::Result<()> {
        let message = link_message(link, vec![LinkAttribute::Mtu(mtu)]);
        self.request(&RouteNetlinkMessage::SetLink(message), NLM_F_ACK, &mut |_| {})
    }

    /// Replaces the XDP program at a hook of the link in one step, if the attached program is still
    /// `expected` (`None`: no program is attached). If `program` is `None`, the old program is
    /// detached. A program that a `bpf_link` of bpf(2) has attached cannot be replaced. Requires
    /// `CAP_NET_ADMIN`.
    ///
    /// The hook must be named: otherwise the kernel chooses the driver's hook if the driver
    /// supports XDP, and a program at the hook after the driver stays attached.
    ///
    /// # Errors
    /// Fails if another XDP program is attached (EEXIST or EBUSY), or if the kernel refuses the
    /// change.
    pub fn exchange_xdp_program(
        &mut self,
        link: u32,
        place: XdpPlace,
        expected: Option<BorrowedFd<'_>>,
        program: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        const IF_NO_PROGRAM: u32 = 1;
        const IF_EXPECTED: u32 = 1 << 4;
        let condition = if expected.is_some() { IF_EXPECTED } else { IF_NO_PROGRAM };
        let program = LinkXdp::Fd(program.map_or(-1, |program| program.as_raw_fd()));
        let mut attributes = vec![program, LinkXdp::Flags(place as u32 | condition)];
        attributes.extend(expected.map(|expected| LinkXdp::ExpectedFd(expected.as_raw_fd() as u32)));
        let message = link_message(link, vec![LinkAttribute::Xdp(attributes)]);
        self.request(&RouteNetlinkMessage::SetLink(message), NLM_F_ACK, &mut |_| {})
    }

    /// Lists all links, addresses, routes and neighbours. An entry is listed after the entries to
    /// which it refers: for example, a route after its link. If a table changes during the listing,
    /// an entry may be listed more than once: the last copy is the newest.
    ///
    /// # Errors
    /// Fails if the kernel does not reply.
    pub fn list(&mut self, each: &mut dyn FnMut(Change)) -> io::Result<()> {
        let requests = [
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            RouteNetlinkMessage::GetRoute(RouteMessage::default()),
            RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
        ];
        requests.iter().try_for_each(|request| self.request(request, NLM_F_DUMP, each))
    }
}

fn link_message(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    (message.header.index, message.attributes) = (index, attributes);
    message
}
