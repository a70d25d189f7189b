//! The reasons why a measurement failed, each as one line of text.

use std::fmt;

use steerage::BuildError;

/// The reason why a run failed.
#[derive(Debug)]
pub enum BenchError {
    /// A thread cannot be pinned to a CPU.
    Pin {
        /// The CPU.
        cpu: usize,
        /// The reason.
        error: nix::Error,
    },
    /// The instance cannot be built.
    Build(BuildError),
    /// Something else that a run needs is missing.
    SetUp {
        /// The missing thing.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// Packets were lost in a run that must not lose any, so its measurements mean nothing.
    Lost {
        /// The number of packets that arrived.
        delivered: u64,
        /// The number of packets that were sent.
        sent: u64,
    },
    /// A run had a wrong result, so its measurements mean nothing.
    Wrong {
        /// The things that were counted.
        what: &'static str,
        /// The count that was seen.
        seen: u64,
        /// The count that was expected.
        expected: u64,
    },
    /// A thread of the run panicked.
    Panicked,
}

impl BenchError {
    /// An error about a missing thing, with the reason as text.
    pub fn set_up(what: &'static str, why: impl fmt::Display) -> Self {
        Self::SetUp { what, why: why.to_string() }
    }
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pin { cpu, error } => {
                write!(f, "cannot run on CPU {cpu}: {error}; name CPUs that this process may use (taskset -cp $$)")
            }
            Self::Build(error) => write!(f, "cannot set up a run: {error}"),
            Self::SetUp { what, why } => write!(f, "cannot get {what}: {why}"),
            Self::Lost { delivered, sent } => {
                write!(f, "{} of {sent} packets were lost where none may be", sent.saturating_sub(*delivered))
            }
            Self::Wrong { what, seen, expected } => write!(f, "{seen} {what} where {expected} have to be"),
            Self::Panicked => f.write_str("a thread of the run panicked: this is a bug, please report it"),
        }
    }
}

impl std::error::Error for BenchError {}

impl From<BuildError> for BenchError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}
