//! Tests that compare packet functions with tshark.

mod meter_captures;
mod tcp_health;
