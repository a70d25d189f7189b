//! Finds the sockets of this process by which a thread could send.
//!
//! A packet socket that listens can also send: `write` sends by the interface that it is bound to, and a
//! call with an address by any interface. So a thread that listens must not use it for these calls. The
//! kernel has no option that makes a packet socket unable to send, but a filter sees the number of a
//! descriptor.
//!
//! A message can carry descriptors to another process, or back to this one under another number
//! (`SCM_RIGHTS`), if its socket is a Unix socket, such as that of a client. So messages may be sent by
//! internet sockets only. A thread cannot give a number to another socket either: it may not duplicate
//! descriptors, and may not close these, since the next client would get the number.

use std::fs;
use std::os::fd::RawFd;

use super::SandboxError;
use super::sys::{self, Kind};

/// The most sockets of each kind that a filter can name. One of each kind takes 28 instructions in all, and the
/// kernel accepts programs of 4096 instructions (`BPF_MAXINSNS`).
pub(super) const SOCKETS_MAX: usize = 128;

/// The packet sockets (packet(7)) and the sockets for UDP that this process has open. A
/// [`ThreadFilter`](super::ThreadFilter) does not let its thread send by packet sockets that listen, nor send
/// messages by other sockets than those for UDP.
///
/// ```
/// use steerage_guard::sandbox::{Group, Sockets, ThreadFilter};
///
/// let filter = ThreadFilter::new(&[Group::Receive], &Sockets::open()?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    /// The packet sockets that listen to all protocols of an interface.
    pub(crate) listening: Vec<RawFd>,
    pub(crate) packet: Vec<RawFd>,
    /// The sockets for UDP. `None` if messages may be sent by any socket but packet sockets.
    pub(crate) udp: Option<Vec<RawFd>>,
    pub(super) too_many: bool,
}

impl Sockets {
    /// Finds the sockets. Call it when all of them are open, and do not use the number of one that
    /// is closed for something else that a confined thread writes to.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
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

    /// Whether there are more sockets of a kind than a filter can name. Then it names none of that kind, and its
    /// thread may send by them, or messages by any socket.
    pub fn too_many(&self) -> bool {
        self.too_many
    }
}
