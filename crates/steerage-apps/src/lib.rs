//! Packet functions: what a handler can do with packets after steering.
//!
//! Each function is in one file and uses only the public interface of [`steerage`], so each is also
//! an example of a handler.
//!
//! | function | what it does |
//! |---|---|
//! | [`Analyze`] | analyzes how traffic would spread over CPUs, and what prevents that |
//! | [`Count`] | counts packets and bytes |
//! | [`Fanout`] | sends each flow to one of several outputs |
//! | [`forward::Forward`] | forwards IPv4 and IPv6, as a router does |
//! | [`parallel::Split`] | splits traffic among programs that run side by side |
#![forbid(unsafe_code)]

#[doc(hidden)] // for the host of lab/
pub mod addresses;
mod analysis;
#[doc(hidden)] // for the host of lab/
pub mod checksum;
mod count;
mod fanout;
pub mod forward;
pub mod parallel;

pub use analysis::{ANALYSIS_FLOWS_MAX, Analysis, Analyze, AnalyzedFlow, PacketDetail, Volume};
pub use count::{Count, Counted};
pub use fanout::Fanout;
