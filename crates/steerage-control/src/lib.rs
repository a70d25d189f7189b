//! The control tree of a running instance: attributes by path, as in the kernel's /sys and /proc, so that scripts and
//! exporters written for RPS work when they are pointed at it.
//!
//! | module | what |
//! |---|---|
//! | `tree` | the attributes, how they are read and written, and what is refused: [`Tree`] |
//! | `machine` | which CPUs there are for a mask: [`CpuView`] |
//! | `history` | what was changed: [`Event`] |
//! | `socket` | the tree over a Unix socket, one line of JSON each way: [`Listening`], [`Client`] |
//! | `mount` | the tree as files, by FUSE: [`Mounted`] |
//! | [`metrics`] | what Prometheus reads, served over HTTP |
//! | `places` | how the places for clients and open files are shared among users |
//! | `error` | errors as the kernel numbers them: [`AttributeError`] |
//! | `limits` | every limit, with its reason |
//!
//! Nothing here touches the data path but by a [`steerage::Handle`]: whoever reads and hangs, hangs alone.
#![forbid(unsafe_code)]

mod error;
mod history;
mod limits;
mod machine;
pub mod metrics;
mod mount;
mod places;
mod socket;
mod tree;

pub use error::{AttributeError, ErrorCode};
pub use history::Event;
pub use limits::*;
pub use machine::CpuView;
pub use mount::{MountError, Mounted, unmount};
pub use socket::{Client, ClientError, Listening, Serving, SocketError, find};
pub use tree::{Entry, NodeId, Options, Tree};
