//! The output of one CPU to UDP sockets.
//!
//! Packets of a batch with the same addresses and traffic class are merged into one message
//! (`UDP_SEGMENT`), if all payloads except the last have the same length.
//! [`coalesce`](steerage::flow::offload::coalesce) is not used, because it compares checksums,
//! which packets to a UDP output may lack. Messages are sent directly from the packets' pages.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;

use steerage::device::{Outgoing, OutgoingPacket, Sent, TxQueue};
use steerage::flow::offload::OffloadKind;
use steerage::limits::HANDLE_BUDGET;
use steerage::{DeviceError, LinkType};

use super::headers::{Ends, UDP_SEGMENT, name_of, read};
use super::sys::{self, Control, Message, PIECES_MAX};
use super::{Shared, TOO_LONG, is_of_a_peer};
use crate::offloads::merged::{self, Outcome};

/// The most datagrams per message (`UDP_MAX_SEGMENTS`) that all kernels with `UDP_SEGMENT` accept.
const DATAGRAMS_MAX: usize = 64;
/// The longest payload of a message in bytes: the UDP payload of the longest IPv4 packet.
const PAYLOAD_MAX: usize = 65_507;
/// The maximum number of open messages (messages to which a packet can be added), with which each
/// packet is compared.
const OPEN_MAX: usize = 8;
/// The maximum number of attempts to send a message. An attempt may fail with the error of an
/// earlier message.
const ATTEMPTS: usize = 4;

const _: () = assert!(HANDLE_BUDGET <= sys::SENT_MAX && HANDLE_BUDGET <= 64);

#[derive(Debug)]
pub(super) struct Send {
    shared: Arc<Shared>,
    nth: usize,
    /// The memory for the messages of a batch: 19 KB, reused for each system call without being
    /// cleared.
    messages: Box<[Message]>,
}

struct Candidate<'p> {
    packet: OutgoingPacket<'p>,
    ends: Ends,
    header_bytes: usize,
    /// The payload size of the datagrams in the packet, or the payload length of a single datagram.
    segment_bytes: usize,
    payload_bytes: usize,
    total: usize,
    pieces: usize,
}

#[derive(Clone, Copy)]
struct Run {
    members: u64,
    ends: Ends,
    segment_bytes: usize,
    payload_bytes: usize,
    pieces: usize,
}

impl Send {
    pub(super) fn new(shared: Arc<Shared>, nth: usize) -> Self {
        let empty = Message { name: sys::Name([0; sys::NAME_BYTES]), control: Control::EMPTY, pieces: 0 };
        Self { shared, nth, messages: Box::new([empty; HANDLE_BUDGET]) }
    }

    /// If the packet cannot be sent, returns an error with the outcome to count.
    fn candidate<'p>(&self, packet: OutgoingPacket<'p>) -> Result<Candidate<'p>, Outcome> {
        let received = packet.received();
        let total = received.total_len;
        merged::sendable(&received, LinkType::RAW)?;
        let (ends, header_bytes) = read(received.data, total).ok_or(Outcome::Unfit)?;
        let (local, source) = (self.shared.local, ends.source.ip());
        let is_ours = ends.source.port() == local.port()
            && (source.is_unspecified() || local.ip().is_unspecified() || source == local.ip().to_canonical());
        // An IPv6 socket can send to IPv4 addresses. An IPv4 socket cannot send to IPv6 addresses.
        if !is_ours || (local.is_ipv4() && !ends.destination.is_ipv4()) {
            return Err(Outcome::Unfit);
        }
        let payload_bytes = total - header_bytes;
        let segment_bytes = match packet.offload() {
            None => payload_bytes,
            Some(offload) => match offload.kind() {
                OffloadKind::Single => payload_bytes,
                OffloadKind::Udp if offload.header_bytes() == header_bytes => offload.segment_bytes(),
                OffloadKind::Udp | OffloadKind::Tcp => return Err(Outcome::Unfit),
            },
        };
        let pieces = packet.segments().count();
        Ok(Candidate { packet, ends, header_bytes, segment_bytes, payload_bytes, total, pieces })
    }

    fn message(&self, ends: &Ends, cut: Option<usize>) -> (Message, usize) {
        let (mut to, local) = (ends.destination, self.shared.local);
        let mut control = Control::EMPTY;
        match (ends.source.ip(), local.ip().is_unspecified() && !ends.source.ip().is_unspecified()) {
            (std::net::IpAddr::V4(source), true) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&source.octets());
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            (std::net::IpAddr::V6(source), true) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&source.octets());
                control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            _ => {}
        }
        if ends.class != 0 {
            let (level, kind) = match to.is_ipv4() {
                true => (libc::IPPROTO_IP, libc::IP_TOS),
                false => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            control.push(level, kind, &i32::from(ends.class).to_ne_bytes());
        }
        if let Some(bytes) = cut {
            control.push(libc::SOL_UDP, UDP_SEGMENT, &(bytes as u16).to_ne_bytes());
        }
        match (local, &mut to) {
            (std::net::SocketAddr::V6(_), std::net::SocketAddr::V4(v4)) => {
                to = (v4.ip().to_ipv6_mapped(), v4.port()).into();
            }
            // A link-local destination is assumed to be on the link to which the socket is bound.
            (std::net::SocketAddr::V6(local), std::net::SocketAddr::V6(v6)) if v6.ip().is_unicast_link_local() => {
                v6.set_scope_id(local.scope_id());
            }
            _ => {}
        }
        let (name, name_bytes) = name_of(to);
        (Message { name, control, pieces: 0 }, name_bytes)
    }

    /// Sends messages, and tries again if the socket reported an error of an earlier message.
    fn send_message(&self, messages: &mut [Message], name_bytes: usize, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let fd = self.shared.sockets[self.nth].as_fd();
        let mut sent = sys::send(fd, name_bytes, messages, pieces);
        for _ in 1..ATTEMPTS {
            match &sent {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_of_a_peer(error) => self.shared.take_errors(self.nth),
                _ => break,
            }
            sent = sys::send(fd, name_bytes, messages, pieces);
        }
        sent
    }

    fn send_one(&self, ends: &Ends, payload: &[IoSlice<'_>]) -> Outcome {
        let (message, name_bytes) = self.message(ends, None);
        match self.send_message(&mut [Message { pieces: payload.len(), ..message }], name_bytes, payload) {
            Ok(_) => {
                self.shared.rooms[self.nth].spend(1, payload.iter().map(|piece| piece.len()).sum());
                Outcome::Sent
            }
            Err(error) => self.outcome(&error),
        }
    }

    fn outcome(&self, error: &io::Error) -> Outcome {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                self.shared.rooms[self.nth].is_spent();
                Outcome::Full
            }
            Some(libc::EMSGSIZE) => {
                self.shared.counts.add(TOO_LONG, 1);
                Outcome::TooLong
            }
            _ => Outcome::Refused,
        }
    }

    #[cold]
    fn send_cut(&self, candidate: &Candidate<'_>) -> Outcome {
        let Some(offload) = candidate.packet.offload().filter(|offload| offload.is_super_frame()) else {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let count = gather(candidate, &mut pieces);
            return self.send_one(&candidate.ends, &pieces[..count]);
        };
        for part in candidate.packet.parts(&offload).without_checksums() {
            let outcome = self.send_one(&candidate.ends, &[IoSlice::new(part.payload())]);
            if outcome != Outcome::Sent {
                return outcome;
            }
        }
        Outcome::Sent
    }

    /// Call after the kernel refused a message. Sends the packets of the message one by one, if the
    /// kernel may accept them. Returns true if the kernel has no room for further messages.
    #[cold]
    fn send_members(
        &self,
        run: &Run,
        candidates: &[Option<Candidate<'_>>],
        error: &io::Error,
        sent: &mut Sent,
    ) -> bool {
        let may_be_cutting = matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE));
        if run.cut_to().is_none() || !may_be_cutting {
            let outcome = self.outcome(error);
            members(run.members, candidates).for_each(|candidate| count(sent, outcome, candidate));
            return outcome == Outcome::Full;
        }
        let before = sent.packets;
        let is_full = self.send_each(run, candidates, sent);
        let all = sent.packets - before == u64::from(run.members.count_ones());
        if let Some(datagrams) = refused_datagrams(error, run.datagrams()).filter(|_| all) {
            self.shared.whole.refused(&self.shared.name(), OffloadKind::Udp, datagrams);
        }
        is_full
    }

    /// Returns true if the kernel has no room for further messages.
    #[cold]
    fn send_each(&self, run: &Run, candidates: &[Option<Candidate<'_>>], sent: &mut Sent) -> bool {
        for candidate in members(run.members, candidates) {
            let outcome = self.send_cut(candidate);
            count(sent, outcome, candidate);
            if outcome == Outcome::Full {
                return true;
            }
        }
        false
    }

    fn takes(&self, run: &Run) -> bool {
        run.cut_to().is_none() || self.shared.whole.takes(OffloadKind::Udp, run.datagrams())
    }
}

impl TxQueue for Send {
    fn has_room(&self) -> bool {
        self.shared.rooms[self.nth].has_room(self.shared.sockets[self.nth].as_fd())
    }

    fn send(&mut self, packets: &mut Outgoing<'_>) -> Result<Sent, DeviceError> {
        let mut sent = Sent::default();
        let candidates: [Option<Candidate<'_>>; HANDLE_BUDGET] = std::array::from_fn(|_| {
            let packet = packets.next_packet()?;
            self.candidate(packet).map_err(|outcome| merged::count(&mut sent, outcome, 1, 0)).ok()
        });
        let mut messages = std::mem::take(&mut self.messages);
        self.send_runs(&candidates, &mut messages, &mut sent);
        self.messages = messages;
        Ok(sent)
    }
}

impl Send {
    fn send_runs(
        &self,
        candidates: &[Option<Candidate<'_>>; HANDLE_BUDGET],
        messages: &mut [Message],
        sent: &mut Sent,
    ) {
        let merges = self.shared.whole.takes(OffloadKind::Udp, 2);
        let (runs, runs_count) = merge(candidates, merges);
        let mut rest = &runs[..runs_count];
        while !rest.is_empty() {
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let (mut filled, mut used, mut name_bytes) = (0, 0, 0);
            for (run, message) in rest.iter().flatten().zip(messages.iter_mut()) {
                if used + run.pieces > PIECES_MAX || !self.takes(run) {
                    break;
                }
                (*message, name_bytes) = self.message(&run.ends, run.cut_to());
                let from = used;
                for candidate in members(run.members, candidates) {
                    used += gather(candidate, &mut pieces[used..]);
                }
                message.pieces = used - from;
                filled += 1;
            }
            if filled == 0 {
                let Some((Some(run), left)) = rest.split_first() else { break };
                if self.send_each(run, candidates, sent) {
                    break;
                }
                rest = left;
                continue;
            }
            match self.send_message(&mut messages[..filled], name_bytes, &pieces[..used]) {
                Ok(done) => {
                    let (gone, left) = rest.split_at(done.clamp(1, filled));
                    for run in gone.iter().flatten() {
                        self.shared.rooms[self.nth].spend(run.datagrams(), run.payload_bytes);
                        members(run.members, candidates).for_each(|each| count(sent, Outcome::Sent, each));
                    }
                    rest = left;
                }
                Err(error) => {
                    let Some((Some(run), left)) = rest.split_first() else { break };
                    if self.send_members(run, candidates, &error, sent) {
                        break;
                    }
                    rest = left;
                }
            }
        }
    }
}

/// Returns the smallest number of datagrams that is known to be too large for one message, or
/// `None` if the number of datagrams was not the reason for `error`.
pub(super) fn refused_datagrams(error: &io::Error, datagrams: usize) -> Option<usize> {
    match error.raw_os_error() {
        // The kernel does not split messages on this path, which may lead through IPsec or (before
        // Linux 6.11) an interface without checksum offload.
        Some(libc::EIO) => Some(2),
        Some(libc::EINVAL) => Some(datagrams),
        _ => None,
    }
}

/// Merges packets into messages. Packets between the same two addresses stay in order.
fn merge(candidates: &[Option<Candidate<'_>>; HANDLE_BUDGET], merges: bool) -> ([Option<Run>; HANDLE_BUDGET], usize) {
    let (mut runs, mut count) = ([None::<Run>; HANDLE_BUDGET], 0);
    for (nth, candidate) in candidates.iter().enumerate() {
        let Some(candidate) = candidate else { continue };
        let same = |run: &&mut Run| run.ends.destination == candidate.ends.destination;
        let last = runs[..count].iter_mut().rev().take(OPEN_MAX).flatten().find(same);
        if merges && last.is_some_and(|run| run.join(candidate, nth)) {
            continue;
        }
        runs[count] = Some(Run {
            members: 1 << nth,
            ends: candidate.ends,
            segment_bytes: candidate.segment_bytes,
            payload_bytes: candidate.payload_bytes,
            pieces: candidate.pieces,
        });
        count += 1;
    }
    (runs, count)
}

impl Run {
    /// The payload size of the message's datagrams. `None` for a single datagram.
    fn cut_to(&self) -> Option<usize> {
        (self.payload_bytes > self.segment_bytes).then_some(self.segment_bytes)
    }

    fn datagrams(&self) -> usize {
        self.payload_bytes.div_ceil(self.segment_bytes.max(1))
    }

    /// Adds a packet, unless the kernel would split the longer message into datagrams that differ
    /// from the packets.
    fn join(&mut self, next: &Candidate<'_>, nth: usize) -> bool {
        let is_open = self.segment_bytes > 0 && self.payload_bytes % self.segment_bytes == 0;
        let is_alike = next.segment_bytes == self.segment_bytes
            || (next.payload_bytes == next.segment_bytes && next.payload_bytes < self.segment_bytes);
        let payload_bytes = self.payload_bytes + next.payload_bytes;
        let fits = payload_bytes <= PAYLOAD_MAX
            && payload_bytes.div_ceil(self.segment_bytes.max(1)) <= DATAGRAMS_MAX
            && self.pieces + next.pieces <= PIECES_MAX;
        if !is_open || !is_alike || !fits || next.payload_bytes == 0 || next.ends != self.ends {
            return false;
        }
        self.members |= 1 << nth;
        (self.payload_bytes, self.pieces) = (payload_bytes, self.pieces + next.pieces);
        true
    }
}

fn members<'c, 'p>(members: u64, candidates: &'c [Option<Candidate<'p>>]) -> impl Iterator<Item = &'c Candidate<'p>> {
    candidates.iter().enumerate().filter(move |(nth, _)| members >> nth & 1 == 1).filter_map(|(_, each)| each.as_ref())
}

fn gather<'c>(candidate: &'c Candidate<'_>, pieces: &mut [IoSlice<'c>]) -> usize {
    let mut skip = candidate.header_bytes;
    let mut count = 0;
    for (piece, part) in pieces.iter_mut().zip(candidate.packet.segments()) {
        let (_, payload) = part.split_at(skip.min(part.len()));
        skip -= skip.min(part.len());
        *piece = IoSlice::new(payload);
        count += 1;
    }
    count
}

fn count(sent: &mut Sent, outcome: Outcome, candidate: &Candidate<'_>) {
    merged::count(sent, outcome, 1, candidate.total);
}
