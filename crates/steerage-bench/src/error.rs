//! Why something could not be measured: one line each.

use std::fmt;

use steerage::BuildError;

/// What went wrong.
#[derive(Debug)]
pub enum BenchError {
    /// A thread cannot be put on a CPU.
    Pin {
        /// Which.
        cpu: usize,
        /// Why.
        error: nix::Error,
    },
    /// The path cannot be put together.
    Build(BuildError),
    /// Something else that a run needs is not to be had.
    SetUp {
        /// What.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// Packets were lost where none may be: the figures would be of something else.
    Lost {
        /// So many arrived.
        delivered: u64,
        /// Of so many.
        sent: u64,
    },
    /// What came out is not what has to: the figures would be of something else.
    Wrong {
        /// What is counted.
        what: &'static str,
        /// As it is.
        seen: u64,
        /// As it has to be.
        expected: u64,
    },
    /// A thread of the run panicked.
    Panicked,
}

impl BenchError {
    /// With the reason as text.
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
