//! What is on the wire: assigned numbers, the layout of headers, the Internet checksum, and frames to order.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ethertype`], [`protocol`], [`port`], [`gre`], [`ppp`] | assigned numbers, one module for each registry |
//! | [`ethernet`], [`vlan`], [`ipv4`], [`ipv6`], [`tcp`], [`udp`], [`icmp`], [`icmp6`] | lengths, offsets, flags and types of headers |
//! | [`checksum`] | the Internet checksum, and its update when a word changes |
//! | [`IpHeader`], [`FrameBuilder`] | write an IP header, and build whole frames: for tests, generated traffic and experiments |
//!
//! ```
//! use steerage_flow::wire::{ethernet, ethertype, ipv4, protocol};
//!
//! let frame = [0x02; ethernet::BYTES + ipv4::BYTES];
//! let may_be_tcp = frame[ethernet::TYPE_AT..].starts_with(&ethertype::IPV4.to_be_bytes())
//!     && frame[ethernet::BYTES + ipv4::PROTOCOL_AT] == protocol::TCP;
//! assert!(!may_be_tcp);
//! ```

pub mod checksum;
mod frame;
mod numbers;

pub use frame::{FrameBuilder, IpHeader};
pub use numbers::{ethernet, ethertype, gre, icmp, icmp6, ipv4, ipv6, port, ppp, protocol, sctp, tcp, udp, vlan};
