//! Tests that compare packet functions with tshark, and tests with the kernel as their peer.

mod meter_captures;
#[cfg(feature = "respond")]
mod respond;
mod tcp_health;
