//! Packet functions: what can be done with packets once they are on their CPU.
//!
//! One file each, on the public interface of [`steerage`] alone, so each is also an example of how to write one.
//!
//! | function | what it does |
//! |---|---|
//! | [`Count`] | counts packets and bytes |
#![forbid(unsafe_code)]

mod count;

pub use count::{Count, Counted};
