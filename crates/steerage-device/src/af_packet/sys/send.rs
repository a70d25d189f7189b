//! The system calls for sending by packet sockets.

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use super::{Socket, checked};

const PACKET_QDISC_BYPASS: c_int = 20;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

/// The addresses for packets without a link header: an interface, and one of the two IP protocols.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpAddresses([libc::sockaddr_ll; 2]);

impl IpAddresses {
    pub(crate) fn of(interface: u32) -> Self {
        Self([ETH_P_IP, ETH_P_IPV6].map(|protocol| address(interface, protocol)))
    }

    fn for_packet(&self, packet: &[u8]) -> &libc::sockaddr_ll {
        &self.0[usize::from(packet.first().is_some_and(|first| first >> 4 == 6))]
    }
}

fn address(interface: u32, protocol: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

impl Socket {
    /// Sends through the interface from now on. The socket is bound to no protocol, so it receives
    /// nothing.
    pub(crate) fn bind_to_send(&self, interface: u32) -> io::Result<()> {
        let address = address(interface, 0);
        let (at, len) = (ptr::from_ref(&address).cast(), size_of_val(&address) as libc::socklen_t);
        // SAFETY: `len` bytes at `at` are the address.
        checked(unsafe { libc::bind(self.0.as_raw_fd(), at, len) })
    }

    /// Sets how many bytes may be in flight. Without the privilege for that, it sets as many as any
    /// process may have.
    pub(crate) fn set_send_buffer(&self, bytes: c_int) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| self.set(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
    }

    /// Sends packets to the driver without the queueing discipline.
    pub(crate) fn bypass_qdisc(&self) -> io::Result<()> {
        self.set(libc::SOL_PACKET, PACKET_QDISC_BYPASS, &1)
    }

    /// Sends up to `N` packets with up to `PARTS` parts in total, in order, without waiting.
    /// Returns how many packets left. An error is that of the first packet. The addresses are for
    /// packets without a link header. They come with the number of parts before the IP header.
    pub(crate) fn send_many<const N: usize, const PARTS: usize>(
        &self,
        packets: &[&[&[u8]]],
        addresses: Option<(&IpAddresses, usize)>,
    ) -> io::Result<usize> {
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; PARTS];
        for (part, bytes) in parts.iter_mut().zip(packets.iter().copied().flatten()) {
            // The kernel only reads the parts.
            *part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(), iov_len: bytes.len() };
        }
        // SAFETY: a message without name, parts and control data is all zeros.
        let mut messages: [libc::mmsghdr; N] = [unsafe { std::mem::zeroed() }; N];
        let (mut rest, mut count) = (&mut parts[..], 0);
        for (message, packet) in messages.iter_mut().zip(packets) {
            let Some((own, others)) = rest.split_at_mut_checked(packet.len()) else { break };
            // C libraries differ in the type of this length.
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (own.as_mut_ptr(), own.len() as _);
            (rest, count) = (others, count + 1);
            if let Some((to, before)) = addresses {
                message.msg_hdr.msg_name =
                    ptr::from_ref(to.for_packet(packet.get(before).copied().unwrap_or_default()))
                        .cast_mut()
                        .cast::<c_void>();
                message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            }
        }
        // SAFETY: each of the `count` messages names its own parts. The parts and the optional
        // addresses are borrowed, so they are alive. The kernel reads them, and writes only the
        // messages' lengths.
        let sent = unsafe {
            libc::sendmmsg(self.0.as_raw_fd(), messages.as_mut_ptr(), count as c_uint, libc::MSG_DONTWAIT as _)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}
