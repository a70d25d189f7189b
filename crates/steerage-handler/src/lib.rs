//! Parts that many packet functions need: state that moves with its bucket, messages from other
//! threads, and closures as packet functions, on the public interface of steerage-core. Programs
//! use `steerage::flow` and `steerage::messages`.
#![forbid(unsafe_code)]

pub mod each;
pub mod messages;
pub mod table;
