//! Tests of the control tree through each of its interfaces, under load and under attack, and of
//! metrics and the live page.

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
