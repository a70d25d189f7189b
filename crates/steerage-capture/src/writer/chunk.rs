//! The chunks of the buffer, and what the writer must know of the packets in them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use steerage::device::{TxAccount, TxSource};

use crate::encode::StreamFormat;

/// The number of bytes of a write, large enough that the cost of a system call per packet is
/// negligible.
pub(super) const WRITE_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(super) account: OnceLock<TxAccount>,
    /// The number of the CPU's bytes in the buffer. `Relaxed` is sufficient: only this CPU
    /// increases `held`, so the CPU never reads too small a value, and no other memory depends on
    /// `held`.
    pub(super) held: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct Sent {
    pub(super) lane: Arc<Lane>,
    pub(super) source: TxSource,
    pub(super) packets: u64,
    /// The captured bytes, without the bytes that the file format adds.
    pub(super) bytes: u64,
    /// The position in the chunk after the batch. `len` is the batch's length in the chunk.
    pub(super) end: usize,
    pub(super) len: usize,
}

#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// The time for the file's name, if a new file begins with this chunk.
    pub(super) begins: Option<u64>,
    pub(super) bytes: Vec<u8>,
    pub(super) sent: Vec<Sent>,
    /// The positions in the chunk after each header of the file or of an interface. Headers are in
    /// no batch.
    pub(super) heads: Vec<usize>,
}

impl Lane {
    pub(crate) fn set_account(&self, account: TxAccount) {
        let _ = self.account.set(account);
    }
}

impl Chunk {
    pub(super) fn let_go(&self) {
        for sent in &self.sent {
            sent.lane.held.fetch_sub(sent.len, Ordering::Relaxed);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.sent.first().and_then(|sent| sent.lane.account.get()).is_some_and(TxAccount::is_over)
    }

    /// Returns the end of the last packet or header that is complete within the first `at` bytes.
    pub(super) fn whole(&self, at: usize, format: StreamFormat) -> usize {
        let head = self.heads.iter().copied().filter(|end| *end <= at).max().unwrap_or(0);
        let of_batch = |sent: &Sent| sent.start() + format.whole(&self.bytes[sent.start()..at.min(sent.end)]).len;
        self.sent.iter().rfind(|sent| sent.start() <= at).map_or(0, of_batch).max(head)
    }

    /// Empties the chunk for reuse. Returns `None` if a long batch has made the chunk too large.
    pub(super) fn emptied(mut self) -> Option<Self> {
        self.begins = None;
        self.bytes.clear();
        self.sent.clear();
        self.heads.clear();
        (self.bytes.capacity() <= 2 * WRITE_BYTES).then_some(self)
    }
}

impl Sent {
    pub(super) fn start(&self) -> usize {
        self.end - self.len
    }

    pub(super) fn count_sent(&self, packets: u64, bytes: u64) {
        if let Some(account) = self.lane.account.get().filter(|_| packets > 0) {
            account.sent(self.source, packets, bytes);
        }
    }

    pub(super) fn count_lost(&self, packets: u64) {
        if let Some(account) = self.lane.account.get().filter(|_| packets > 0) {
            account.lost(self.source, packets);
        }
    }
}
