//! The commands, one file each.

pub(crate) mod count;
pub(crate) mod explain;
pub(crate) mod meter;
