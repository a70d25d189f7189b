//! The control tree of a running instance. Attributes have paths as in the kernel's /sys and /proc,
//! so that scripts and exporters written for RPS also work with steerage.
//!
//! | module | what |
//! |---|---|
//! | [`instances`] | finds the running instances of this machine, and connects to them |
//! | `socket` | serves the tree over a Unix socket, with one line of JSON each way: [`Listening`], [`Client`] |
//! | `mount` | serves the tree as files, by FUSE: [`Mounted`] |
//! | `tree` | the attributes, how they are read and written, and which writes are refused: [`Tree`] |
//! | `history` | the changes that were made: [`Event`] |
//! | [`metrics`] | serves metrics to Prometheus over HTTP |
//! | [`web`] | serves the live page of a run over HTTP |
//! | `http` | the HTTP server of both: its clients, the names that it answers to, and its replies |
//! | `cpu_view` | the CPUs that a mask may name: [`CpuView`] |
//! | `clients` | the clients of a server, and which of them makes way for a new one |
//! | `quota` | shares the places for clients and open files among users and hosts |
//! | `audience` | who may see what: [`Audience`] |
//! | `error` | errors with the kernel's numbers: [`AttributeError`] |
//! | `limits` | every limit, with its reason |
//!
//! A module imports only modules that are below it in this table.
//!
//! This crate reaches the data path only through a [`steerage::Handle`], so that a hung client
//! blocks only itself.
#![forbid(unsafe_code)]

mod audience;
mod clients;
mod cpu_view;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod http;
pub mod instances;
mod limits;
pub mod metrics;
mod mount;
mod quota;
mod socket;
mod tree;
pub mod web;

pub use audience::Audience;
pub use cpu_view::CpuView;
pub use error::{AttributeError, ErrorCode};
pub use history::Event;
pub use limits::*;
pub use mount::{MountError, Mounted, ServedFiles};
pub use socket::{Client, ClientError, Listening, PacketSender, Serving, SocketError, find};
pub use tree::{Entry, NodeId, Options, Tree, directory_names};
