//! The experiments, and the responder with the kernel as its peer.

mod experiments;
mod respond;
