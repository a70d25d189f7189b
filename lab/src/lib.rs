//! The experiments of `steerage-lab`, with the devices and handlers that they measure.
//!
//! Each module imports only modules that stand above it in this table:
//!
//! | module | what it holds |
//! |---|---|
//! | `error`, `measurement`, `histogram` | why a run failed; what a run measured |
//! | `capacity` | the highest rate that a path keeps up with |
//! | `placement` | pins threads, and measures how far CPUs are apart |
//! | `bare` | the least that handing a frame to another CPU takes; all `unsafe` of this crate |
//! | `frames`, `load`, `capture`, `nic`, `router` | the devices and packet functions that are measured |
//! | `runs` | one run on one or two CPUs |
//! | `simulation` | the machine of simulated experiments |
//! | `experiment` | an experiment: its settings, its cases |
//! | `respond`, `host` | a host that answers packets, and the command around it |
//! | `rr` | requests and responses: the client, both servers, the experiment |
//! | `experiments` | all experiments by name |
//! | `runner` | runs the cases of an experiment in turn, and prints a line for each run |
//! | `predict` | two real CPUs beside the simulation, and the costs of this machine |
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "it hands memory over between two threads, as the path itself does")]
pub mod bare;
pub mod capacity;
pub mod capture;
pub mod error;
pub mod experiment;
pub mod experiments;
pub mod frames;
pub mod histogram;
pub mod host;
pub mod load;
pub mod measurement;
pub mod nic;
pub mod placement;
pub mod predict;
pub mod respond;
pub mod router;
pub mod rr;
pub mod runner;
pub mod runs;
pub mod simulation;
