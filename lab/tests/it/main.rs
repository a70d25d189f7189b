//! The experiments, the responder with the kernel as its peer, and the tables of results.

mod experiments;
mod respond;
mod results;
mod scale;
