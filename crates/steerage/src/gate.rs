//! The gate between a handler and the world. It lies in `steerage-mem`, where loom tries its interleavings.

pub(crate) use steerage_mem::gate::{Dead, Gate};
