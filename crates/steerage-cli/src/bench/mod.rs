//! What `steerage bench` measures by.

pub(crate) mod machine;
pub(crate) mod page;
pub(crate) mod rr;
