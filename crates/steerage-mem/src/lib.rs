//! The memory of steerage's receive path: everything on it that needs `unsafe`, behind an interface that safe code
//! cannot misuse.
//!
//! In the order in which a packet meets them:
//!
//! | module | what it holds |
//! |---|---|
//! | [`region`], `mapping` | page memory from the kernel, and the process-wide numbers by which pages are told apart |
//! | [`parts`] | a region's parts, each on a NUMA node of its own |
//! | `lives` | in debug and fuzz builds, what notices that a page is used after its release |
//! | [`page`] | [`Page`], the right to write one page, and [`Completion`], a filled one: tokens that cannot be forged |
//! | [`chain`] | frames that lie in several pages |
//! | [`blocks`] | memory that holds many frames at once and is lent out read-only, and the claim to it |
//! | [`posted`] | pages that a device's own ring has, and what turns its addresses into tokens again |
//! | [`in_flight`] | pages that a device sends from, and what gives them back to their senders |
//! | [`memory`] | how a completion is turned into the bytes it stands for |
//! | [`hash`] | flow hashes, a batch at a time |
//! | [`ring`] | the slot ring between two CPUs, with its finished index |
//! | [`park`] | who sleeps, and how they are woken without a wake-up being lost |
//! | [`gate`] | what a handler did counts, or its CPU was declared dead |
//! | [`home`] | the way back for pages that a worker keeps |
//! | [`huge`] | room for tables that are looked up at random |
//!
//! # What makes it sound
//!
//! Only the holder of a page's token may write the page's bytes, and only the holder of the [`Claim`] to [blocks] may write theirs. Tokens ([`Page`], [`Completion`], a slot between two ring positions, [`Kept`]) and claims are neither `Clone` nor constructible outside this crate, page numbers are
//! never used twice in a process, and every access checks number, offset and length against the region it reads. Safe
//! code can therefore leak a page (its memory then stays unused until the region ends) but can neither reach a page it
//! does not hold nor one that was unmapped.

pub mod blocks;
pub mod chain;
pub mod gate;
pub mod hash;
pub mod header;
pub mod home;
pub mod huge;
pub mod in_flight;
mod lives;
mod mapping;
pub mod memory;
pub mod page;
pub mod park;
pub mod parts;
pub mod posted;
pub mod region;
pub mod ring;
mod stack;
mod sync;

pub use blocks::{Blocks, Claim, Homecoming, Spot, Tail};
pub use chain::{SEGMENTS_MAX, Segments};
pub use header::FrameHeader;
pub use home::{Home, Kept};
pub use huge::HugeVec;
pub use in_flight::{InFlight, Reaper};
pub use memory::Memory;
pub use page::{Completion, FRAME_BYTES_MAX, Page};
pub use parts::{Part, part_ends};
pub use posted::Posted;
pub use region::{Backing, Region, RegionError};
