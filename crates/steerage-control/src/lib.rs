//! The control tree of a running instance. Attributes have the paths of the kernel's files in /sys
//! and /proc, so scripts and exporters for RPS also work with steerage.
//!
//! | module | feature | what |
//! |---|---|---|
//! | [`instances`] | `socket` | finds the running instances of this machine, and connects to them |
//! | `socket` | `socket` | serves the tree over a Unix socket, with one line of JSON each way: [`Listening`], [`Client`] |
//! | `mount` | `mount` | serves the tree as files, by FUSE: [`Mounted`] |
//! | `tree` | | the attributes, how they are read and written, and which writes are refused: [`Tree`] |
//! | `history` | | the changes that were made: [`Event`] |
//! | [`metrics`] | `metrics` | metrics for Prometheus, as text and over HTTP |
//! | [`web`] | `web` | serves the live page of a run over HTTP |
//! | `report` | `socket`, `web` | the report that `steerage top` and the live page read: [`reports`] |
//! | `http` | `metrics`, `web` | the HTTP server of both: its clients, the names that it answers to, and its replies |
//! | `cpu_view` | | the CPUs that a mask may name: [`CpuView`] |
//! | `clients` | | the clients of a server, and which of them makes way for a new one |
//! | `quota` | | shares the places for clients and open files among users and hosts |
//! | `audience` | | who may see what: [`Audience`] |
//! | `error` | | errors with the kernel's numbers: [`AttributeError`] |
//! | `limits` | | every limit, with its reason |
//!
//! Each module imports only modules from later rows of this table. All features are on by default.
//!
//! The crate reaches the data path only through a [`steerage::Handle`], so a client that hangs
//! delays neither packets nor other clients.
#![forbid(unsafe_code)]

mod audience;
#[cfg(any(feature = "socket", feature = "http"))]
#[cfg_attr(not(all(feature = "socket", feature = "http")), allow(dead_code, reason = "each server uses its part"))]
mod clients;
mod cpu_view;
mod error;
#[cfg(any(feature = "socket", feature = "http"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg_attr(not(feature = "socket"), allow(dead_code, reason = "the socket uses the rest"))]
mod history;
#[cfg(feature = "http")]
#[cfg_attr(
    not(all(feature = "metrics", feature = "web")),
    allow(dead_code, unreachable_pub, reason = "each site uses its part")
)]
mod http;
#[cfg(feature = "socket")]
pub mod instances;
mod limits;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "mount")]
mod mount;
#[cfg(any(feature = "mount", feature = "socket", feature = "http"))]
#[cfg_attr(not(all(feature = "socket", feature = "http")), allow(dead_code, reason = "each server uses its part"))]
mod quota;
#[cfg(feature = "report")]
mod report;
#[cfg(feature = "socket")]
mod socket;
#[cfg_attr(not(feature = "mount"), allow(dead_code, reason = "the mount uses the rest"))]
mod tree;
#[cfg(feature = "web")]
pub mod web;

pub use audience::Audience;
pub use cpu_view::CpuView;
pub use error::{AttributeError, ErrorCode};
pub use history::Event;
pub use limits::*;
#[cfg(feature = "mount")]
pub use mount::{MountError, Mounted, ServedFiles};
#[cfg(feature = "report")]
pub use report::{REPORT_SCHEMA, reports};
#[cfg(feature = "socket")]
pub use socket::{Client, ClientError, Listening, PacketSender, Serving, SocketError, find};
pub use tree::{Entry, NodeId, Options, Tree, directory_names};

#[cfg(all(doctest, feature = "metrics", feature = "socket", feature = "web"))]
#[doc = include_str!("../../../docs/metrics.md")]
#[doc = include_str!("../../../docs/control.md")]
struct Guides;
