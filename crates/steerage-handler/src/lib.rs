//! Parts that many packet functions need: state that moves with its bucket to another CPU
//! ([`table`]), messages from other threads ([`messages`]), and closures as packet functions
//! ([`each`](mod@each)). All modules of this crate use only the public interface of the receive
//! path (the crate steerage-core).
//!
//! Programs use this crate as `steerage::flow` and `steerage::messages`.
#![forbid(unsafe_code)]

pub mod each;
pub mod messages;
pub mod table;
