//! Tests that compare the meter with tshark.

mod meter_captures;
mod tcp_health;
