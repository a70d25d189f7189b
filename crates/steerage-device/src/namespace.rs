//! The network namespace of a thread, which determines to which interface a name refers.

use std::fs;
use std::os::unix::fs::MetadataExt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Namespace(u64, u64);

impl Namespace {
    /// Returns the network namespace of this thread. If /proc does not show the namespace, returns
    /// the same value for all threads.
    pub(crate) fn here() -> Self {
        fs::metadata("/proc/thread-self/ns/net").map_or(Self(0, 0), |file| Self(file.dev(), file.ino()))
    }
}
