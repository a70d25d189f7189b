//! Sends super-frames.
//!
//! Consecutive packets of a flow within a batch are sent as one super-frame. No packet waits for a
//! later batch. A super-frame that the kernel refuses is split into packets.

use steerage::LinkType;
use steerage::device::{OutgoingPacket, Sent};
use steerage::flow::offload::{MERGED_MAX, Merged, Offload, VIRTIO_BYTES, coalesce};
use steerage::limits::HANDLE_BUDGET;
use steerage::packet::Received;

use super::whole::Whole;

#[cfg(test)]
mod tests;

const _: () = assert!(HANDLE_BUDGET <= MERGED_MAX);

/// The `virtio_net_hdr` that is sent before a packet.
pub(crate) type Header = [u8; VIRTIO_BYTES];

/// The header for a packet that needs neither a checksum nor segmentation.
pub(crate) static NOTHING_LEFT: Header = [0; VIRTIO_BYTES];

pub(crate) type Packets<'p> = [Option<OutgoingPacket<'p>>; HANDLE_BUDGET];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sent,
    /// The kernel refuses this type of frame, but may accept the packets in it one by one.
    Unfit,
    /// The frame is too long for the kernel, which may accept the packets of a super-frame one by
    /// one.
    TooLong,
    LinkType,
    Cut,
    /// The interface is down or was deleted.
    Refused,
    /// The kernel had no room for the frame. The frame counts as `tx_full`.
    Full,
}

impl Outcome {
    fn allows_parts(self) -> bool {
        matches!(self, Self::Unfit | Self::TooLong)
    }
}

/// `link` is the link type of the packets that the output sends. An output of IP packets
/// ([`LinkType::RAW`]) sends packets of each link type that begins with an IP header.
pub(crate) fn sendable(received: &Received<'_>, link: LinkType) -> Result<(), Outcome> {
    let is_ip = || matches!(received.link, LinkType::IPV4 | LinkType::IPV6 | LinkType::RAW_BSD | LinkType::RAW_OPENBSD);
    match received.link == link || link == LinkType::RAW && is_ip() {
        false => Err(Outcome::LinkType),
        true if received.total_len < received.wire_len => Err(Outcome::Cut),
        true => Ok(()),
    }
}

pub(crate) fn count(sent: &mut Sent, outcome: Outcome, packets: u64, bytes: usize) {
    match outcome {
        Outcome::Sent => {
            sent.packets += packets;
            sent.bytes += bytes as u64;
        }
        Outcome::TooLong => sent.too_long += packets,
        Outcome::LinkType => sent.link_type += packets,
        Outcome::Cut => sent.cut += packets,
        Outcome::Unfit | Outcome::Refused => sent.refused += packets,
        Outcome::Full => {}
    }
}

pub(crate) trait Wire {
    fn write<'a>(&mut self, header: &'a Header, parts: impl Iterator<Item = &'a [u8]>) -> Outcome;
}

#[derive(Debug)]
pub(crate) struct Output<'o, W> {
    pub(crate) name: &'o str,
    pub(crate) link: LinkType,
    pub(crate) whole: Option<&'o Whole>,
    pub(crate) wire: &'o mut W,
    pub(crate) sent: Sent,
}

impl<W: Wire> Output<'_, W> {
    pub(crate) fn send(mut self, packets: &Packets<'_>) -> Sent {
        if !self.whole.is_some_and(Whole::merges) {
            packets.iter().flatten().for_each(|packet| self.send_packet(packet));
            return self.sent;
        }
        let batch: [Option<(&[u8], Option<Offload>)>; HANDLE_BUDGET] = std::array::from_fn(|nth| {
            let packet = packets[nth].as_ref()?;
            let (received, offload) = (packet.received(), packet.offload());
            let is_one =
                !offload.as_ref().is_some_and(Offload::is_super_frame) && received.data.len() == received.total_len;
            (is_one && sendable(&received, self.link).is_ok()).then_some((received.data, offload))
        });
        let count = packets.iter().flatten().count();
        coalesce(&batch[..count], self.link, |merged| self.send_run(&merged, &batch, packets));
        self.sent
    }

    fn send_run(&mut self, merged: &Merged<'_>, batch: &[Option<(&[u8], Option<Offload>)>], packets: &Packets<'_>) {
        let members = merged.members.count_ones() as usize;
        let each = || merged.positions().filter_map(|nth| packets[nth].as_ref());
        let taken = merged.frame.as_ref().and_then(|(front, offload)| {
            let whole = self.whole.filter(|whole| whole.takes(offload.kind(), members))?;
            Some((*front, offload.kind(), offload.to_virtio(merged.is_v4)?, whole))
        });
        let Some((front, kind, header, whole)) = taken else {
            return each().for_each(|packet| self.send_packet(packet));
        };
        let all = || merged.positions().filter_map(|nth| batch[nth]).map(|(packet, _)| packet);
        let parts = std::iter::once(front).chain(all().map(|packet| &packet[front.len()..]));
        let outcome = self.wire.write(&header, parts);
        if !outcome.allows_parts() {
            return count(&mut self.sent, outcome, members as u64, all().map(<[u8]>::len).sum());
        }
        let before = self.sent.packets;
        each().for_each(|packet| self.send_packet(packet));
        if self.sent.packets - before == members as u64 {
            whole.refused(self.name, kind, members);
        }
    }

    fn send_packet(&mut self, packet: &OutgoingPacket<'_>) {
        let received = packet.received();
        if let Err(outcome) = sendable(&received, self.link) {
            return count(&mut self.sent, outcome, packet.frames(), 0);
        }
        let offload = packet.offload();
        if let Some(offload) = offload.as_ref().filter(|offload| offload.is_super_frame() || self.whole.is_none()) {
            return self.send_offload(packet, &received, offload);
        }
        let header = offload.and_then(|offload| offload.to_virtio(false)).unwrap_or(NOTHING_LEFT);
        let outcome = self.wire.write(&header, packet.segments());
        count(&mut self.sent, outcome, 1, received.total_len);
    }

    fn send_offload(&mut self, packet: &OutgoingPacket<'_>, received: &Received<'_>, offload: &Offload) {
        let packets = offload.packets(received.total_len);
        let is_v4 = received.data.get(offload.network_at()).is_some_and(|first| first >> 4 == 4);
        let whole = self.whole.filter(|whole| whole.takes(offload.kind(), packets));
        let Some((whole, header)) = whole.and_then(|whole| Some((whole, offload.to_virtio(is_v4)?))) else {
            self.cut(packet, received, offload);
            return;
        };
        let outcome = self.wire.write(&header, packet.segments());
        if !outcome.allows_parts() {
            // If the packet was merged from several frames, each of the frames is counted.
            let frames = packet.frames();
            let bytes = if frames > 1 { offload.wire_bytes(received.total_len) } else { received.total_len };
            count(&mut self.sent, outcome, frames, bytes);
        } else if self.cut(packet, received, offload) {
            whole.refused(self.name, offload.kind(), packets);
        }
    }

    /// Sends and counts the packets of a super-frame one by one. A super-frame that was received as
    /// one frame counts as sent if all of its packets were sent. Returns true if all packets were
    /// sent.
    fn cut(&mut self, packet: &OutgoingPacket<'_>, received: &Received<'_>, offload: &Offload) -> bool {
        let each = packet.frames() > 1;
        let mut all = Outcome::Sent;
        for part in packet.parts(offload) {
            let outcome = self.wire.write(&NOTHING_LEFT, [part.header(), part.payload()].into_iter());
            if each {
                count(&mut self.sent, outcome, 1, part.len());
            }
            if outcome != Outcome::Sent {
                all = outcome;
                if !each {
                    break;
                }
            }
        }
        if !each {
            count(&mut self.sent, all, 1, received.total_len);
        }
        all == Outcome::Sent
    }
}
