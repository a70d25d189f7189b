//! Writes records as IPFIX (RFC 7011). One record has both directions of a flow (RFC 5103).
//!
//! | module | what it does |
//! |---|---|
//! | `elements` | the information elements, by their numbers |
//! | `shape` | which elements and thus which template a record has |
//! | `message` | messages of templates and records, with sequence numbers |
//! | `collector` | the address of a collector, and its options |
//! | `transport` | UDP and TCP |
//! | `pace` | how fast records are sent |
//! | `export` | the thread that sends records to a collector |

mod collector;
mod elements;
mod export;
mod message;
mod pace;
mod shape;
mod transport;

pub use collector::{Collector, ParseCollectorError};
pub use export::OpenCollector;
pub use pace::ExportRate;

pub(super) use export::Export;
pub(super) use message::{Encoder, Statistics};
