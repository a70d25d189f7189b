//! The control tree by each way to it, under load and under attack, and metrics.

mod attacks;
mod common;
mod load;
mod metrics;
mod rps_cpus;
mod socket;
mod softnet;
mod tree;
