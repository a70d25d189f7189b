//! A seeded scheduler over the real receive path.
//!
//! The path runs in phases ([`steerage::threads::Softnet::advance`]). [`World`] runs the phases of
//! many CPUs on one thread. The order of the phases and the virtual times depend only on a seed, so
//! the seed is enough to replay a failure. The simulator explores how phases of CPUs interleave.
//! The loom tests in `steerage-mem` explore how single loads and stores interleave.
//!
//! | module | what it holds |
//! |---|---|
//! | [`chance`] | the random numbers, and Zipf's law |
//! | [`traffic`] | a receive queue with frames whose order can be checked |
//! | [`wire`] | outputs that detect packets that leave out of order |
//! | [`racer`] | another thread, which holds the control lock |
//! | [`witness`] | a packet function that detects violations of the path's promises |
//! | [`world`] | CPUs, their clocks, and the order of events |
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
