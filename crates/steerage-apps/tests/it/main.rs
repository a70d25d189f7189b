//! Packet functions against tshark, and against the kernel as their peer.

mod meter_captures;
#[cfg(feature = "respond")]
mod respond;
mod tcp_health;
