//! Finds the sockets of this process through which a thread could send.
//!
//! A packet socket that listens can also send. With `write`, it sends through the interface to
//! which the socket is bound. With an address, a system call sends through any interface. Therefore
//! a thread that listens must not use its packet socket for these system calls. The kernel has no
//! option that prevents a packet socket from sending, but a filter can check the number of a
//! descriptor.
//!
//! A message through a Unix socket, such as a client's socket, can carry descriptors to another
//! process. The message can also carry them back to this process under another number
//! (`SCM_RIGHTS`). Therefore the thread may send messages only through UDP sockets. A thread also
//! cannot give another socket the number of a permitted socket. The thread may not duplicate
//! descriptors, and may not close the permitted sockets, because the next client would then get the
//! number.

use std::fs;
use std::os::fd::RawFd;

use super::SandboxError;
use super::sys::{self, Kind};

/// The maximum number of sockets of each kind that a filter can name. A packet socket and a UDP
/// socket together take 28 instructions, and a seccomp program has at most 4096 instructions
/// (`BPF_MAXINSNS`).
pub(super) const SOCKETS_MAX: usize = 128;

/// The packet sockets (packet(7)) and the UDP sockets that this process has open. With a
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
    /// The packet sockets that receive all protocols of an interface.
    pub(crate) listening: Vec<RawFd>,
    pub(crate) packet: Vec<RawFd>,
    /// The UDP sockets. The value is `None` if messages may be sent through any socket except
    /// packet sockets.
    pub(crate) udp: Option<Vec<RawFd>>,
    pub(super) too_many: bool,
}

impl Sockets {
    /// Finds the packet sockets and UDP sockets of this process. Call `open` after all sockets have
    /// been opened. If one of the sockets is closed later, do not reuse its number for another file
    /// that a restricted thread writes to.
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

    /// Returns true if the process has more sockets of one kind than a filter can name. A filter
    /// that cannot name the sockets of a kind lets its thread send through packet sockets, or send
    /// messages through any socket.
    pub fn too_many(&self) -> bool {
        self.too_many
    }
}
