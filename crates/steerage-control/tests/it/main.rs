//! Tests of the control tree through each of its interfaces, of metrics, and of the live page.

mod attacks;
mod common;
mod examples;
mod load;
mod metrics;
mod rps_cpus;
mod socket;
mod softnet;
mod tree;
mod web;
