//! Errors of the commands that communicate with a run: `get`, `set`, `top` and similar commands.

use std::io;
use std::path::PathBuf;

use steerage_control::{ClientError, SocketError};

const NO_DIRECTORY: &str =
    "without XDG_RUNTIME_DIR a run has a control socket only with --socket PATH; then name it with --to PATH";

/// The reason for which no run replies.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SearchError {
    #[error("{0}")]
    None(NoInstance),
    #[error("cannot look for runs: {0}")]
    Directory(SocketError),
    #[error(
        "no run {name} was found: {}",
        match why {
            NoInstance::NoDirectory => NO_DIRECTORY,
            _ => "`steerage get` lists the runs, and --to PATH names any socket",
        }
    )]
    NoneOfThisName { name: String, why: NoInstance },
    #[error("there are {} runs: choose one with --to: {}", .names.len(), .names.join(", "))]
    Several { names: Vec<String> },
    #[error("cannot connect to {}: {error}; name the socket of a run", .path.display())]
    Connect { path: PathBuf, error: io::Error },
    #[error("{0}")]
    Report(String),
    #[error("{what} {path}: {error}")]
    Attribute { what: &'static str, path: String, error: ClientError },
}

/// The reason for which the search found no run.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum NoInstance {
    /// Root searches only for runs of root.
    #[error("no run of root was found: start one, or name another user's socket with --to PATH")]
    OfRoot,
    /// Neither this user nor root has a run.
    #[error("no run was found: start one, or name its socket with --to PATH")]
    OfUser,
    /// This user's runs have no socket, because there is no directory for the socket.
    #[error("no run was found: {NO_DIRECTORY}")]
    NoDirectory,
}
