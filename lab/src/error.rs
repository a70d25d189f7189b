//! The error of a failed measurement. Each message is one line.

use std::fmt;
use std::io;

use steerage::BuildError;

/// The reason why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A thread cannot be pinned to a CPU.
    #[error("cannot run on CPU {cpu}: {error}; name CPUs that this process may use (taskset -cp $$)")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// The reason.
        error: nix::Error,
    },
    /// The instance cannot be built.
    #[error("cannot set up a run: {0}")]
    Build(#[from] BuildError),
    /// A resource that a run needs (memory, a file, a CPU) is missing.
    #[error("cannot get {what}: {why}")]
    SetUp {
        /// The missing resource.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// Packets were lost in a run that must not lose any.
    #[error("{} of {sent} packets were lost where none may be", sent.saturating_sub(*delivered))]
    Lost {
        /// Packets that arrived.
        delivered: u64,
        /// Packets that were sent.
        sent: u64,
    },
    /// A run had a wrong result.
    #[error("{seen} {what} where {expected} have to be")]
    Wrong {
        /// What the run counted.
        what: &'static str,
        /// The observed count.
        seen: u64,
        /// The expected count.
        expected: u64,
    },
    /// A thread of the run panicked.
    #[error("a thread of the run panicked: this is a bug, please report it")]
    Panicked,
    /// No case could run.
    #[error("nothing was measured: {0}")]
    Nothing(String),
    /// The output cannot be written.
    #[error("cannot write the output: {0}; is the reader gone?")]
    Output(io::Error),
}

impl LabError {
    /// Makes an error about a missing resource, with the reason as text.
    pub fn set_up(what: &'static str, why: impl fmt::Display) -> Self {
        Self::SetUp { what, why: why.to_string() }
    }
}
