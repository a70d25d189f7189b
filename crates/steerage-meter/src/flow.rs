//! A flow in the flow table, which takes two cache lines, and a third for TCP.

use steerage::BucketId;
use steerage::flow::wire::tcp::{ACK, FIN, RST, SYN};
use steerage::flow::{HeaderKind, Tunnel, protocol};

use super::code::{Coder, MalformedEdges};
use super::key::{Directed, Key};
use super::tcp::{Segment, TcpHealth, TcpState};
use super::timeouts::{LATE_MAX, Timeouts, nanos};

/// VLAN ids have 12 bits, so no tag has this value.
const NO_VLAN: u16 = u16::MAX;

/// This bit of a flow's state says that the second endpoint sent the first packet.
const TURNED: u8 = 1;
/// This bit of a flow's state says that TCP closed the connection, by a reset or by FIN from both
/// sides.
const CLOSED: u8 = 2;
const USED: u8 = 4;
const HAS_TUNNEL_ID: u8 = 8;
/// The flow may continue a flow of an earlier part of the recording.
const CONTINUES: u8 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) flow: Directed,
    pub(super) hash: u32,
    pub(super) time: u64,
    pub(super) bytes: u32,
    pub(super) ip_bytes: u32,
    pub(super) tcp_flags: u16,
    pub(super) segment: Segment,
    pub(super) icmp: u16,
    pub(super) vlans: [u16; 2],
    pub(super) tunnel: Option<HeaderKind>,
    pub(super) tunnel_id: Option<u32>,
}

impl Seen {
    #[inline(always)]
    pub(super) fn of(flow: Directed) -> Self {
        let (vlans, tunnel, tunnel_id) = ([NO_VLAN; 2], None, None);
        Self {
            flow,
            hash: 0,
            time: 0,
            bytes: 0,
            ip_bytes: 0,
            tcp_flags: 0,
            segment: Segment::default(),
            icmp: 0,
            vlans,
            tunnel,
            tunnel_id,
        }
    }

    #[inline(always)]
    pub(super) fn fill(&mut self, flow: Directed, ip_bytes: u32, tcp_flags: u16) {
        self.flow = flow;
        self.ip_bytes = ip_bytes;
        self.tcp_flags = tcp_flags;
        self.icmp = 0;
        self.vlans = [NO_VLAN; 2];
        (self.tunnel, self.tunnel_id) = (None, None);
    }

    pub(super) fn opens(&self) -> bool {
        self.tcp_flags & (SYN | ACK) == SYN
    }
}

/// The amount of traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of packets.
    pub packets: u64,
    /// Bytes on the wire, with the Ethernet checksum only if the capture has recorded it. Bytes that
    /// the capture has cut off are included.
    pub bytes: u64,
    /// Bytes according to the innermost IP headers (IPFIX's octet count), or 0 without IP.
    pub ip_bytes: u64,
}

impl std::ops::AddAssign for Traffic {
    #[inline(always)]
    fn add_assign(&mut self, more: Self) {
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.ip_bytes += more.ip_bytes;
    }
}

/// The reason why a record ends. The numbers are those of IPFIX's flowEndReason (RFC 5102).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FlowEnd {
    /// No packet of the flow arrived for as long as the inactive timeout.
    Idle = 1,
    /// The active timeout ended the record. The flow gets another record if more packets follow.
    Active = 2,
    /// The TCP connection was closed, by a reset or by FIN from both sides.
    Finished = 3,
    /// The run ended.
    Forced = 4,
    /// The flow was evicted: the table was full, and the flow had been idle for the longest time.
    Resources = 5,
}

/// The first cache line has what is compared with every packet and what timeouts depend on. The
/// second cache line has the counters. Only TCP segments change the third cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Flow {
    pub(super) key: Key,
    pub(super) last: u64,
    pub(super) first: u64,
    tcp_flags: [u16; 2],
    vlans: [u16; 2],
    traffic: [Traffic; 2],
    tunnel_id: u32,
    pub(super) hash: u32,
    /// The bucket with which the flow moves to another CPU.
    pub(super) bucket: BucketId,
    /// For ICMP, the type and code of the first packet. For TCP, the number of resets from each
    /// side.
    icmp_or_resets: [u8; 2],
    tunnel: Option<HeaderKind>,
    state: u8,
    tcp: TcpState,
}

const _: () = assert!(size_of::<Flow>() == 192, "three cache lines");

impl Flow {
    /// Creates a flow without counting its first packet: the caller must do that with
    /// [`add`](Self::add).
    #[inline]
    pub(super) fn begin(seen: &Seen, bucket: BucketId) -> Self {
        Self {
            key: seen.flow.key,
            last: seen.time,
            first: seen.time,
            tcp_flags: [0; 2],
            vlans: seen.vlans,
            traffic: [Traffic::default(); 2],
            tunnel_id: seen.tunnel_id.unwrap_or(0),
            hash: seen.hash,
            bucket,
            icmp_or_resets: seen.icmp.to_be_bytes(),
            tunnel: seen.tunnel,
            state: if seen.flow.turned { TURNED } else { 0 } | if seen.tunnel_id.is_some() { HAS_TUNNEL_ID } else { 0 },
            tcp: TcpState::default(),
        }
    }

    pub(super) fn of(flow: Directed, (first, last): (u64, u64), forth: Traffic, back: Traffic) -> Self {
        let seen = Seen { time: first.min(last), ..Seen::of(flow) };
        let traffic = if flow.turned { [back, forth] } else { [forth, back] };
        Self { last: last.max(first), traffic, ..Self::begin(&seen, BucketId { group: 0, bucket: 0 }) }
    }

    /// A free slot of the table, with a key that no packet has.
    pub(super) fn vacant() -> Self {
        let nobody = Directed { key: Key::VACANT, turned: false };
        Self::begin(&Seen::of(nobody), BucketId { group: 0, bucket: 0 })
    }

    pub(super) fn is_vacant(&self) -> bool {
        self.key == Key::VACANT
    }

    #[inline(always)]
    pub(super) fn is(&self, seen: &Seen) -> bool {
        self.key.is(&seen.flow.key)
    }

    /// Returns true if the packet closes the TCP connection.
    #[inline(always)]
    pub(super) fn add(&mut self, seen: &Seen) -> bool {
        let side = usize::from(seen.flow.turned);
        self.traffic[side] += Traffic { packets: 1, bytes: seen.bytes.into(), ip_bytes: seen.ip_bytes.into() };
        self.tcp_flags[side] |= seen.tcp_flags;
        if seen.segment.is_there {
            self.tcp.note(side, &seen.segment, seen.tcp_flags, seen.time, self.last);
        }
        if seen.time >= self.last {
            self.last = seen.time;
        } else {
            // Clocks of interfaces differ. An earlier time moves the start of the flow, but never
            // its end.
            self.first = self.first.min(seen.time);
        }
        self.state |= USED;
        seen.tcp_flags & (FIN | RST) != 0 && self.closes(seen)
    }

    /// Adds the frames of a super-frame, except for the one frame that was counted already.
    pub(super) fn add_more(&mut self, seen: &Seen, more: Traffic) {
        self.traffic[usize::from(seen.flow.turned)] += more;
    }

    #[cold]
    fn closes(&mut self, seen: &Seen) -> bool {
        let [one, other] = self.tcp_flags;
        let was_closed = self.is_closed();
        if seen.tcp_flags & RST != 0 {
            let resets = &mut self.icmp_or_resets[usize::from(seen.flow.turned)];
            *resets = resets.saturating_add(1);
        }
        if seen.tcp_flags & RST != 0 || one & other & FIN != 0 {
            self.state |= CLOSED;
        }
        self.is_closed() && !was_closed
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state & CLOSED != 0
    }

    /// A packet that is earlier than the last packet by more than the timeout also ends the record,
    /// because another recording has begun.
    #[inline(always)]
    pub(super) fn ends_before(&self, seen: &Seen, timeouts: &Timeouts) -> Option<FlowEnd> {
        if self.is_plainly_same(seen, timeouts) { None } else { self.ends_slowly(seen, timeouts) }
    }

    /// A quick check that is true for most packets: the packet belongs to this record, whatever the
    /// state of the flow.
    #[inline(always)]
    fn is_plainly_same(&self, seen: &Seen, timeouts: &Timeouts) -> bool {
        let pause = seen.time.abs_diff(self.last);
        let lasts = seen.time.saturating_sub(self.first);
        pause < timeouts.closed && lasts < timeouts.active && seen.tcp_flags & SYN == 0
    }

    /// Returns true if the packet belongs to this record, whatever packets earlier parts of the
    /// recording or waiting fragments add.
    #[inline(always)]
    pub(super) fn surely_goes_on(&self, seen: &Seen, timeouts: &Timeouts) -> bool {
        let late = LATE_MAX.as_nanos() as u64;
        let is_cut = if timeouts.clock > 0 {
            timeouts.cuts(self.first, self.last, seen.time.saturating_add(late))
        } else {
            seen.time.saturating_sub(self.first) >= timeouts.active
        };
        seen.time.abs_diff(self.last).saturating_add(late) < timeouts.closed && seen.tcp_flags & SYN == 0 && !is_cut
    }

    #[inline(never)]
    fn ends_slowly(&self, seen: &Seen, timeouts: &Timeouts) -> Option<FlowEnd> {
        if seen.opens() && self.is_left_by(seen) {
            return Some(FlowEnd::Finished);
        }
        if self.is_over(seen.time, 0, timeouts) {
            return Some(self.reason_when_over());
        }
        timeouts.cuts(self.first, self.last, seen.time).then_some(FlowEnd::Active)
    }

    fn is_left_by(&self, seen: &Seen) -> bool {
        if seen.segment.is_there {
            self.tcp.is_left_by(usize::from(seen.flow.turned), seen.segment.sequence)
        } else {
            self.is_closed()
        }
    }

    pub(super) fn is_over(&self, now: u64, more: u64, timeouts: &Timeouts) -> bool {
        now.abs_diff(self.last) >= self.timeout(timeouts).saturating_add(more)
    }

    /// Returns true if not even a late packet can belong to this record.
    pub(super) fn is_gone(&self, now: u64, timeouts: &Timeouts) -> bool {
        self.is_over(now, self.late(), timeouts)
    }

    /// Returns how late packets may be. If the flow continues an earlier part, the last packet of
    /// that part may be later than that of this part by up to [`LATE_MAX`].
    pub(super) fn late(&self) -> u64 {
        if self.continues() { 2 * nanos(LATE_MAX) } else { nanos(LATE_MAX) }
    }

    pub(super) fn timeout(&self, timeouts: &Timeouts) -> u64 {
        if self.is_closed() { timeouts.closed } else { timeouts.inactive }
    }

    pub(super) fn reason_when_over(&self) -> FlowEnd {
        if self.is_closed() { FlowEnd::Finished } else { FlowEnd::Idle }
    }

    /// At the end of the run, a flow may have timed out although no check has detected it yet.
    pub(super) fn reason_at_the_end(&self, now: u64, timeouts: &Timeouts) -> FlowEnd {
        let is_over = self.is_closed() || self.is_over(now, 0, timeouts);
        if is_over { self.reason_when_over() } else { FlowEnd::Forced }
    }

    /// Begins another record and returns the old record. The caller must count the packet with
    /// [`add`](Self::add). After a cut by the active timeout, the new record has the same source.
    pub(super) fn restart(&mut self, seen: &Seen, why: FlowEnd) -> Self {
        let mut next = Self::begin(seen, self.bucket);
        if why == FlowEnd::Active {
            next.continue_after(self);
        }
        std::mem::replace(self, next)
    }

    /// Copies the source and the TCP state of the previous record, which the active timeout ended.
    pub(super) fn continue_after(&mut self, before: &Self) {
        self.state = self.state & !TURNED | before.state & TURNED;
        let mut tcp = before.tcp.restarted();
        tcp.join(&self.tcp);
        self.tcp = tcp;
    }

    pub(super) fn take_used(&mut self) -> bool {
        let used = self.state & USED != 0;
        self.state &= !USED;
        used
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if other.first < self.first {
            self.state = self.state & !TURNED | other.state & TURNED;
            (self.vlans, self.tunnel, self.tunnel_id) = (other.vlans, other.tunnel, other.tunnel_id);
            self.state = self.state & !HAS_TUNNEL_ID | other.state & HAS_TUNNEL_ID;
        }
        if !self.can_close() && other.first < self.first {
            self.icmp_or_resets = other.icmp_or_resets;
        }
        self.tcp.merge(&other.tcp, self.last >= other.last);
        self.add_counts(other);
    }

    /// Adds the packets of `later` as if they were added one by one, except that a segment in
    /// `later` does not count as a retransmission of a segment in `self`.
    pub(super) fn join(&mut self, later: &Self) {
        self.tcp.join(&later.tcp);
        self.add_counts(later);
        if self.tcp_flags[0] & self.tcp_flags[1] & FIN != 0 {
            self.state |= CLOSED;
        }
    }

    fn add_counts(&mut self, other: &Self) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.state |= other.state & (CLOSED | USED);
        for side in 0..2 {
            self.traffic[side] += other.traffic[side];
            self.tcp_flags[side] |= other.tcp_flags[side];
            if self.can_close() {
                let resets = &mut self.icmp_or_resets[side];
                *resets = resets.saturating_add(other.icmp_or_resets[side]);
            }
        }
    }

    pub(super) fn can_close(&self) -> bool {
        self.key.protocol() == protocol::TCP
    }

    pub(super) fn has_closing_flags(&self) -> bool {
        (self.tcp_flags[0] | self.tcp_flags[1]) & (FIN | RST) != 0
    }

    pub(super) fn continues(&self) -> bool {
        self.state & CONTINUES != 0
    }

    pub(super) fn set_continues(&mut self, continues: bool) {
        self.state = self.state & !CONTINUES | if continues { CONTINUES } else { 0 };
    }

    /// Writes or reads the flow without its bucket and hash, which are valid only within a run.
    pub(super) fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        self.key.code(coder)?;
        coder.number(&mut self.last)?;
        coder.number(&mut self.first)?;
        coder.numbers(&mut self.tcp_flags)?;
        coder.numbers(&mut self.vlans)?;
        for Traffic { packets, bytes, ip_bytes } in &mut self.traffic {
            [packets, bytes, ip_bytes].into_iter().try_for_each(|count| coder.number(count))?;
        }
        coder.number(&mut self.tunnel_id)?;
        coder.numbers(&mut self.icmp_or_resets)?;
        code_tunnel(coder, &mut self.tunnel)?;
        coder.number(&mut self.state)?;
        self.tcp.code(coder)
    }

    pub(super) fn is_turned(&self) -> bool {
        self.state & TURNED != 0
    }

    /// Returns the traffic of the source (which sent first), and of the other endpoint.
    pub(super) fn traffic(&self) -> (Traffic, Traffic) {
        let [one, other] = self.traffic;
        if self.is_turned() { (other, one) } else { (one, other) }
    }

    pub(super) fn tcp_flags(&self) -> (u16, u16) {
        let [one, other] = self.tcp_flags;
        if self.is_turned() { (other, one) } else { (one, other) }
    }

    pub(super) fn health(&self) -> TcpHealth {
        self.tcp.health(self.is_turned(), self.icmp_or_resets)
    }

    pub(super) fn sequences(&self) -> Option<([u32; 2], [u32; 2])> {
        self.can_close().then(|| self.tcp.sequences(self.is_turned()))
    }

    pub(super) fn icmp(&self) -> [u8; 2] {
        self.icmp_or_resets
    }

    pub(super) fn vlans(&self) -> [Option<u16>; 2] {
        self.vlans.map(|id| (id != NO_VLAN).then_some(id))
    }

    pub(super) fn tunnel(&self) -> Option<Tunnel> {
        let id = (self.state & HAS_TUNNEL_ID != 0).then_some(self.tunnel_id);
        self.tunnel.map(|kind| Tunnel::new(kind, id))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.traffic[0].bytes + self.traffic[1].bytes
    }
}

pub(super) fn code_tunnel(coder: &mut impl Coder, tunnel: &mut Option<HeaderKind>) -> Result<(), MalformedEdges> {
    let mut number = tunnel.map_or(0, |kind| kind as u8 + 1);
    coder.number(&mut number)?;
    *tunnel = match number {
        0 => None,
        kind => Some(*HeaderKind::ALL.get(usize::from(kind) - 1).ok_or(MalformedEdges)?),
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const BUCKET: BucketId = BucketId { group: 0, bucket: 0 };
    const S: u64 = 1_000_000_000;

    fn timeouts() -> Timeouts {
        Timeouts::new(Duration::from_secs(300), false, Duration::from_secs(60))
    }

    fn tcp(time: u64, flags: u16, turned: bool) -> Seen {
        let flow = if turned { Key::v4((2, 80), (1, 5), 6) } else { Key::v4((1, 5), (2, 80), 6) };
        Seen { time, tcp_flags: flags, bytes: 60, ip_bytes: 40, ..Seen::of(flow) }
    }

    /// Returns why the record of `packets` ends before the packet `next`. Each packet is: seconds,
    /// TCP flags, true for a reply.
    fn end(packets: &[(u64, u16, bool)], next: (u64, u16)) -> Option<FlowEnd> {
        let packets: Vec<Seen> =
            packets.iter().map(|(second, flags, turned)| tcp(second * S, *flags, *turned)).collect();
        let mut flow = Flow::begin(&packets[0], BUCKET);
        packets.iter().for_each(|seen| {
            flow.add(seen);
        });
        flow.ends_before(&tcp(next.0 * S, next.1, false), &timeouts())
    }

    #[test]
    fn why_a_record_ends() {
        assert_eq!(end(&[(0, ACK, false)], (59, ACK)), None);
        assert_eq!(end(&[(0, ACK, false)], (60, ACK)), Some(FlowEnd::Idle));
        let long: Vec<_> = (0..7).map(|i| (50 * i, ACK, i % 2 == 1)).collect();
        assert_eq!(end(&long[..6], (299, ACK)), None);
        assert_eq!(end(&long[..6], (300, ACK)), Some(FlowEnd::Active));
        assert_eq!(end(&long, (400, ACK)), Some(FlowEnd::Idle));
        assert_eq!(end(&[(86_400, ACK, false)], (0, ACK)), Some(FlowEnd::Idle));
        assert_eq!(end(&[(86_400, ACK, false)], (86_399, ACK)), None);
    }

    #[test]
    fn tcp_ends_by_reset_or_by_fin_of_both() {
        let fin = FIN | ACK;
        let closed = [(0, fin, false), (1, fin, true)];
        // The last acknowledgement after the close belongs to the closed flow.
        assert_eq!(end(&closed, (1, ACK)), None);
        assert_eq!(end(&closed, (1, SYN)), Some(FlowEnd::Finished));
        assert_eq!(end(&closed, (9, ACK)), Some(FlowEnd::Finished));
        assert_eq!(end(&[(0, RST, false)], (9, ACK)), Some(FlowEnd::Finished));
        // FIN from one side keeps the connection open. A retransmitted SYN opens no new connection.
        assert_eq!(end(&[(0, fin, false), (1, fin, false)], (40, ACK)), None);
        assert_eq!(end(&[(0, SYN, false)], (1, SYN)), None);
    }

    #[test]
    fn a_syn_with_another_number_ends_the_record() {
        let syn = |second: u64, sequence: u32| {
            let segment = Segment { is_there: true, sequence, ..Segment::default() };
            Seen { segment, ..tcp(second * S, SYN, false) }
        };
        let mut flow = Flow::begin(&syn(0, 7), BUCKET);
        flow.add(&syn(0, 7));
        for closes in [false, true] {
            if closes {
                flow.add(&tcp(0, RST | ACK, true));
            }
            assert_eq!(flow.ends_before(&syn(1, 7), &timeouts()), None, "{closes}");
            assert_eq!(flow.ends_before(&syn(1, 8), &timeouts()), Some(FlowEnd::Finished), "{closes}");
        }
    }

    #[test]
    fn the_source_is_who_sent_first_and_stays_so_when_cut() {
        let answer = tcp(0, SYN | ACK, true);
        let mut flow = Flow::begin(&answer, BUCKET);
        flow.add(&answer);
        flow.add(&tcp(S, ACK, false));
        assert!(flow.is_turned());
        let one = Traffic { packets: 1, bytes: 60, ip_bytes: 40 };
        assert_eq!((flow.traffic(), flow.tcp_flags()), ((one, one), (SYN | ACK, ACK)));

        let next = tcp(301 * S, ACK, false);
        let cut = flow.restart(&next, FlowEnd::Active);
        flow.add(&next);
        assert_eq!((cut.traffic(), cut.last), ((one, one), S));
        assert_eq!((flow.traffic(), flow.first), ((Traffic::default(), one), 301 * S));
        flow.restart(&next, FlowEnd::Idle);
        assert!(!flow.is_turned());
    }

    #[test]
    fn parts_of_a_flow_merge() {
        let (request, answer) = (tcp(S, SYN, false), tcp(2 * S, RST, true));
        let mut early = Flow::begin(&Seen { vlans: [5, NO_VLAN], ..request }, BUCKET);
        early.add(&request);
        let mut late = Flow::begin(&answer, BUCKET);
        late.add(&answer);
        let mut other_way = early;
        other_way.merge(&late);
        late.merge(&early);
        for flow in [late, other_way] {
            assert_eq!((flow.first, flow.last, flow.tcp_flags()), (S, 2 * S, (SYN, RST)));
            assert!(flow.is_closed() && flow.vlans() == [Some(5), None]);
        }
    }
}
