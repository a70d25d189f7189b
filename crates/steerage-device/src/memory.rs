//! The error of a queue whose memory is asked for a second time: the memory has one owner.

pub(crate) const GIVEN: &str = "its memory was given away before";

/// The advice for it.
pub(crate) const OPEN_ONCE: &str = "open a queue once";
