//! CICFlowMeter's flow statistics, with which many published machine-learning models were trained.
//!
//! `docs/python.md` defines each column. All sums are integers, so the order of addition does not
//! matter.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use steerage::flow::wire::tcp::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};
use steerage::{flow::Layers, packet::Received};

use super::flow::Seen;
use super::key::Key;
use super::names::{Hashed, Spread};
use super::read;

/// A pause that is longer than this time (ns) separates two active times, by CICFlowMeter's
/// default.
const IDLE_AFTER: u64 = 5_000_000_000;

/// A pause that is longer than this time (ns) ends a subflow and a bulk, as in CICFlowMeter.
const SUBFLOW_AFTER: u64 = 1_000_000_000;

const BULK_PACKETS: u64 = 4;

const FLAGS: [u16; 8] = [FIN, SYN, RST, PSH, ACK, URG, CWR, ECE];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stat {
    squares: u128,
    pub(super) count: u64,
    pub(super) sum: u64,
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Stat {
    pub(super) fn add(&mut self, value: u64) {
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.squares = self.squares.saturating_add(u128::from(value) * u128::from(value));
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        let min = match (self.count, other.count) {
            (0, _) => other.min,
            (_, 0) => self.min,
            _ => self.min.min(other.min),
        };
        Self {
            squares: self.squares.saturating_add(other.squares),
            count: self.count + other.count,
            sum: self.sum.saturating_add(other.sum),
            min,
            max: self.max.max(other.max),
        }
    }

    pub(super) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    pub(super) fn variance(&self) -> f64 {
        let (count, sum) = (u128::from(self.count), u128::from(self.sum));
        if count < 2 {
            return 0.0;
        }
        // Computed with integers, because the difference of two large floating-point numbers loses
        // digits.
        let exact = || count.checked_mul(self.squares)?.checked_sub(sum.checked_mul(sum)?);
        let squares = exact().map_or_else(
            || (count as f64 * self.squares as f64 - sum as f64 * sum as f64).max(0.0),
            |squares| squares as f64,
        );
        squares / (count as f64 * (count - 1) as f64)
    }

    pub(super) fn deviation(&self) -> f64 {
        self.variance().sqrt()
    }
}

/// Sums over the *bulks*: runs of consecutive data packets in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bulks {
    bulks: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    nanos: u64,
    /// The packets in the current run of data packets, which becomes a bulk if it has
    /// [`BULK_PACKETS`].
    run_packets: u64,
    run_bytes: u64,
    run_first: u64,
    run_last: u64,
}

impl Bulks {
    fn add(&mut self, bytes: u64, time: u64) {
        if self.run_packets > 0 && time.saturating_sub(self.run_last) > SUBFLOW_AFTER {
            self.end_run();
        }
        if self.run_packets == 0 {
            (self.run_first, self.run_last) = (time, time);
        }
        self.run_packets += 1;
        self.run_bytes += bytes;
        self.run_last = self.run_last.max(time);
    }

    fn end_run(&mut self) {
        if self.run_packets >= BULK_PACKETS {
            self.bulks += 1;
            self.packets += self.run_packets;
            self.bytes += self.run_bytes;
            self.nanos += self.run_last - self.run_first;
        }
        (self.run_packets, self.run_bytes) = (0, 0);
    }

    pub(super) fn ended(mut self) -> Self {
        self.end_run();
        self
    }

    pub(super) fn average(&self, of: u64) -> f64 {
        if self.bulks == 0 { 0.0 } else { of as f64 / self.bulks as f64 }
    }

    /// Returns the bytes per second, or `None` if the first and last packet of each bulk have the
    /// same time.
    pub(super) fn rate(&self) -> Option<f64> {
        if self.bulks == 0 { Some(0.0) } else { per_second(self.bytes, self.nanos) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Side {
    pub(super) payload: Stat,
    /// The nanoseconds between consecutive packets.
    pub(super) gaps: Stat,
    pub(super) last: u64,
    pub(super) header_bytes: u64,
    pub(super) with_data: u64,
    pub(super) psh: u64,
    pub(super) urg: u64,
    pub(super) bulks: Bulks,
    pub(super) header_min: u16,
    pub(super) window: Option<u16>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cic {
    pub(super) sides: [Side; 2],
    pub(super) gaps: Stat,
    pub(super) active: Stat,
    pub(super) idle: Stat,
    /// The time at which the flow's current active period began.
    pub(super) active_since: u64,
    pub(super) last: u64,
    /// The number of pauses after which a new subflow began.
    pub(super) pauses: u64,
    pub(super) flags: [u64; 8],
}

const _: () = assert!(size_of::<Cic>() <= 768, "the memory for each flow that docs/python.md states");

impl Cic {
    fn add(&mut self, seen: &Seen, header: u16, payload: u64) {
        let (side, time) = (usize::from(seen.flow.turned), seen.time);
        if self.sides[0].payload.count + self.sides[1].payload.count == 0 {
            (self.active_since, self.last) = (time, time);
        } else {
            let gap = time.saturating_sub(self.last);
            self.gaps.add(gap);
            self.pauses += u64::from(gap > SUBFLOW_AFTER);
            if gap > IDLE_AFTER {
                self.active.add(self.last - self.active_since);
                self.idle.add(gap);
                self.active_since = time;
            }
            self.last = self.last.max(time);
        }
        for (count, flag) in self.flags.iter_mut().zip(FLAGS) {
            *count += u64::from(seen.tcp_flags & flag != 0);
        }
        if payload > 0 {
            self.sides[1 - side].bulks.end_run();
            self.sides[side].bulks.add(payload, time);
        }
        let side = &mut self.sides[side];
        if side.payload.count > 0 {
            side.gaps.add(time.saturating_sub(side.last));
        }
        side.header_min = if side.payload.count == 0 { header } else { side.header_min.min(header) };
        side.last = side.last.max(time);
        side.payload.add(payload);
        side.header_bytes += u64::from(header);
        side.with_data += u64::from(payload > 0);
        side.psh += u64::from(seen.tcp_flags & PSH != 0);
        side.urg += u64::from(seen.tcp_flags & URG != 0);
        if seen.segment.is_there && side.window.is_none() {
            side.window = Some(seen.segment.window);
        }
    }

    /// `is_turned` is true if the second endpoint is the source of the flow, which lasted `nanos`.
    pub(super) fn view(&self, is_turned: bool, nanos: u64) -> CicView<'_> {
        let [one, other] = &self.sides;
        let sides = if is_turned { [other, one] } else { [one, other] };
        let mut active = self.active;
        active.add(self.last - self.active_since);
        CicView { whole: self, sides, payload: one.payload.plus(&other.payload), active, nanos }
    }

    /// The sum of two CPUs' statistics lacks the times between packets of different CPUs.
    fn merge(&mut self, other: &Self) {
        for (side, more) in self.sides.iter_mut().zip(&other.sides) {
            side.header_min = match (side.payload.count, more.payload.count) {
                (0, _) => more.header_min,
                (_, 0) => side.header_min,
                _ => side.header_min.min(more.header_min),
            };
            side.payload = side.payload.plus(&more.payload);
            side.gaps = side.gaps.plus(&more.gaps);
            side.last = side.last.max(more.last);
            side.header_bytes += more.header_bytes;
            side.with_data += more.with_data;
            side.psh += more.psh;
            side.urg += more.urg;
            side.window = side.window.or(more.window);
            let (one, two) = (side.bulks.ended(), more.bulks.ended());
            side.bulks = Bulks {
                bulks: one.bulks + two.bulks,
                packets: one.packets + two.packets,
                bytes: one.bytes + two.bytes,
                nanos: one.nanos + two.nanos,
                ..one
            };
        }
        self.gaps = self.gaps.plus(&other.gaps);
        self.active = self.active.plus(&other.active);
        self.active.add(other.last - other.active_since);
        self.idle = self.idle.plus(&other.idle);
        self.last = self.last.max(other.last);
        self.pauses += other.pauses;
        self.flags.iter_mut().zip(other.flags).for_each(|(count, more)| *count += more);
    }
}

/// The statistics of a flow whose record has ended, with the source before the destination.
pub(super) struct CicView<'a> {
    pub(super) whole: &'a Cic,
    pub(super) sides: [&'a Side; 2],
    pub(super) payload: Stat,
    pub(super) active: Stat,
    pub(super) nanos: u64,
}

impl CicView<'_> {
    pub(super) fn per_subflow(&self, count: u64) -> f64 {
        count as f64 / (self.whole.pauses + 1) as f64
    }

    pub(super) fn flag(&self, flag: u16) -> u64 {
        FLAGS.iter().zip(self.whole.flags).find(|(known, _)| **known == flag).map_or(0, |(_, count)| count)
    }
}

pub(super) fn per_second(count: u64, nanos: u64) -> Option<f64> {
    (nanos > 0).then(|| count as f64 * 1e9 / nanos as f64)
}

/// Without TCP, UDP or SCTP, all bytes after the IP headers are payload.
fn lengths(seen: &Seen, packet: &Received<'_>, layers: Layers) -> (u16, u64) {
    let found = read::dissect(packet.data, packet.link, layers);
    let Some(ip) = found.ip else { return (0, 0) };
    let end = ip.offset + seen.ip_bytes;
    let plain = if ip.version == 6 {
        40
    } else {
        packet.data.get(ip.offset as usize).map_or(20, |first| u32::from(first & 0xf) * 4)
    };
    let transport = found.transport_offset.unwrap_or(ip.offset + plain);
    let payload = found.payload_offset.filter(|_| !found.is_quoted).unwrap_or(transport);
    (payload.saturating_sub(transport) as u16, end.saturating_sub(payload).into())
}

#[derive(Debug, Default)]
pub(super) struct Features {
    is_on: bool,
    flows: HashMap<Hashed, Box<Cic>, BuildHasherDefault<Spread>>,
}

#[derive(Debug)]
pub(super) struct DepartedFeatures(Vec<(Hashed, Box<Cic>)>);

impl Features {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, ..Self::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn add(&mut self, seen: &Seen, packet: &Received<'_>, layers: Layers) {
        let (header, payload) = lengths(seen, packet, layers);
        self.flows.entry(Hashed::new(&seen.flow.key, seen.hash)).or_default().add(seen, header, payload);
    }

    pub(super) fn end(&mut self, key: &Key, hash: u32) -> Option<Box<Cic>> {
        self.flows.remove(&Hashed::new(key, hash))
    }

    pub(super) fn of_all(cpus: &[Self], key: &Key, hash: u32) -> Option<Box<Cic>> {
        let mut found = cpus.iter().filter_map(|features| features.flows.get(&Hashed::new(key, hash)));
        let mut first = found.next()?.clone();
        found.for_each(|more| first.merge(more));
        Some(first)
    }

    pub(super) fn depart<'a>(&mut self, flows: impl Iterator<Item = (&'a Key, u32)>) -> DepartedFeatures {
        if !self.is_on {
            return DepartedFeatures(Vec::new());
        }
        DepartedFeatures(flows.filter_map(|(key, hash)| self.flows.remove_entry(&Hashed::new(key, hash))).collect())
    }

    pub(super) fn arrive(&mut self, departed: DepartedFeatures) {
        for (flow, cic) in departed.0 {
            match self.flows.get_mut(&flow) {
                Some(here) => here.merge(&cic),
                None => drop(self.flows.insert(flow, cic)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(values: &[u64]) -> Stat {
        let mut stat = Stat::default();
        values.iter().for_each(|value| stat.add(*value));
        stat
    }

    #[test]
    fn deviations_are_those_of_samples() {
        let values = stat(&[2, 4, 4, 4, 5, 5, 7, 9]);
        assert_eq!((values.mean(), values.variance()), (5.0, 32.0 / 7.0));
        assert_eq!((stat(&[7]).variance(), stat(&[]).mean(), stat(&[]).min), (0.0, 0.0, 0));
        let day = 86_400_000_000_000;
        assert_eq!(stat(&[day, day + 2]).variance(), 2.0);
        assert_eq!(stat(&[2, 4, 4]).plus(&stat(&[4, 5, 5, 7, 9])), values);
    }

    #[test]
    fn bulks_have_four_packets_without_a_pause() {
        let second = 1_000_000_000;
        let ended = |times: &[u64]| {
            let mut bulks = Bulks::default();
            times.iter().for_each(|time| bulks.add(100, time * second / 10));
            let bulks = bulks.ended();
            (bulks.bulks, bulks.packets, bulks.bytes, bulks.nanos)
        };
        assert_eq!(ended(&[0, 1, 2]), (0, 0, 0, 0));
        assert_eq!(ended(&[0, 1, 2, 3]), (1, 4, 400, 3 * second / 10));
        assert_eq!(ended(&[0, 10, 20, 30]).0, 1);
        assert_eq!(ended(&[0, 11, 12, 13]).0, 0);
        assert_eq!(ended(&[0, 1, 2, 3, 4, 50, 51, 52, 53]), (2, 9, 900, 7 * second / 10));
    }
}
