use std::io;
use std::sync::Arc;

use steerage::LinkType;
use steerage::device::{DeviceCounts, OFFLOAD_BYTES};
use steerage::flow::offload::{Offload, VIRTIO_BYTES};

use super::TunFd;
use crate::offloads::lent::{BAD, Lent, Limits, NO_BLOCK, Received, Room, Short, Source, Unfit};

/// Several super-frames fit into a block, so only a small part at the end of a block is left
/// unused.
const BLOCK_BYTES: usize = 256 << 10;

/// The blocks have 64 MiB in total. The kernel allocates pages of the blocks when they are first
/// used. Frames for one CPU may use half of the blocks. This half holds 450 super-frames, more than
/// eight TCP connections together had in flight.
const BLOCKS: usize = 256;

/// 65,535 bytes for the IP packet, plus an Ethernet header with two VLAN tags.
const PACKET_BYTES_MAX: usize = 65_535 + 22;

const COUNTS: &[&str] = &["super_frames", "wire_packets", "wire_bytes", "bad_offloads", "no_block"];

pub(super) fn lent(link: LinkType) -> Lent {
    let (frame_bytes, room_bytes) = (PACKET_BYTES_MAX, OFFLOAD_BYTES + PACKET_BYTES_MAX);
    let limits = Limits { blocks: BLOCKS, block_bytes: BLOCK_BYTES, frame_bytes, room_bytes, link };
    Lent::new(limits, Arc::new(DeviceCounts::new(COUNTS)), COUNTS.len())
}

/// A queue in which each packet has a header before it that describes the packet's offload.
pub(super) struct Described<'f>(pub(super) &'f TunFd, pub(super) LinkType);

impl Source for Described<'_> {
    fn receive(&mut self, room: &mut Room<'_, '_>, _most: usize) -> io::Result<Received> {
        let mut told = [0; VIRTIO_BYTES];
        let free = &mut room.lending.bytes()[OFFLOAD_BYTES..];
        let len = self.0.read(&mut told, free)?.saturating_sub(VIRTIO_BYTES);
        match Offload::from_virtio(&told, &free[..len.min(free.len())], self.1) {
            Ok(offload) if (1..=PACKET_BYTES_MAX).contains(&len) => room.lend(OFFLOAD_BYTES, len, offload),
            _ => room.lose(Unfit(BAD)),
        }
        Ok(Received { frames: 1, more: true })
    }

    fn receive_short(&mut self, room: &mut [u8], rest: &mut [u8]) -> io::Result<Result<Short, Unfit>> {
        let mut told = [0; VIRTIO_BYTES];
        let len = self.0.read_far(&mut told, room, rest)?.saturating_sub(VIRTIO_BYTES);
        let Some(packet) = room.get(..len) else { return Ok(Err(Unfit(NO_BLOCK))) };
        let offload = Offload::from_virtio(&told, packet, self.1).map_err(|_| Unfit(BAD));
        let offload = offload.and_then(|offload| if len == 0 { Err(Unfit(BAD)) } else { Ok(offload) });
        Ok(offload.map(|offload| Short { at: 0, len, offload }))
    }
}
