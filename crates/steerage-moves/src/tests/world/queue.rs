use crate::CpuIndex;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Cpu(CpuIndex),
    Lot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fate {
    ToCome,
    InFlight,
    Delivered,
    Dropped,
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Ring {
    pub(super) waiting: Vec<usize>,
    pub(super) sent: usize,
    pub(super) taken: usize,
    pub(super) finished: usize,
    pub(super) revoked_until: usize,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Queue {
    pub(super) table: Vec<Target>,
    pub(super) group: u16,
    pub(super) rings: Vec<Ring>,
    pub(super) lot: Vec<usize>,
    pub(super) lot_is_shut: bool,
    pub(super) parked: Option<u64>,
    pub(super) fences: Vec<(CpuIndex, usize)>,
    pub(super) fates: Vec<Fate>,
    /// For each bucket, the number of the bucket's last delivered packet plus one.
    pub(super) last: Vec<usize>,
    pub(super) is_closed: bool,
}

impl Queue {
    pub(super) fn has_ended(&self) -> bool {
        !self.fates.contains(&Fate::ToCome)
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.parked.is_none() && self.lot.is_empty() && self.rings.iter().all(|ring| ring.sent == ring.finished)
    }

    pub(super) fn send(&mut self, cpu: CpuIndex, packet: usize) {
        let ring = &mut self.rings[usize::from(cpu)];
        ring.sent += 1;
        ring.waiting.push(packet);
    }

    pub(super) fn end(&mut self, packet: usize, fate: Fate) {
        assert_eq!(self.fates[packet], Fate::InFlight, "packet {packet} is counted twice");
        self.fates[packet] = fate;
    }

    pub(super) fn park(&mut self, epoch: u64, buckets: impl Iterator<Item = (u16, CpuIndex)>) {
        if self.parked == Some(epoch) {
            return;
        }
        self.fences.clear();
        for (bucket, from) in buckets {
            self.table[usize::from(bucket)] = Target::Lot;
            if !self.fences.iter().any(|(cpu, _)| *cpu == from) {
                self.fences.push((from, self.rings[usize::from(from)].sent));
            }
        }
        self.parked = Some(epoch);
    }

    pub(super) fn fences_passed(&mut self, is_dead: impl Fn(CpuIndex) -> bool) -> bool {
        let mut passed = true;
        for (cpu, tail) in &self.fences {
            let ring = &mut self.rings[usize::from(*cpu)];
            if is_dead(*cpu) {
                ring.revoke(*tail);
            } else {
                passed &= ring.passed(*tail);
            }
        }
        passed
    }
}

impl Ring {
    pub(super) fn passed(&self, tail: usize) -> bool {
        self.finished >= tail
    }

    pub(super) fn revoke(&mut self, tail: usize) {
        self.revoked_until = self.revoked_until.max(tail);
    }
}
