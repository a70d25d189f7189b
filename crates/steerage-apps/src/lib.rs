//! Handlers, which process packets after steering.
//!
//! Each handler is in one file and uses only the public interface of [`steerage`], so that it also
//! serves as an example.
//!
//! | function | what it does |
//! |---|---|
//! | [`Analyze`] | analyzes how traffic would spread over CPUs, and what prevents that |
//! | [`Count`] | counts packets and bytes |
//! | [`Fanout`] | sends each flow to one of several outputs |
//! | [`parallel::Split`] | splits traffic among programs that run side by side |
#![forbid(unsafe_code)]

mod analysis;
mod count;
mod fanout;
pub mod parallel;

pub use analysis::{ANALYSIS_FLOWS_MAX, Analysis, Analyze, AnalyzedFlow, PacketDetail, Volume};
pub use count::{Count, Counted};
pub use fanout::Fanout;
