//! Tests of the experiments, of the responder with the kernel as its peer, and of the tables of
//! results.

mod experiments;
mod respond;
mod results;
mod scale;
