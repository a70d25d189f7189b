use std::fmt;
use std::sync::Arc;

use crate::counts::TxLedger;
use crate::deferred::{Deferred, Settled, TxSource};
use crate::reasons::DropReason;

/// Counts packets that an output accepted first and finished (sent or lost) later. Any thread may
/// count.
///
/// ```
/// use std::sync::Arc;
///
/// use steerage_ledger::counts::TxLedger;
/// use steerage_ledger::{TxAccount, TxSource};
///
/// // The path makes the account for an output that defers, in an instance of two receive queues.
/// let ledger = Arc::new(TxLedger::deferring(2));
/// let account = TxAccount::new(&ledger);
///
/// // Three packets of receive queue 0 with 180 bytes were sent, and one was lost.
/// account.sent(TxSource::queue(0), 3, 180);
/// account.lost(TxSource::queue(0), 1);
/// ```
#[derive(Clone, Debug)]
pub struct TxAccount(Arc<TxLedger>);

impl TxAccount {
    /// Creates the account of the output to which `ledger` belongs.
    pub fn new(ledger: &Arc<TxLedger>) -> Self {
        Self(Arc::clone(ledger))
    }

    fn deferred(&self) -> Option<&Deferred> {
        self.0.deferred.as_ref()
    }

    /// Counts `packets` packets with `bytes` bytes, link headers included, as sent.
    pub fn sent(&self, source: TxSource, packets: u64, bytes: u64) {
        self.settle(source, |settled| {
            settled.packets += packets;
            settled.bytes += bytes;
        });
    }

    /// Counts packets as [`DropReason::TxLost`]: the output failed, or the run ended too early.
    pub fn lost(&self, source: TxSource, packets: u64) {
        self.settle(source, |settled| settled.dropped.add(DropReason::TxLost, packets));
    }

    fn settle(&self, source: TxSource, count: impl FnOnce(&mut Settled)) {
        if let Some(deferred) = self.deferred() {
            deferred.settle(source, count);
        }
    }

    /// Records that the output failed. Reports show the error.
    pub fn failed(&self, error: &impl fmt::Display) {
        self.0.failed(error);
    }

    /// Returns true if the output should count packets as lost that it cannot send immediately.
    pub fn is_over(&self) -> bool {
        self.deferred().is_some_and(|deferred| deferred.is_over())
    }
}
