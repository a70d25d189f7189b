//! The output of one CPU through an interface.
//!
//! With offloads, consecutive packets of a flow within a batch leave as one super-frame, so no
//! packet waits for later ones. If the kernel refuses a super-frame, this code cuts it and all
//! later ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use steerage::{
    DeviceError,
    device::{Outgoing, OutgoingPacket, Sent, TxQueue},
    flow::offload::{MERGED_MAX, Merged, Offload, OffloadKind, Segments, coalesce},
    limits::HANDLE_BUDGET,
    packet::Received,
};

use super::vnet::HEADER_BYTES_MAX;
use super::{Offloads, Shared, TunFd, is_gone};

const _: () = assert!(HANDLE_BUDGET <= MERGED_MAX);

/// The header of a packet that needs no more work.
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
        let (shared, fd) = (&*self.shared, &self.shared.queues[self.nth]);
        let mut sending = Sending { shared, fd, sent: Sent::default(), full: false, failed: None };
        match &shared.offloads {
            Some(offloads) => sending.send_merged(packets, offloads),
            None => {
                while let Some(packet) = packets.next_packet() {
                    sending.send_one(&packet);
                    if sending.full || sending.failed.is_some() {
                        break;
                    }
                }
            }
        }
        sending.failed.map_or(Ok(sending.sent), Err)
    }
}

/// A batch that is being sent.
struct Sending<'s> {
    shared: &'s Shared,
    fd: &'s TunFd,
    sent: Sent,
    /// Whether the kernel has no room, so that the rest of the batch finds none either.
    full: bool,
    failed: Option<DeviceError>,
}

/// The outcome of sending a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Sent,
    Refused,
    /// The kernel does not accept it as a packet. If it is a super-frame, it must be cut.
    Cut,
    /// The packet was not sent, and counts as `tx_full`.
    Full,
}

impl Sending<'_> {
    fn send_merged(&mut self, packets: &mut Outgoing<'_>, offloads: &Offloads) {
        let outgoing: [_; HANDLE_BUDGET] = std::array::from_fn(|_| packets.next_packet());
        let count = outgoing.iter().flatten().count();
        // Relaxed: if this CPU sees another CPU's store late, the kernel refuses one more
        // super-frame.
        if offloads.refused.load(Ordering::Relaxed) {
            return outgoing.iter().flatten().for_each(|packet| self.send_one(packet));
        }
        let received: [Option<Received<'_>>; HANDLE_BUDGET] =
            std::array::from_fn(|nth| outgoing[nth].as_ref().map(OutgoingPacket::received));
        let batch: [Option<(&[u8], Option<Offload>)>; HANDLE_BUDGET] = std::array::from_fn(|nth| {
            let (packet, received) = (outgoing[nth].as_ref()?, received[nth].as_ref()?);
            let offload = packet.offload();
            let is_one = !offload.as_ref().is_some_and(Offload::is_super_frame) && packet.segments().count() == 1;
            (is_one && self.takes(received)).then_some((received.data, offload))
        });
        coalesce(&batch[..count], self.shared.layer.link(), |merged| {
            self.send_run(&merged, &outgoing, &batch, offloads)
        });
    }

    /// Sends packets that were merged, or a single packet that was not.
    fn send_run(
        &mut self,
        merged: &Merged<'_>,
        outgoing: &[Option<OutgoingPacket<'_>>],
        batch: &[Option<(&[u8], Option<Offload>)>],
        offloads: &Offloads,
    ) {
        let kind = |offload: &Offload| offload.kind() == OffloadKind::Tcp || offloads.udp;
        if let Some((header, offload)) = merged.frame.filter(|(_, offload)| kind(offload)) {
            let members = || merged.positions().filter_map(|nth| batch[nth]).map(|(packet, _)| packet);
            let parts = std::iter::once(header).chain(members().map(|packet| &packet[header.len()..]));
            match self.write_whole(&offload, merged.is_v4, parts) {
                Outcome::Cut => {}
                outcome => {
                    let (count, bytes) =
                        members().fold((0, 0), |(count, bytes), packet| (count + 1, bytes + packet.len()));
                    return self.count(outcome, count, bytes);
                }
            }
        }
        merged.positions().filter_map(|nth| outgoing[nth].as_ref()).for_each(|packet| self.send_one(packet));
    }

    fn takes(&self, Received { total_len, link, wire_len, .. }: &Received<'_>) -> bool {
        // A packet that a capture has cut is incomplete, so it is not sent.
        self.shared.layer.takes(*link) && total_len >= wire_len
    }

    fn send_one(&mut self, packet: &OutgoingPacket<'_>) {
        let received = packet.received();
        let outcome = match packet.offload() {
            _ if !self.takes(&received) => Outcome::Refused,
            None => self.write(&NOTHING_LEFT[..self.shared.header_bytes], packet.segments()),
            Some(offload) => {
                let is_v4 = received.data.get(offload.network_at()).is_some_and(|first| first >> 4 == 4);
                match self.write_whole(&offload, is_v4, packet.segments()) {
                    Outcome::Cut => self.cut(&offload, packet),
                    outcome => outcome,
                }
            }
        };
        self.count(outcome, 1, received.total_len);
    }

    /// Sends a packet with its offload, if the kernel takes that.
    fn write_whole<'p>(&mut self, offload: &Offload, is_v4: bool, parts: impl Iterator<Item = &'p [u8]>) -> Outcome {
        let Some(offloads) = &self.shared.offloads else { return Outcome::Cut };
        // Relaxed: as in `send_merged`.
        let takes = match offload.kind() {
            OffloadKind::Single => true,
            _ if offloads.refused.load(Ordering::Relaxed) => false,
            OffloadKind::Tcp => true,
            OffloadKind::Udp => offloads.udp,
        };
        let Some(header) = offload.to_virtio(is_v4).filter(|_| takes) else { return Outcome::Cut };
        let outcome = self.write(&header, parts);
        if outcome != Outcome::Cut || !offload.is_super_frame() {
            return outcome;
        }
        // Relaxed: it does not matter which CPU writes the warning.
        if !offloads.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(device = %self.shared.name, "the kernel refuses super-frames: they are cut from now on");
        }
        Outcome::Cut
    }

    /// Sends the packets of a super-frame one by one. The super-frame counts as sent if all of them
    /// were.
    fn cut(&mut self, offload: &Offload, packet: &OutgoingPacket<'_>) -> Outcome {
        let mut segments = packet.segments();
        let first = segments.next().unwrap_or_default();
        let (front, behind) = match segments.next() {
            Some(behind) => (first, behind),
            None => first.split_at(offload.header_bytes().min(first.len())),
        };
        let header = &NOTHING_LEFT[..self.shared.header_bytes];
        for part in Segments::new(offload, front, behind) {
            let outcome = self.write(header, [part.header(), part.payload()].into_iter());
            if outcome != Outcome::Sent {
                return outcome;
            }
        }
        Outcome::Sent
    }

    fn write<'h, 'p: 'h>(&mut self, header: &'h [u8], parts: impl Iterator<Item = &'p [u8]>) -> Outcome {
        if self.full || self.failed.is_some() {
            return Outcome::Full;
        }
        match self.fd.write(header, parts) {
            Ok(()) => Outcome::Sent,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    self.full = true;
                    Outcome::Full
                }
                // Relaxed: exactly one of the sending CPUs reports the deletion, and it does not
                // matter which.
                _ if is_gone(&error) && !self.shared.gone.swap(true, Ordering::Relaxed) => {
                    self.failed = Some(self.shared.error("send by the interface", error));
                    Outcome::Refused
                }
                // The kernel does not accept the packet: it is too short, too long, or not IP. Or
                // it is a super-frame.
                Some(libc::EINVAL) => Outcome::Cut,
                // The interface is down (EIO).
                _ => Outcome::Refused,
            },
        }
    }

    fn count(&mut self, outcome: Outcome, packets: u64, bytes: usize) {
        match outcome {
            Outcome::Sent => {
                self.sent.packets += packets;
                self.sent.bytes += bytes as u64;
            }
            Outcome::Refused | Outcome::Cut => self.sent.refused += packets,
            Outcome::Full => {}
        }
    }
}
