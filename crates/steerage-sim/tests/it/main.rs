//! Tests the real receive path, in virtual time and on real threads.

mod balance;
mod dead_receiver;
mod history;
mod large;
mod masks;
mod receiver;
mod seeds;
mod stalled;
mod stress;
mod theory;
