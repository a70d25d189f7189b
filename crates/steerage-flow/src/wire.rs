//! Wire formats: assigned numbers, layouts of headers, the Internet checksum, and a builder of
//! frames.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ethertype`], [`protocol`], [`port`], [`gre`], [`ppp`], [`next_protocol`] | assigned numbers, one module for each registry |
//! | [`ethernet`], [`vlan`], [`ipv4`], [`ipv6`], [`tcp`], [`udp`], [`icmp`], [`icmp6`] | lengths, offsets, flags and types of headers |
//! | [`be16`], [`be32`], [`be64`], [`be128`], [`put`] | read and write numbers in network byte order |
//! | [`checksum`] | the Internet checksum, and its update when a word changes |
//! | [`IpHeader`], [`FrameBuilder`] | write an IP header, and build whole frames: for tests, generated traffic and experiments |
//!
//! ```
//! use steerage_flow::wire::{FrameBuilder, be16, ethernet, ethertype, ipv4, protocol};
//!
//! let frame = FrameBuilder::udp(([10, 0, 0, 1], 4000), ([10, 0, 0, 2], 53)).frame(b"query");
//! assert_eq!(be16(&frame, ethernet::TYPE_AT), ethertype::IPV4);
//! assert_eq!(frame[ethernet::BYTES + ipv4::PROTOCOL_AT], protocol::UDP);
//! ```

mod bytes;
pub mod checksum;
mod frame;
mod numbers;

pub use bytes::{be16, be32, be64, be128, put};
pub use frame::{FrameBuilder, IpHeader};
pub use numbers::{
    ethernet, ethertype, gre, icmp, icmp6, ipv4, ipv6, next_protocol, port, ppp, protocol, sctp, tcp, udp, vlan,
};
