//! Packet handlers. Each handler is one file and uses only the public interface of [`steerage`], so
//! you can read it as an example.
//!
//! | function | what it does |
//! |---|---|
//! | [`Count`] | counts packets and bytes |
//! | [`Fanout`] | sends each flow to one of several outputs |
//! | [`parallel::Split`] | splits traffic among programs that run side by side |
#![forbid(unsafe_code)]

mod count;
mod fanout;
pub mod parallel;

pub use count::{Count, Counted};
pub use fanout::Fanout;
