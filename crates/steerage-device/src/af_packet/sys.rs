//! The system calls of packet sockets, and the memory shared with the kernel (`linux/if_packet.h`).
//! This module and its submodules contain all `unsafe` code of the device AF_PACKET.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::{bind, get, set, socket};

mod ring;
mod send;

pub(super) use ring::{Frame, Memory, Shape};

/// The kernel resets the statistics of a packet socket to 0 at each read.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Statistics {
    /// The number of frames that passed the filter, including frames that did not fit into the
    /// ring.
    pub(super) packets: u32,
    pub(super) drops: u32,
    pub(super) freezes: u32,
}

#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket {
    /// Creates a nonblocking socket that does not listen yet. `cooked`: frames have no link header.
    pub(super) fn new(cooked: bool) -> io::Result<Self> {
        let kind = if cooked { libc::SOCK_DGRAM } else { libc::SOCK_RAW };
        socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0).map(Self)
    }

    /// Makes the kernel put a `virtio_net_hdr` before each received frame, and expect one before
    /// each sent frame. The call must precede the creation of the ring.
    pub(super) fn tell_offloads(&self) -> io::Result<()> {
        set(&self.0, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)
    }

    pub(super) fn card_time(&self) -> io::Result<()> {
        set(&self.0, libc::SOL_PACKET, libc::PACKET_TIMESTAMP, &libc::SOF_TIMESTAMPING_RAW_HARDWARE)
    }

    pub(super) fn make_ring(&self, shape: &Shape, reserve: u32) -> io::Result<()> {
        set(&self.0, libc::SOL_PACKET, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V3)?;
        set(&self.0, libc::SOL_PACKET, libc::PACKET_RESERVE, &reserve)?;
        set(&self.0, libc::SOL_PACKET, libc::PACKET_RX_RING, &shape.request())
    }

    /// Replaces the socket's filter in one step.
    pub(super) fn attach(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        let len = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let filter = program.as_ptr().cast_mut();
        set(&self.0, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &libc::sock_fprog { len, filter })
    }

    pub(super) fn detach(&self) -> io::Result<()> {
        set(&self.0, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)
    }

    /// Listens to the interface.
    pub(super) fn bind(&self, interface: u32) -> io::Result<()> {
        self.bind_to(interface, libc::ETH_P_ALL as u16)
    }

    fn bind_to(&self, interface: u32, protocol: u16) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol.to_be(),
            sll_ifindex: interface as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        bind(&self.0, &address)
    }

    /// Sets whether the interface receives frames for other machines while this socket exists.
    pub(super) fn promiscuous(&self, interface: u32, yes: bool) -> io::Result<()> {
        let option = if yes { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
        let request = libc::packet_mreq {
            mr_ifindex: interface as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set(&self.0, libc::SOL_PACKET, option, &request)
    }

    /// Makes the kernel skip outgoing frames early. Requires Linux 4.20.
    pub(super) fn ignore_outgoing(&self) -> io::Result<()> {
        set(&self.0, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)
    }

    /// Joins a fanout group, whose sockets share frames by flow, or creates a group (`None`).
    pub(super) fn join_fanout(&self, group: Option<u16>) -> io::Result<u16> {
        let of = |group: u16, flags: u32| u32::from(group) | (libc::PACKET_FANOUT_HASH | flags) << 16;
        match group {
            None => set(&self.0, libc::SOL_PACKET, libc::PACKET_FANOUT, &of(0, libc::PACKET_FANOUT_FLAG_UNIQUEID))?,
            Some(group) => set(&self.0, libc::SOL_PACKET, libc::PACKET_FANOUT, &of(group, 0))?,
        }
        Ok(get::<u32>(&self.0, libc::SOL_PACKET, libc::PACKET_FANOUT)? as u16)
    }

    pub(super) fn statistics(&self) -> io::Result<Statistics> {
        get(&self.0, libc::SOL_PACKET, libc::PACKET_STATISTICS)
    }

    /// The kernel reports each error of a socket once. An error usually means that the interface
    /// went down.
    pub(super) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let error: c_int = get(&self.0, libc::SOL_SOCKET, libc::SO_ERROR)?;
        Ok((error != 0).then(|| io::Error::from_raw_os_error(error)))
    }
}
