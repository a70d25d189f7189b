use std::io;
use std::path::PathBuf;

use crate::knob::Knob;

/// An error of this crate: one line that names the failure and says what the user can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// `tune` could not set a value.
    #[error("cannot set {knob} to {value}: {}", remedy(knob, error))]
    Write {
        /// The knob that was not set.
        knob: Knob,
        /// The value that was not set.
        value: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The undo file was not written. Values are set only after the undo file has them.
    #[error("cannot write the undo file {}: {}; no value is set without it", path.display(), file_remedy(error))]
    Save {
        /// The path of the undo file.
        path: PathBuf,
        /// The error that the file system returned.
        error: io::Error,
    },
    /// The old values are restored, and their undo file stays.
    #[error("the old values are restored, but the undo file {} cannot be removed: {}", path.display(), file_remedy(error))]
    Remove {
        /// The path of the undo file.
        path: PathBuf,
        /// The error that the file system returned.
        error: io::Error,
    },
    /// Another process has the [lock](crate::Lock).
    #[error("another steerage tune ({holder}) {why}")]
    Busy {
        /// The other process.
        holder: String,
        /// What the other process does, and what the user can do.
        why: String,
    },
    /// `tune` could not write a file.
    #[error("cannot write {}: {}", path.display(), file_remedy(error))]
    WriteFile {
        /// The path of the file that was not written.
        path: PathBuf,
        /// The error that the file system returned.
        error: io::Error,
    },
    /// The undo file cannot be used.
    #[error("cannot read the undo file {}: {error}; if it is damaged, remove it and set the values by hand", path.display())]
    Load {
        /// The path of the undo file.
        path: PathBuf,
        /// Why the undo file cannot be used.
        error: io::Error,
    },
    /// The kernel's messages cannot be received.
    #[error("cannot watch {interface}: {error}")]
    Watch {
        /// The interface that cannot be watched.
        interface: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The network card cannot steer the chosen traffic to the queues, so nothing was changed.
    #[error("{interface} cannot lead this traffic to queues: {why}; nothing was changed")]
    Rules {
        /// The interface of the card.
        interface: String,
        /// Why the card cannot steer the traffic.
        why: String,
    },
    /// The interface that is watched was deleted.
    #[error("{0} is gone: start tune again when the interface is back")]
    Gone(String),
}

fn remedy(knob: &Knob, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => format!(
            "{error}: in a container, run tune on the host, or start the container with /sys and /proc/sys mounted for writing"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("{error}: run tune with sudo, or with CAP_NET_ADMIN as the files' owner")
        }
        io::ErrorKind::NotFound => format!("{error}: the interface or its queue is gone; run tune again"),
        io::ErrorKind::Unsupported if knob.0.contains("/rss/") => {
            format!("{error}: this needs Linux 6.17 and a driver that allows it; type the command that tune prints")
        }
        io::ErrorKind::Unsupported if knob.is_rule() => {
            format!("{error}: this card has no rules for queues, although its driver has")
        }
        _ if knob.is_rule() => {
            format!(
                "{error}: the driver refuses this rule; many compare only whole fields: name one queue, or lead the traffic to a \
                 context of ethtool -X by hand"
            )
        }
        _ => error.to_string(),
    }
}

fn file_remedy(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!("{error}: run tune with sudo"),
        _ => error.to_string(),
    }
}
