//! A CPU's output by an interface.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use steerage::{
    DeviceError,
    device::{Outgoing, Sent, TxQueue},
    packet::Received,
};

use super::vnet::HEADER_BYTES_MAX;
use super::{Shared, is_gone};

/// Of a packet on which nothing is left to be done.
const NOTHING_LEFT: [u8; HEADER_BYTES_MAX] = [0; HEADER_BYTES_MAX];

#[derive(Debug)]
pub(super) struct Send {
    shared: Arc<Shared>,
    nth: usize,
}

impl Send {
    pub(super) fn new(shared: Arc<Shared>, nth: usize) -> Self {
        Self { shared, nth }
    }
}

impl TxQueue for Send {
    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let (shared, fd) = (&self.shared, &self.shared.queues[self.nth]);
        let header = &NOTHING_LEFT[..shared.header_bytes];
        let mut sent = Sent::default();
        while let Some(packet) = packets.next_packet() {
            let Received { total_len, link, wire_len, .. } = packet.received();
            // Of a packet that a capture has cut there is only a part to send.
            if !shared.layer.takes(link) || total_len < wire_len {
                sent.refused += 1;
                continue;
            }
            match fd.write(header, packet.segments()) {
                Ok(()) => {
                    sent.packets += 1;
                    sent.bytes += total_len as u64;
                }
                Err(error) => match error.raw_os_error() {
                    // The rest finds none either.
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => break,
                    // Relaxed: of the CPUs that send one says so, and it does not matter which.
                    _ if is_gone(&error) && !shared.gone.swap(true, Ordering::Relaxed) => {
                        return Err(shared.error("send by the interface", error));
                    }
                    // It is down (EIO), or the packet is none: too short, too long, not of IP.
                    _ => sent.refused += 1,
                },
            }
        }
        Ok(sent)
    }
}
