//! The memory of steerage's receive path, and all of its `unsafe` code, with a safe interface.
//!
//! The modules, in the order in which a packet uses them:
//!
//! | module | what it holds |
//! |---|---|
//! | [`region`], `mapping` | page memory from the kernel, in parts on their own NUMA nodes; page numbers that are unique in the process |
//! | [`page`] | [`Page`], the right to write one page, and [`Completion`], a filled one: tokens that cannot be forged |
//! | [`fit`] | the position of a frame in its page, and the room around it |
//! | [`chain`], `links` | frames that lie in several pages |
//! | [`gather`] | frames whose buffers arrive one by one |
//! | [`blocks`] | memory that holds many frames at once and is lent read-only, and the claim to it |
//! | [`header`] | the header that a device writes in front of a frame |
//! | [`posted`] | pages in a ring of the kernel's, whose addresses become tokens again |
//! | [`in_flight`] | pages that a device sends from, and their return to their senders |
//! | [`merged`] | several frames that a handler sees as one packet |
//! | [`memory`] | finds the bytes of a completion |
//! | [`ring`] | the slot ring between two CPUs, with its finished index |
//! | [`admission`] | how many frames of all queues wait for a CPU |
//! | [`outbox`], [`inbox`], [`bits`] | one queue's rings to all CPUs; which of many rings have frames |
//! | [`signal`] | events that threads outside of the path can wait for |
//! | [`park`] | sleeping and waking without losing a wake-up |
//! | [`control_lock`] | the lock that packet CPUs only try |
//! | [`round`] | debug builds: marks the rounds of packet CPUs, to check what must not happen there |
//! | [`gate`] | decides whether a batch counts or its CPU was declared dead |
//! | [`kept`], `stack` | pages that a handler keeps, and their return |
//! | [`stays`] | the packets of a batch, which do not leave their thread unless they are kept |
//! | `shared_pool` | the pages that no queue has, by NUMA node, in a lock-free stack |
//! | [`supply`] | the packet memory of an instance: how much it needs, what is reduced if that is too much, and how it grows |
//! | [`huge`] | memory for tables with random access |
//!
//! # Why the interface is sound
//!
//! Code reaches the bytes of a page only through a token: [`Page`] (which allows writing),
//! [`Completion`], a slot between two positions of a ring, or [`Kept`]. Only the holder of the
//! [`Claim`] to [blocks] may write the blocks. Tokens and claims are not `Clone` and cannot be
//! created outside of this crate. A page number is used only once in the life of a process, so a
//! token of a region that no longer exists refers to no page. Every access checks the token's page
//! number, offset and length against the region. A token of another region gives an empty frame. If
//! safe code loses a token, for example by `mem::forget`, the page stays unused until the region is
//! unmapped.

pub mod admission;
pub mod bits;
pub mod blocks;
pub mod chain;
pub mod control_lock;
pub mod fit;
pub mod gate;
pub mod gather;
pub mod header;
pub mod huge;
pub mod in_flight;
pub mod inbox;
pub mod kept;
mod links;
mod mapping;
pub mod memory;
pub mod merged;
pub mod no_room;
#[cfg(not(loom))] // The lane casts a list of completions to cells, which loom makes larger.
pub mod outbox;
pub mod outlet;
pub mod page;
pub mod park;
pub mod posted;
pub mod region;
pub mod ring;
mod ring_table;
pub mod round;
mod shared_pool;
pub mod signal;
mod stack;
pub mod stays;
pub mod supply;
mod sync;

pub use admission::Admission;
pub use bits::Bits;
pub use blocks::{Blocks, Claim, FileWindows, Homecoming, LeaseRequest, LeasedFile, Shown, Spot, Tail};
pub use chain::{Behind, SEGMENTS_MAX, Segments, SegmentsMut};
pub use fit::Fit;
pub use gather::Gather;
pub use header::FrameHeader;
pub use huge::HugeVec;
pub use in_flight::{InFlight, Reaper};
pub use inbox::{Inbox, Turns};
pub use kept::{Kept, KeptPages};
pub use mapping::{Backing, RegionError, move_over};
pub use memory::Memory;
pub use no_room::NoRoom;
#[cfg(not(loom))]
pub use outbox::Outbox;
pub use page::{Completion, FRAME_BYTES_MAX, Page, RecordForm};
pub use posted::Posted;
pub use region::{Part, Region, part_ends};
pub use ring_table::{RingTable, RingsInUse};
pub use shared_pool::{STACKS, SharedPool, Spare};
pub use stays::Stays;
pub use supply::Supply;
