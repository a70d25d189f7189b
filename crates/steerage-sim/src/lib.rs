//! A scheduler that runs the real receive path in an order that a seed determines.
//!
//! [`World`] runs the phases of many CPUs ([`steerage::threads::Softnet::advance`]) on one thread.
//! The order of the phases and the virtual times depend only on a seed, which is enough to replay a
//! failure. The simulator explores how phases can interleave. The loom tests in `steerage-mem`
//! explore how single loads and stores can interleave.
//!
//! | module | what it holds |
//! |---|---|
//! | [`chance`] | the random numbers, and Zipf's law |
//! | [`traffic`] | a receive queue with frames whose order can be checked |
//! | [`wire`] | outputs that detect packets that leave out of order |
//! | [`racer`] | another thread, which holds the control lock |
//! | [`witness`] | a packet function that detects violations of the path's promises |
//! | [`machine`] | the machine that a file describes, and the costs of the path on it |
//! | [`meter`] | what the work of a phase costs on a described machine |
//! | [`arrivals`] | receive queues whose frames arrive at random times |
//! | `turns` | the CPU with the earliest time |
//! | [`world`] | CPUs, their clocks, and the order of events |
//! | [`scale`] | one run on a described machine |
#![forbid(unsafe_code)]

pub mod arrivals;
pub mod chance;
pub mod machine;
pub mod meter;
pub mod racer;
pub mod scale;
pub mod traffic;
mod turns;
pub mod wire;
pub mod witness;
pub mod world;

pub use arrivals::{Arrivals, Flows};
pub use chance::Chance;
pub use machine::{Bursts, Machine, Profile};
pub use meter::Meter;
pub use racer::Racer;
pub use scale::{ScaleRun, Scaled, Steering, Work};
pub use traffic::{Traffic, TrafficOptions};
pub use wire::Wire;
pub use witness::{Mood, Witness, WitnessHandler};
pub use world::{Control, Costs, World};
