//! A seeded scheduler over the real receive path.
//!
//! The path runs in phases ([`steerage::threads::Softnet::advance`]); [`World`] runs the phases of many CPUs on one thread, in an
//! order and at virtual times that follow from a seed alone. One seed, one history: a failure is replayed by its number.
//! It explores how phases of CPUs interleave; how single loads and stores do is loom's part, in `steerage-mem`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`chance`] | the random numbers, and Zipf's law |
//! | [`traffic`] | a receive queue with frames whose order can be checked |
//! | [`wire`] | outputs that notice what leaves out of order |
//! | [`racer`] | another thread, which holds the control lock |
//! | [`witness`] | a packet function that notices what must never be |
//! | [`world`] | CPUs, their clocks, and what happens when |
#![forbid(unsafe_code)]

pub mod chance;
pub mod racer;
pub mod traffic;
pub mod wire;
pub mod witness;
pub mod world;

pub use chance::Chance;
pub use racer::Racer;
pub use traffic::{Traffic, TrafficOptions};
pub use wire::Wire;
pub use witness::{Mood, Witness, WitnessHandler};
pub use world::{Control, Costs, World};
