//! What can go wrong.

use std::io;

/// An error, as one line that says what was tried, on what, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// A value was not set.
    #[error("cannot set {knob} to {value}: {}", remedy(error))]
    Write {
        /// Its name.
        knob: String,
        /// The value.
        value: String,
        /// What the kernel said.
        error: io::Error,
    },
}

fn remedy(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            format!("{error}; in a container, run tune on the host or mount /sys and /proc/sys for writing")
        }
        io::ErrorKind::PermissionDenied => format!("{error}; run as root, or with CAP_NET_ADMIN"),
        io::ErrorKind::NotFound => format!("{error}; the interface or its queue is gone"),
        _ => error.to_string(),
    }
}
