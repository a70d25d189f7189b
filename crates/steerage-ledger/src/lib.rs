//! The ledger: received = delivered + dropped by reason + in flight, per queue and in total.
//!
//! Every count has one writer. The receiving CPU counts the packets that it receives and drops. The
//! CPU that handles the packets of a ring counts the packets that it delivers and drops. The number
//! of packets in flight is computed from the counts of received, delivered and dropped packets. A
//! snapshot reads delivered and dropped packets before received packets, so that the number of
//! packets in flight is never negative. When no CPU runs, the packets in flight are in the rings
//! and parking lots.
//!
//! The receive path writes the counts. Policies, reports and metrics read the counts, and need
//! nothing else from the receive path. Each module imports only modules below it in this table:
//!
//! | module | what it holds |
//! |---|---|
//! | `read`, `notes` | reads all ledgers of an instance into one snapshot; what its numbers alone do not show |
//! | `snapshot` | the ledger in plain numbers |
//! | `findings` | the costs and regimes that policies found, and the steering of each group |
//! | `records` | the ledgers of all queues, outputs and CPUs of an instance |
//! | [`counts`] | the counts of each queue, ring, output and CPU |
//! | `named` | counters that packet functions declare and write |
//! | `tx_account`, `deferred` | packets that an output has taken and not sent yet |
//! | `order_check` | whether packets complete in the order of their arrival |
//! | `drops`, `reasons` | lost packets by reason |
//! | [`limits`] | the time limits at the end of a run, and when a snapshot has a note |
//! | `serial` | how reports format values (feature `serde`) |
//! | `device_name`, `device_error`, `device_counts`, `counter` | a device's name, errors and own counts; a count with one writer |
#![forbid(unsafe_code)]

mod counter;
#[allow(missing_docs, reason = "the counts have the names of the snapshots' fields, which are documented")]
pub mod counts;
mod deferred;
mod device_counts;
mod device_error;
mod device_name;
mod drops;
mod findings;
pub mod limits;
mod memory;
mod named;
mod notes;
mod order_check;
mod read;
mod reasons;
#[allow(missing_docs, reason = "as the counts")]
mod records;
#[cfg(feature = "serde")]
mod serial;
mod snapshot;
mod tx_account;

pub use counter::{Counter, SharedCounter};
pub use counts::{
    BucketLoads, ConsumerLedger, CpuLedger, PollCounts, PoolCounters, ProducerLedger, QueueError, QueueLedger,
    RingLedger, TimedBuckets, TxLedger,
};
pub use deferred::{Deferred, Settled, TxSource};
pub use device_counts::DeviceCounts;
pub use device_error::DeviceError;
pub use device_name::DeviceName;
pub use drops::{DropCounters, Drops};
pub use findings::{CostEstimate, Elephant, Findings, GroupSnapshot, RegimeEstimate};
pub use limits::{COUNTER_NAME_MAX, COUNTERS_MAX, HANDLER_SLOW};
pub use memory::MemoryUse;
pub use named::{CounterError, CounterSnapshot, Counters, CpuCounter, NamedCounter};
pub use order_check::OrderCheck;
pub use read::Facts;
pub use reasons::DropReason;
pub use records::{Ledgers, OutputInfo, QueueInfo};
pub use snapshot::{
    BucketSnapshot, CpuSnapshot, OutputSnapshot, PoolSnapshot, QueueSnapshot, Snapshot, Totals, Verdicts,
};
pub use steerage_mem::Backing;
pub use steerage_moves::{MoveCause, MoveCounts};
pub use tx_account::TxAccount;
