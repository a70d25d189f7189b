//! The error of a queue that was asked for its memory a second time. The memory has only one owner.

pub(crate) const GIVEN: &str = "its memory was given away before";

/// The advice for that error.
pub(crate) const OPEN_ONCE: &str = "open a queue once";
