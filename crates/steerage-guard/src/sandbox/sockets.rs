//! Finds the sockets of this process through which a thread could send.
//!
//! A packet socket that listens can also send. `write` to a packet socket sends through the
//! interface to which the socket is bound. A system call that passes an address, such as `sendto`,
//! can send through any interface. Therefore a thread that listens must not use its packet socket
//! for `write`, or for a system call with an address. The kernel has no option that prevents a
//! packet socket from sending. However, a seccomp filter can check the descriptor number in the
//! arguments of a system call.
//!
//! Through a Unix socket, such as a client's socket, a thread could send a file descriptor to
//! another process (`SCM_RIGHTS`). A thread could also send the descriptor to its own process,
//! where the received descriptor gets another number. Therefore a thread may send messages only
//! through UDP sockets. The thread must not give the descriptor number of a permitted socket to
//! another socket. Therefore a restricted thread may not duplicate descriptors. A restricted thread
//! also must not close a permitted socket, because the socket of the next client would then get its
//! descriptor number.

use std::fs;
use std::os::fd::RawFd;

use super::SandboxError;
use super::sys::{self, Kind};

/// The maximum number of sockets of each kind that a filter can check. For one packet socket and
/// one UDP socket together, a filter needs 28 instructions. A seccomp program has at most 4096
/// instructions (`BPF_MAXINSNS`).
pub(super) const SOCKETS_MAX: usize = 128;

/// The packet sockets (packet(7)) and the UDP sockets that this process has open. A thread with a
/// [`ThreadFilter`](super::ThreadFilter) cannot send through packet sockets that listen. It can
/// send messages only through UDP sockets.
///
/// ```
/// use steerage_guard::sandbox::{Group, Sockets, ThreadFilter};
///
/// let filter = ThreadFilter::new(&[Group::Receive], &Sockets::open()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    /// The packet sockets that receive packets of all protocols from an interface.
    pub(crate) listening: Vec<RawFd>,
    pub(crate) packet: Vec<RawFd>,
    /// The UDP sockets. If `udp` is `None`, a thread with the filter may send messages through any
    /// socket except packet sockets.
    pub(crate) udp: Option<Vec<RawFd>>,
    pub(super) too_many: bool,
}

impl Sockets {
    /// Finds the packet sockets and UDP sockets of this process. Call `open` when all sockets of
    /// the process have been opened. If a found socket is closed later, another file may get the
    /// same descriptor number. A thread with the filter must not write to this other file.
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

    /// Returns true if the process has more sockets of one kind than a filter can check. If there
    /// are too many packet sockets, the filter of a thread allows sending through all of them. If
    /// there are too many UDP sockets, it allows sending messages through all sockets.
    pub fn too_many(&self) -> bool {
        self.too_many
    }
}
