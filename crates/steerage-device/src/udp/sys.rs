//! The system calls for UDP sockets. The crate `quinn-udp` sends one contiguous buffer per call.
//! This module sends the packets of a batch directly from their pages.

use std::ffi::{c_int, c_void};
use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::sys::{checked, get};

pub(super) const RECEIVED_MAX: usize = 16;

/// The maximum numbers of messages, and of memory ranges of messages, that one system call sends.
pub(super) const SENT_MAX: usize = 64;
pub(super) const PIECES_MAX: usize = 256;

/// The size of a message's ancillary data: room for an address, a traffic class and a segment size,
/// each for IPv4 and for IPv6.
const CONTROL_BYTES: usize = 256;

pub(super) const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
pub(super) struct Name(pub(super) [u8; NAME_BYTES]);

/// Ancillary data: see cmsg(3).
#[derive(Clone, Copy, Debug)]
#[repr(align(8))]
pub(super) struct Control {
    bytes: [u8; CONTROL_BYTES],
    len: usize,
}

impl Control {
    pub(super) const EMPTY: Self = Self { bytes: [0; CONTROL_BYTES], len: 0 };

    const fn aligned(len: usize) -> usize {
        len.next_multiple_of(size_of::<usize>())
    }

    const HEADER_BYTES: usize = Self::aligned(size_of::<libc::cmsghdr>());

    pub(super) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let len = Self::HEADER_BYTES + data.len();
        let Some(to) = self.bytes.get_mut(self.len..self.len + Self::aligned(len)) else { return };
        let number = size_of::<usize>();
        to[..number].copy_from_slice(&len.to_ne_bytes());
        to[number..number + 4].copy_from_slice(&level.to_ne_bytes());
        to[number + 4..number + 8].copy_from_slice(&kind.to_ne_bytes());
        to[Self::HEADER_BYTES..len].copy_from_slice(data);
        self.len += Self::aligned(len);
    }

    pub(super) fn items(&self) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
        let mut rest = &self.bytes[..self.len.min(CONTROL_BYTES)];
        std::iter::from_fn(move || {
            let number = size_of::<usize>();
            let len = usize::from_ne_bytes(*rest.first_chunk()?);
            let int = |at: usize| Some(c_int::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
            let item = (int(number)?, int(number + 4)?, rest.get(Self::HEADER_BYTES..len)?);
            rest = rest.get(Self::aligned(len)..).unwrap_or_default();
            Some(item)
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    pub(super) name: Name,
    pub(super) control: Control,
    pub(super) len: usize,
    pub(super) is_cut: bool,
}

impl Received {
    pub(super) const EMPTY: Self = Self { name: Name([0; NAME_BYTES]), control: Control::EMPTY, len: 0, is_cut: false };
}

fn message(name: &mut Name, control: *mut u8, control_bytes: usize) -> libc::msghdr {
    // SAFETY: zeros are an empty `msghdr`.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = std::ptr::from_mut(&mut name.0).cast();
    message.msg_namelen = NAME_BYTES as _;
    message.msg_control = control.cast::<c_void>();
    message.msg_controllen = control_bytes as _;
    message
}

// In the C library musl, the lengths of messages are `u32`.
#[allow(clippy::unnecessary_cast)]
/// Receives up to `into.len()` datagrams of up to `room` bytes. Datagram `n` is written to `buffer`
/// at the offset `first + n * stride`. Returns the number of received datagrams.
pub(super) fn receive(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    (first, stride, room): (usize, usize, usize),
    into: &mut [Received],
) -> io::Result<usize> {
    // SAFETY: zeros are empty headers.
    let mut headers: [libc::mmsghdr; RECEIVED_MAX] = unsafe { zeroed() };
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; RECEIVED_MAX];
    let (mut count, mut rest) = (0, buffer.get_mut(first..).unwrap_or_default());
    for ((header, part), to) in headers.iter_mut().zip(&mut parts).zip(into.iter_mut()) {
        let Some(slot) = rest.get_mut(..room) else { break };
        *part = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: room };
        header.msg_hdr = message(&mut to.name, to.control.bytes.as_mut_ptr(), CONTROL_BYTES);
        header.msg_hdr.msg_iov = part;
        header.msg_hdr.msg_iovlen = 1;
        count += 1;
        rest = rest.get_mut(stride.max(room)..).unwrap_or_default();
    }
    // SAFETY: each of the `count` headers names memory that this function borrows mutably, the slots
    // do not overlap, and the kernel writes no more than the lengths say.
    let got = unsafe {
        libc::recvmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count as _, libc::MSG_DONTWAIT as _, std::ptr::null_mut())
    };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    for (header, to) in headers.iter().zip(into.iter_mut()).take(got as usize) {
        (to.len, to.control.len) = (header.msg_len as usize, header.msg_hdr.msg_controllen as usize);
        to.is_cut = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
    }
    Ok(got as usize)
}

#[allow(clippy::unnecessary_cast)]
/// Bytes that do not fit into `room` are written to `rest`. If `errors` is true, takes an entry
/// from the socket's error queue instead of a datagram.
pub(super) fn receive_one(
    fd: BorrowedFd<'_>,
    room: &mut [u8],
    rest: &mut [u8],
    errors: bool,
    to: &mut Received,
) -> io::Result<()> {
    let mut parts = [io::IoSliceMut::new(room), io::IoSliceMut::new(rest)];
    let mut header = message(&mut to.name, to.control.bytes.as_mut_ptr(), CONTROL_BYTES);
    // `IoSliceMut` has the layout of `iovec`.
    header.msg_iov = parts.as_mut_ptr().cast();
    header.msg_iovlen = parts.len() as _;
    let flags = libc::MSG_DONTWAIT | if errors { libc::MSG_ERRQUEUE } else { 0 };
    // SAFETY: the header names memory that this function borrows mutably, with its lengths.
    let got = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    (to.len, to.control.len) = (got as usize, header.msg_controllen as usize);
    to.is_cut = header.msg_flags & libc::MSG_TRUNC != 0;
    Ok(())
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) name: Name,
    pub(super) control: Control,
    pub(super) pieces: usize,
}

/// `pieces` contains the memory ranges of the messages in order. Returns the number of sent
/// messages.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    name_bytes: usize,
    messages: &mut [Message],
    pieces: &[IoSlice<'_>],
) -> io::Result<usize> {
    // SAFETY: zeros are empty headers.
    let mut headers: [libc::mmsghdr; SENT_MAX] = unsafe { zeroed() };
    let (mut rest, mut count) = (pieces, 0);
    for (header, message_) in headers.iter_mut().zip(messages) {
        let Some((own, behind)) = rest.split_at_checked(message_.pieces) else { break };
        let control =
            if message_.control.len == 0 { std::ptr::null_mut() } else { message_.control.bytes.as_mut_ptr() };
        header.msg_hdr = message(&mut message_.name, control, message_.control.len);
        header.msg_hdr.msg_namelen = name_bytes.min(NAME_BYTES) as _;
        // `IoSlice` has the layout of `iovec`, and the kernel only reads the memory ranges.
        header.msg_hdr.msg_iov = own.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_iovlen = own.len() as _;
        (rest, count) = (behind, count + 1);
    }
    // SAFETY: each of the `count` headers names memory that is borrowed until the call returns.
    let sent = unsafe {
        libc::sendmmsg(fd.as_raw_fd(), headers.as_mut_ptr(), count, (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

pub(super) fn bound(fd: &OwnedFd) -> io::Result<Name> {
    let (mut name, mut len) = (Name([0; NAME_BYTES]), NAME_BYTES as libc::socklen_t);
    // SAFETY: the kernel writes no more than `len` bytes.
    checked(unsafe { libc::getsockname(fd.as_raw_fd(), name.0.as_mut_ptr().cast(), &raw mut len) })?;
    Ok(name)
}

/// Returns the number of datagrams that were dropped since the socket was opened
/// (`SK_MEMINFO_DROPS`).
pub(super) fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    const DROPS: usize = 8;
    Ok(get::<[u32; DROPS + 1]>(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)?[DROPS])
}
