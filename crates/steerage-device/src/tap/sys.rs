//! The system calls for TUN and TAP. Layouts and numbers are those of the kernel's linux/if_tun.h.

use std::ffi::{c_int, c_ulong};
use std::fs::OpenOptions;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use steerage::limits::{HANDLE_BUDGET, SEGMENTS_MAX};

use crate::sys::{InterfaceRequest, ask, checked};

pub(super) const IFF_TUN: u16 = libc::IFF_TUN as u16;
pub(super) const IFF_TAP: u16 = libc::IFF_TAP as u16;
pub(super) const IFF_NO_PI: u16 = libc::IFF_NO_PI as u16;
pub(super) const IFF_MULTI_QUEUE: u16 = libc::IFF_MULTI_QUEUE as u16;
pub(super) const IFF_VNET_HDR: u16 = libc::IFF_VNET_HDR as u16;

/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`, `TUN_F_TSO_ECN`.
pub(super) const OFFLOADS: c_ulong = 1 | 2 | 4 | 8;
/// `TUN_F_USO4`, `TUN_F_USO6`.
pub(super) const OFFLOADS_UDP: c_ulong = 0x20 | 0x40;

/// The maximum number of memory ranges in a sent packet. A merged super-frame has one range for its
/// headers, and one for the payload of each packet of the batch.
const PARTS_MAX: usize = if HANDLE_BUDGET + 1 > SEGMENTS_MAX { HANDLE_BUDGET + 1 } else { SEGMENTS_MAX };

pub(super) const CLONE_DEVICE: &str = "/dev/net/tun";

#[derive(Debug)]
pub(super) struct TunFd(pub(super) OwnedFd);

impl AsFd for TunFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl TunFd {
    pub(super) fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(CLONE_DEVICE)?;
        Ok(Self(file.into()))
    }

    /// If the interface `name` does not exist, the kernel creates it.
    pub(super) fn attach(&self, name: &str, flags: u16) -> io::Result<()> {
        ask(self.as_fd(), libc::TUNSETIFF as c_ulong, &mut InterfaceRequest::of(name)?.with_short(flags))
    }

    pub(super) fn attached(&self) -> io::Result<(String, u16)> {
        let mut request = InterfaceRequest::of("")?;
        ask(self.as_fd(), libc::TUNGETIFF as c_ulong, &mut request)?;
        Ok((request.name(), request.short()))
    }

    /// Sets which offloads the kernel may leave to the reader of packets. Without offloads, the
    /// kernel completes every checksum, and splits packets that are longer than the MTU.
    pub(super) fn set_offloads(&self, offloads: c_ulong) -> io::Result<()> {
        // SAFETY: takes a number.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETOFFLOAD as _, offloads) })
    }

    /// The length in bytes of the header before each packet (`IFF_VNET_HDR`), or 0 without one.
    pub(super) fn header_bytes(&self) -> io::Result<usize> {
        let mut bytes: c_int = 0;
        // SAFETY: the kernel writes an int.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNGETVNETHDRSZ as _, &raw mut bytes) })?;
        Ok(bytes.max(0) as usize)
    }

    pub(super) fn set_header_bytes(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes as c_int;
        // SAFETY: the kernel reads an int.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const bytes) })
    }

    /// Makes the numbers in the header before each packet little-endian on all machines.
    pub(super) fn header_little_endian(&self) -> io::Result<()> {
        let yes: c_int = 1;
        // SAFETY: the kernel reads an int.
        checked(unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TUNSETVNETLE as _, &raw const yes) })
    }

    /// Returns the length of header and packet. Bytes that do not fit into `packet` are lost.
    pub(super) fn read(&self, header: &mut [u8], packet: &mut [u8]) -> io::Result<usize> {
        let mut parts = [IoSliceMut::new(header), IoSliceMut::new(packet)];
        let first = usize::from(parts[0].is_empty());
        let parts = &mut parts[first..];
        // SAFETY: `IoSliceMut` has the layout of `iovec`, and the kernel writes no more than these slices.
        let read = unsafe { libc::readv(self.0.as_raw_fd(), parts.as_mut_ptr().cast(), parts.len() as c_int) };
        if read < 0 { Err(io::Error::last_os_error()) } else { Ok(read as usize) }
    }

    /// Like [`read`](Self::read), but bytes that do not fit into `packet` are written to `rest`.
    pub(super) fn read_far(&self, header: &mut [u8], packet: &mut [u8], rest: &mut [u8]) -> io::Result<usize> {
        let mut parts = [IoSliceMut::new(header), IoSliceMut::new(packet), IoSliceMut::new(rest)];
        // SAFETY: `IoSliceMut` has the layout of `iovec`, and the kernel writes no more than these slices.
        let read = unsafe { libc::readv(self.0.as_raw_fd(), parts.as_mut_ptr().cast(), parts.len() as c_int) };
        if read < 0 { Err(io::Error::last_os_error()) } else { Ok(read as usize) }
    }

    pub(super) fn write<'h, 'p: 'h>(&self, header: &'h [u8], packet: impl Iterator<Item = &'p [u8]>) -> io::Result<()> {
        let (mut parts, mut count) = ([IoSlice::new(header); 1 + PARTS_MAX], 1);
        for (part, segment) in parts[1..].iter_mut().zip(packet) {
            *part = IoSlice::new(segment);
            count += 1;
        }
        let parts = &parts[usize::from(header.is_empty())..count];
        // SAFETY: `IoSlice` has the layout of `iovec`, and the kernel reads no more than these slices.
        let written = unsafe { libc::writev(self.0.as_raw_fd(), parts.as_ptr().cast(), parts.len() as c_int) };
        // The length needs no check: the kernel accepts a packet as a whole or not at all.
        if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
