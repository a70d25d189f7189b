//! Packet functions: what can be done with packets once they are on their CPU.
//!
//! One file each, on the public interface of [`steerage`] alone, so each is also an example of how to write one.
//!
//! | function | what it does |
//! |---|---|
//! | [`Analyze`] | analyzes how traffic would spread over CPUs, and what prevents that |
//! | [`Count`] | counts packets and bytes |
//! | [`Fanout`] | sends each flow to one of several outputs |
//! | [`forward::Forward`] | forwards IPv4 and IPv6, as a router does |
//! | [`meter::Meter`] | meters flows, and writes them |
//! | [`parallel::Split`] | splits traffic among programs that run side by side |
//! | `respond::Respond` | answers ping, echo and requests; with the feature `respond`, for which Rust 1.91 is wanted |
#![forbid(unsafe_code)]

mod addresses;
mod analysis;
mod checksum;
mod count;
mod fanout;
pub mod forward;
pub mod meter;
pub mod parallel;
#[cfg(feature = "respond")]
pub mod respond;

pub use analysis::{ANALYSIS_FLOWS_MAX, Analysis, Analyze, AnalyzedFlow, PacketDetail, Volume};
pub use count::{Count, Counted};
pub use fanout::Fanout;
