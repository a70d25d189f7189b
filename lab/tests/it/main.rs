//! The experiments run, and the responder has the kernel as its peer.

mod experiments;
mod respond;
