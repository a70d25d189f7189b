//! The ledger of steerage: received = delivered + dropped by reason + in flight, for each queue and in total.
//!
//! Every count has one writer. The receiving CPU counts the packets that it receives and those that it drops. The handling CPU
//! counts, for each ring, the packets that it delivers and those that it drops. In flight is the difference. A snapshot reads
//! delivered and dropped before received, so the difference is never negative. At rest it equals the number of packets in the rings
//! and parking lots.
//!
//! The receive path writes the counts. Policies, reports and metrics read them and need nothing else of the path, so the ledger is
//! a crate below it. The modules import downwards only:
//!
//! | module | what it holds |
//! |---|---|
//! | `read` | reads the ledgers of an instance at one time |
//! | `snapshot` | the ledger in plain numbers |
//! | `findings` | the costs and regimes that policies found, and how each group is steered |
//! | `records` | the ledgers of an instance: those of its queues, outputs and CPUs |
//! | [`counts`] | the counts of each queue, ring, output and CPU |
//! | `tx_account`, `deferred` | packets that an output has taken and not sent yet |
//! | `order_check` | whether packets complete in the order of their arrival |
//! | `drops`, `reasons` | lost packets by reason |
//! | [`limits`] | how long the end of a run waits |
//! | `serial` | the forms of values in reports (feature `serde`) |
//! | `backing` | the kind of pages that packet memory lies in |
//! | `device_name`, `device_error`, `device_counts`, `counter` | the name of a device; its errors; what it counts itself; a count with one writer |
#![forbid(unsafe_code)]

mod backing;
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
mod order_check;
mod read;
mod reasons;
#[allow(missing_docs, reason = "as the counts")]
mod records;
#[cfg(feature = "serde")]
mod serial;
mod snapshot;
mod tx_account;

pub use backing::Backing;
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
pub use memory::MemoryUse;
pub use order_check::OrderCheck;
pub use read::Facts;
pub use reasons::DropReason;
pub use records::{Ledgers, OutputInfo, QueueInfo};
pub use snapshot::{
    BucketSnapshot, CpuSnapshot, OutputSnapshot, PoolSnapshot, QueueSnapshot, Snapshot, Totals, Verdicts,
};
pub use steerage_moves::{MoveCause, MoveCounts};
pub use tx_account::TxAccount;
