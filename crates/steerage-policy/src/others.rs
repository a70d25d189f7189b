//! Estimates the share of each CPU's time that other programs would use without steerage.
//!
//! The kernel reports the CPU time that other programs took. On a CPU with idle time, other
//! programs get all that they want. On a CPU for which steerage competes, a fair scheduler gives
//! other programs half, and they may want more. For example, the sender at the other end of a veth
//! may want more than half: if steerage took half of the sender's CPU, it would slow down the
//! source of its own packets.

use std::time::Duration;

use steerage_flow::Timestamp;
use steerage_ledger::Ledgers;

use crate::limits::Tuning;

const TUNING: Tuning = Tuning::DEFAULT;

#[derive(Debug, Default)]
pub(crate) struct OthersWant {
    /// For each CPU, the last measured share of other programs.
    others: Vec<f64>,
    since: Timestamp,
    busy: Vec<u64>,
    want: Vec<f64>,
}

impl OthersWant {
    pub(crate) fn of(&self, cpu: usize) -> f64 {
        self.want.get(cpu).copied().unwrap_or(0.0)
    }

    pub(crate) fn note(&mut self, now: Timestamp, others: &[f64], ledgers: &Ledgers) {
        if self.others != others {
            let busy = ledgers.cpus.iter().map(|cpu| cpu.busy_nanos.get()).collect();
            self.take_in(now.since(self.since), others, busy);
            self.since = now;
        }
    }

    fn take_in(&mut self, elapsed: Duration, others: &[f64], busy: Vec<u64>) {
        let before = std::mem::replace(&mut self.busy, busy);
        self.others = others.to_vec();
        self.want.resize(others.len(), 0.0);
        for (cpu, (want, others)) in self.want.iter_mut().zip(others).enumerate() {
            let ours = self.busy[cpu].saturating_sub(before.get(cpu).copied().unwrap_or(0));
            let ours = ours as f64 / elapsed.as_nanos().max(1) as f64;
            // Programs that use less than half of the CPU, or leave idle time, get what they want.
            let compete = *others >= TUNING.fill / 2.0 && ours + others >= TUNING.fill;
            *want = if compete { want.max(*others) } else { *others };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_competes_may_want_more_than_the_half_that_they_get() {
        let mut want = OthersWant::default();
        let mut busy = 0;
        let mut after = |others: f64, ours: f64| {
            busy += (250e6 * ours) as u64;
            want.take_in(Duration::from_millis(250), &[others], vec![busy]);
            want.of(0)
        };
        // Other programs use the whole CPU, and still want the whole CPU after steerage has taken
        // half.
        assert_eq!([after(0.95, 0.0), after(0.5, 0.5), after(0.5, 0.9)], [0.95; 3]);
        assert_eq!([after(0.5, 0.2), after(0.5, 0.5), after(0.3, 0.7)], [0.5, 0.5, 0.3]);
    }
}
