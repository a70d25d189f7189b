//! Tests of the devices within the whole path, and of the examples.

mod af_packet;
mod af_packet_held;
mod af_xdp;
mod af_xdp_send;
mod attacker;
mod captures;
mod captures_headers;
mod captures_packed;
mod captures_saved;
mod captures_stuck;
mod captures_waiting;
mod chained;
mod common;
mod examples;
mod filters;
mod filters_files;
mod flows;
mod hashes;
mod lent;
mod limit;
mod offloads;
mod offloads_stopped;
mod privileges;
mod refusals;
mod synthetic;
mod tap;
