//! Finds the packet sockets of this process.
//!
//! A packet socket that listens can also send: `write` sends through its bound interface, and a
//! call with an address sends through any interface. A listening thread must therefore not use
//! these calls on the socket. The kernel has no option that makes a packet socket unable to send,
//! but a filter sees descriptor numbers. The thread cannot change a socket's number, because it may
//! not duplicate descriptors.

use std::fs;
use std::os::fd::RawFd;

use super::{SandboxError, sys};

/// The maximum number of packet sockets of each type that a filter can name. Each socket takes two
/// or three instructions in each of three system calls, and the kernel accepts programs of 4096
/// instructions (`BPF_MAXINSNS`).
const SOCKETS_MAX: usize = 200;

/// The packet sockets (packet(7)) that this process has open. A
/// [`ThreadFilter`](super::ThreadFilter) prevents its thread from sending through listening packet
/// sockets.
///
/// ```
/// use steerage_guard::sandbox::{Group, PacketSockets, ThreadFilter};
///
/// let filter = ThreadFilter::new(&[Group::Receive], &PacketSockets::open()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PacketSockets {
    pub(crate) listening: Vec<RawFd>,
    pub(crate) all: Vec<RawFd>,
    too_many: bool,
}

impl PacketSockets {
    /// Finds the packet sockets. Call this function when all packet sockets are open. If one of
    /// them is closed, a confined thread must not write to another file that reuses its number.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn open() -> Result<Self, SandboxError> {
        let mut found = Self::default();
        for entry in fs::read_dir("/proc/self/fd").map_err(SandboxError::sockets)? {
            let name = entry.map_err(SandboxError::sockets)?.file_name();
            let Some(descriptor) = name.to_str().and_then(|name| name.parse::<RawFd>().ok()) else {
                continue;
            };
            let Some(protocol) = sys::packet_protocol(descriptor) else { continue };
            found.all.push(descriptor);
            if protocol == libc::ETH_P_ALL as u16 {
                found.listening.push(descriptor);
            }
        }
        for sockets in [&mut found.listening, &mut found.all] {
            if sockets.len() > SOCKETS_MAX {
                found.too_many = true;
                sockets.clear();
            }
        }
        Ok(found)
    }

    /// Whether there are more packet sockets than a filter can name. In that case, the filter names
    /// none, and its thread may send through them.
    pub fn too_many(&self) -> bool {
        self.too_many
    }
}
