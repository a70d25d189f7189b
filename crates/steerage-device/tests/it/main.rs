//! Tests the devices together with the rest of the packet path, and tests the examples.

mod af_packet;
mod af_packet_held;
mod af_xdp;
mod af_xdp_send;
mod attacker;
mod chained;
mod common;
mod examples;
mod hashes;
mod limit;
mod offloads;
mod offloads_stopped;
mod privileges;
mod refusals;
mod synthetic;
mod tap;
mod wait;
