//! Finds the sockets of this process through which a thread could send.
//!
//! A packet socket that listens can also send, and the kernel has no option that prevents this.
//! `write` sends through the interface to which the socket is bound. A system call with an address,
//! such as `sendto`, can send through any interface. For a thread that listens, a seccomp filter
//! forbids both ways of sending, by the descriptor number in the system call's arguments.
//!
//! Through a Unix socket, such as a client's socket, a thread could send a file descriptor to
//! another process (`SCM_RIGHTS`), or to its own process, where the descriptor gets another number.
//! Therefore a thread may send messages only through UDP sockets. The number of a permitted socket
//! must not pass to another socket: a restricted thread may not duplicate descriptors, and must not
//! close a permitted socket, because the socket of the next client would then get its number.

use std::fs;
use std::os::fd::RawFd;

use super::SandboxError;
use super::sys::{self, Kind};

/// The maximum number of sockets of each kind that a filter can check. A packet socket and a UDP
/// socket together need 28 instructions, and a seccomp program has at most 4096 (`BPF_MAXINSNS`).
pub(super) const SOCKETS_MAX: usize = 128;

/// The packet sockets (packet(7)) and UDP sockets that this process has open. With a
/// [`ThreadFilter`](super::ThreadFilter), a thread cannot send through packet sockets that listen,
/// and can send messages only through UDP sockets.
///
/// ```
/// use steerage_guard::sandbox::{Group, Sockets, ThreadFilter};
///
/// let filter = ThreadFilter::new(&[Group::Receive], &Sockets::open()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    /// The packet sockets that receive packets of all protocols.
    pub(crate) listening: Vec<RawFd>,
    pub(crate) packet: Vec<RawFd>,
    /// The UDP sockets. If `None`, a thread may send messages through any socket except packet
    /// sockets.
    pub(crate) udp: Option<Vec<RawFd>>,
    pub(super) too_many: bool,
}

impl Sockets {
    /// Finds the sockets of this process. Call `open` when all sockets have been opened. If a
    /// socket is closed later, its descriptor number may pass to a file to which the thread must
    /// not write.
    ///
    /// # Errors
    /// Returns an error if `/proc` cannot be read.
    pub fn open() -> Result<Self, SandboxError> {
        let (mut found, mut udp) = (Self::default(), Vec::new());
        for entry in fs::read_dir("/proc/self/fd").map_err(SandboxError::sockets)? {
            let name = entry.map_err(SandboxError::sockets)?.file_name();
            let Some(descriptor) = name.to_str().and_then(|name| name.parse::<RawFd>().ok()) else {
                continue;
            };
            match sys::socket_kind(descriptor) {
                Some(Kind::Packet(protocol)) => {
                    found.packet.push(descriptor);
                    if protocol == libc::ETH_P_ALL as u16 {
                        found.listening.push(descriptor);
                    }
                }
                Some(Kind::Udp) => udp.push(descriptor),
                None => {}
            }
        }
        for sockets in [&mut found.listening, &mut found.packet] {
            if sockets.len() > SOCKETS_MAX {
                found.too_many = true;
                sockets.clear();
            }
        }
        found.too_many |= udp.len() > SOCKETS_MAX;
        found.udp = (udp.len() <= SOCKETS_MAX).then_some(udp);
        Ok(found)
    }

    /// Returns true if the process has more sockets of one kind than a filter can check. With too
    /// many packet sockets, the thread may send through all packet sockets. With too many UDP
    /// sockets, the thread may send messages through all sockets.
    pub fn too_many(&self) -> bool {
        self.too_many
    }
}
