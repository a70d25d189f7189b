//! Tests of the experiments, of the responder with the kernel as its peer, and of result tables.

mod experiments;
mod respond;
mod results;
mod scale;
