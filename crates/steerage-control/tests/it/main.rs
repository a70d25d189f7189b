//! Tests of the control tree through each of its interfaces, under load and under attack, and of
//! metrics.

mod attacks;
mod common;
mod load;
mod metrics;
mod rps_cpus;
mod socket;
mod softnet;
mod tree;
