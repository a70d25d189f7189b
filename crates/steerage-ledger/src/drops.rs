use std::{array, fmt};

use crate::counter::Counter;
use crate::reasons::DropReason;

/// Lost packets by reason. Reasons with no lost packets are not printed.
///
/// ```
/// use steerage_ledger::{DropReason, Drops};
///
/// let mut drops = Drops::default();
/// assert_eq!(drops.to_string(), "none");
/// drops.add(DropReason::NoPage, 1);
/// drops.add(DropReason::BacklogFull, 3);
/// assert_eq!(drops.to_string(), "1 no_page, 3 backlog_full");
/// assert_eq!(format!("{drops:?}"), "Drops { no_page: 1, backlog_full: 3 }");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts, by reason, the `count` packets that an output did not send. The four numbers in
    /// `reported` count packets that were too long, had another link type, were truncated, or were
    /// refused. The rest of the `count` packets is counted as [`DropReason::TxFull`].
    pub fn unsent(mut count: u64, reported: [u64; 4]) -> Self {
        use DropReason::{TxCut, TxLinkType, TxRefused, TxTooLong};
        let mut drops = Self::default();
        for (reason, packets) in [TxTooLong, TxLinkType, TxCut, TxRefused].into_iter().zip(reported) {
            let packets = packets.min(count);
            drops.add(reason, packets);
            count -= packets;
        }
        drops.add(DropReason::TxFull, count);
        drops
    }

    /// Returns the number of packets that were lost for `reason`.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Adds `packets` packets that were lost for `reason`.
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Returns the total number of lost packets.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Iterates over the reasons with lost packets, and their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().map(|reason| (reason, self.get(reason))).filter(|(_, packets)| *packets > 0)
    }
}

impl fmt::Debug for Drops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Drops");
        self.iter().for_each(|(reason, packets)| {
            debug.field(reason.name(), &packets);
        });
        debug.finish()
    }
}

/// Prints one line, such as `3 backlog_full, 1 tx_full`, in the order of the stages through which a
/// packet passes, or `none`.
impl fmt::Display for Drops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("none");
        }
        for (i, (reason, packets)) in self.iter().enumerate() {
            write!(f, "{}{packets} {reason}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// Counters of lost packets by reason, with one writer.
pub struct DropCounters([Counter; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self(array::from_fn(|_| Counter::default()))
    }
}

impl DropCounters {
    /// Adds `packets` packets that were lost for `reason`.
    pub fn add(&self, reason: DropReason, packets: u64) {
        self.0[reason as usize].add(packets);
    }

    /// Returns the counts.
    pub fn read(&self) -> Drops {
        Drops(array::from_fn(|i| self.0[i].get()))
    }
}

impl fmt::Debug for DropCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_output_did_not_send_adds_up() {
        assert_eq!(
            Drops::unsent(10, [1, 2, 3, 1]).to_string(),
            "3 tx_full, 1 tx_too_long, 2 tx_link_type, 3 tx_cut, 1 tx_refused"
        );
        assert_eq!(Drops::unsent(4, [1, 9, 9, 9]).to_string(), "1 tx_too_long, 3 tx_link_type");
    }

    #[test]
    fn only_reasons_that_occurred_are_printed() {
        let counters = DropCounters::default();
        assert_eq!((format!("{counters:?}"), counters.read().to_string()), ("Drops".to_owned(), "none".to_owned()));
        counters.add(DropReason::BacklogFull, 3);
        let one = counters.read();
        assert_eq!(
            (format!("{counters:?}"), one.to_string().as_str()),
            ("Drops { backlog_full: 3 }".to_owned(), "3 backlog_full")
        );
        counters.add(DropReason::TxLost, 2);
        counters.add(DropReason::Device, u64::MAX);
        let all = counters.read().to_string();
        assert_eq!(all, "18446744073709551615 device, 3 backlog_full, 2 tx_lost");
    }
}
