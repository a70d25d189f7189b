//! Parts that many packet functions need, made from the public interface of the path: state that
//! moves with its bucket ([`table`]), and messages from other threads ([`messages`]).
//!
//! Programs use this crate as `steerage::flow` and `steerage::messages`.
#![forbid(unsafe_code)]

pub mod messages;
pub mod table;
