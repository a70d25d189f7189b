//! Records as IPFIX: RFC 7011, with both directions of a flow in one record (RFC 5103).
//!
//! | module | what it does |
//! |---|---|
//! | `elements` | the information elements, by their numbers |
//! | `shape` | which elements a record has, and so by which template it is read |
//! | `message` | messages of templates and records, with their sequence numbers |
//! | `collector` | the address of a collector, and what the command line may say about it |
//! | `transport` | UDP and TCP |
//! | `export` | the thread that sends records to a collector |

mod collector;
mod elements;
mod export;
mod message;
mod shape;
mod transport;

pub use collector::{Collector, ParseCollectorError};
pub use export::OpenCollector;

pub(super) use export::Export;
pub(super) use message::{Encoder, Statistics};
