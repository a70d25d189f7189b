use std::sync::Arc;
use std::sync::atomic::Ordering;

use steerage::{
    DeviceError,
    device::{Outgoing, Sent, TxCapabilities, TxQueue},
};

use super::{Shared, TunFd, is_gone};
use crate::offloads::merged::{Header, Outcome, Output, Packets, Wire};
use crate::offloads::vnet::HEADER_BYTES_MAX;

/// The `virtio_net_hdr` that is written before a packet if the interface has no offloads.
const NO_OFFLOADS: [u8; HEADER_BYTES_MAX] = [0; HEADER_BYTES_MAX];

#[derive(Debug)]
pub(super) struct Send {
    pub(super) shared: Arc<Shared>,
    pub(super) nth: usize,
}

/// An output to a TUN or TAP always has room: the kernel processes each packet in the system call
/// that writes it.
impl TxQueue for Send {
    fn capabilities(&self) -> TxCapabilities {
        let mut can = TxCapabilities::default();
        can.merged = self.shared.whole.is_some();
        can
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let (shared, fd) = (&*self.shared, &self.shared.queues[self.nth]);
        let packets: Packets<'_> = std::array::from_fn(|_| packets.next_packet());
        let mut sending = Sending { shared, fd, full: false, failed: None };
        let (link, whole) = (shared.layer.link(), shared.whole.as_ref());
        let output = Output { name: &shared.name, link, whole, wire: &mut sending, sent: Sent::default() };
        let sent = output.send(&packets);
        sending.failed.map_or(Ok(sent), Err)
    }
}

struct Sending<'s> {
    shared: &'s Shared,
    fd: &'s TunFd,
    /// True if the kernel has no room, and would also refuse all later packets of the batch.
    full: bool,
    failed: Option<DeviceError>,
}

impl Wire for Sending<'_> {
    fn write<'a>(&mut self, header: &'a Header, parts: impl Iterator<Item = &'a [u8]>) -> Outcome {
        if self.full || self.failed.is_some() {
            return Outcome::Full;
        }
        let header = if self.shared.whole.is_some() { header } else { &NO_OFFLOADS[..self.shared.header_bytes] };
        let Err(error) = self.fd.write(header, parts) else { return Outcome::Sent };
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                self.full = true;
                Outcome::Full
            }
            // `Relaxed` suffices: exactly one CPU, no matter which, must report that the interface
            // was deleted.
            _ if is_gone(&error) && !self.shared.gone.swap(true, Ordering::Relaxed) => {
                self.failed = Some(self.shared.error("send by the interface", error));
                Outcome::Refused
            }
            // The kernel refuses the packet because it is too short, too long, not IP, or a
            // super-frame.
            Some(libc::EINVAL) => Outcome::Unfit,
            _ => Outcome::Refused,
        }
    }
}
