//! The system calls for sending by packet sockets.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use super::super::program;
use super::Socket;
use crate::sys::set;

impl Socket {
    /// `protocol` is 0 for packets with a link header. A socket that is bound to a protocol would
    /// also receive frames, so it gets a filter that accepts no frame.
    pub(crate) fn bind_to_send(&self, interface: u32, protocol: u16) -> io::Result<()> {
        if protocol != 0 {
            self.attach(&program::NOTHING)?;
        }
        self.bind_to(interface, protocol)
    }

    /// If the process may not exceed the system's limit on send buffers, the kernel applies that
    /// limit.
    pub(crate) fn set_send_buffer(&self, bytes: c_int) -> io::Result<()> {
        set(&self.0, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| set(&self.0, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
    }

    pub(crate) fn bypass_qdisc(&self) -> io::Result<()> {
        set(&self.0, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1)
    }

    /// Sends a packet without blocking. The system calls for sending have no address argument, so
    /// the sandbox can forbid calls with an address, which could send through any interface.
    pub(crate) fn send<const PARTS: usize>(&self, packet: &[&[u8]]) -> io::Result<()> {
        let socket = self.0.as_raw_fd();
        let sent = if let [only] = packet {
            // SAFETY: the kernel reads the bytes of `only`.
            unsafe { libc::sendto(socket, only.as_ptr().cast(), only.len(), libc::MSG_DONTWAIT, ptr::null(), 0) }
        } else {
            let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; PARTS];
            for (part, bytes) in parts.iter_mut().zip(packet) {
                *part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(), iov_len: bytes.len() };
            }
            let count = packet.len().min(PARTS) as c_int;
            // SAFETY: the first `count` parts are bytes of `packet`, which is borrowed.
            unsafe { libc::writev(socket, parts.as_ptr(), count) }
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
