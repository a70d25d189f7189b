//! Queries the kernel about interfaces, addresses, routes and neighbours over netlink(7), and
//! receives messages about their changes.
//!
//! | file | content |
//! |---|---|
//! | `socket` | a netlink socket: requests with a bounded wait, dumps, the kernel's error texts, changes |
//! | `rtnetlink` | [`Rtnetlink`]: links, XDP programs, statistics, and the tables of addresses, routes and neighbours |
//! | `rule` | adds, deletes and lists rules of IPv6 routing: [`Rule`] |
//! | `changes` | [`Changes`]: receives changes of links and tables |
//! | `uevents` | [`Uevents`]: receives messages about queues and CPUs that appear and disappear |
//! | `entry` | the results of `rtnetlink` and `changes`: [`Link`], [`Address`], [`Route`], [`Neighbour`] |
//! | `generic` | the families of generic netlink, which have names |
//! | [`ethtool`] | the family `ethtool`: a file for each kind of setting |
//! | [`netdev`] | the family `netdev`: the XDP features that drivers support |
//! | `attributes` | the attributes of generic netlink messages |
//!
//! A socket belongs to the network namespace in which it was opened. Requests that only read need
//! no privilege. An open socket needs only the system calls `write` for requests, and `recvfrom`
//! for replies and changes.
//!
//! To support another setting of ethtool, write a file next to `ethtool/channels.rs`, with the
//! numbers from linux/ethtool_netlink.h, a type for the values, and an `impl Ethtool` with the
//! request.
#![forbid(unsafe_code)]

mod attributes;
mod changes;
mod entry;
pub mod ethtool;
mod generic;
pub mod netdev;
mod rtnetlink;
mod rule;
mod socket;
mod uevents;

pub use changes::Changes;
pub use entry::{Address, Change, Entry, Link, Neighbour, NextHop, Route, XdpPlace, XdpProgram};
pub use netlink_packet_route::link::Stats64;
pub use netlink_packet_route::neighbour::NeighbourState;
pub use netlink_packet_route::route::RouteType;
pub use rtnetlink::Rtnetlink;
pub use rule::{Rule, RuleTo};
pub use uevents::Uevents;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
