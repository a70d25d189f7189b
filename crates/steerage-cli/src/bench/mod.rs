//! What `steerage bench` measures by.

pub(crate) mod beside_kernel;
pub(crate) mod machine;
pub(crate) mod page;
pub(crate) mod progress;
pub(crate) mod rr;
mod server;
mod world;
