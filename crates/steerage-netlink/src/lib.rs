//! Asks the kernel about interfaces, addresses, routes and neighbours by netlink(7), and receives their changes.
//!
//! | file | content |
//! |---|---|
//! | `socket` | a netlink socket: requests with a bounded wait, dumps, errors in the kernel's words, changes |
//! | `rtnetlink` | [`Rtnetlink`]: links, XDP programs, statistics, and the tables of addresses, routes and neighbours |
//! | `changes` | [`Changes`]: links and tables that change |
//! | `entry` | what both of them return: [`Link`], [`Address`], [`Route`], [`Neighbour`] |
//! | `generic` | families of generic netlink, which have names |
//! | [`ethtool`] | the family of that name: a file for each kind of setting |
//! | [`netdev`] | the family of that name: what drivers support for XDP |
//! | `attributes` | the attributes of messages of generic netlink |
//!
//! A socket belongs to the network namespace in which it was opened. Requests that only read need no privilege. Opening a
//! socket is the only step that a sandbox must allow for: afterwards, requests `write`, and replies and changes come by
//! `recvfrom`.
//!
//! To add a setting of ethtool, such as its rings, write a file beside `ethtool/channels.rs`. It has the numbers of
//! linux/ethtool_netlink.h, the type with the values, and an `impl Ethtool` with the request.
#![forbid(unsafe_code)]

mod attributes;
mod changes;
mod entry;
pub mod ethtool;
mod generic;
pub mod netdev;
mod rtnetlink;
mod socket;

pub use changes::Changes;
pub use entry::{Address, Change, Entry, Link, Neighbour, NextHop, Route, XdpPlace, XdpProgram};
pub use netlink_packet_route::link::Stats64;
pub use netlink_packet_route::neighbour::NeighbourState;
pub use netlink_packet_route::route::RouteType;
pub use rtnetlink::Rtnetlink;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
