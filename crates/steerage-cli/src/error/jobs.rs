//! Errors of `parallel`, and its exit codes, which are those of GNU parallel.

use std::fmt;
use std::io;
use std::path::PathBuf;

use steerage_guard::path::PathError;

use super::Error;
use crate::units::{counted, plural};

/// Exit code: more than 100 jobs failed.
const MANY_FAILED: u8 = 101;
/// Exit code: an error that is not a job's.
pub(crate) const NOT_BY_JOBS: u8 = 255;

/// Why `parallel` failed.
#[derive(Debug)]
pub(crate) enum JobsError {
    /// The command line does not allow any jobs. The text is the whole message.
    Wrong(String),
    /// A pipe to or from a job cannot be created.
    Pipe(io::Error),
    /// A job cannot be started.
    Start { program: String, error: io::Error },
    /// A file for a job's output cannot be created.
    Results { path: PathBuf, error: PathError },
    /// A temporary file cannot be created.
    Temporary { directory: PathBuf, error: io::Error },
    /// Packets for jobs cannot be written: to files in a directory, or to pipes.
    NotWritten { directory: Option<PathBuf>, cause: String, jobs: u64, packets: u64 },
    /// The output of the jobs cannot be passed on.
    Merge(io::Error),
    /// The output of a job cannot be kept until its turn comes.
    NotKept { directory: PathBuf, error: io::Error },
    /// The jobs' input format has one link type, but the packets have several.
    SeveralLinks { first: String, other: String },
    /// Jobs failed.
    Failed { failed: u64, jobs: u64 },
    /// An error that other commands have too.
    Other(Box<Error>),
}

impl JobsError {
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Failed { failed, .. } => u8::try_from(*failed).unwrap_or(u8::MAX).min(MANY_FAILED),
            _ => NOT_BY_JOBS,
        }
    }
}

impl fmt::Display for JobsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(message) => f.write_str(message),
            Self::Pipe(error) => {
                write!(
                    f,
                    "cannot make the pipes of a job: {error}; use fewer jobs (-j), or allow more files by `ulimit -n`"
                )
            }
            Self::Start { program, error } => {
                write!(f, "cannot start {program}: {error}; name a program that is in PATH, or its path")
            }
            Self::Results { path, error: PathError::System(error) } if error.kind() == io::ErrorKind::NotFound => {
                write!(
                    f,
                    "--results: cannot make {}: there is no directory above it; make it with mkdir -p",
                    path.display()
                )
            }
            // The other errors say what to do.
            Self::Results { error: error @ (PathError::Changeable { .. } | PathError::Link { .. }), .. } => {
                write!(f, "--results: {error}")
            }
            Self::Results { path, error } => {
                write!(f, "--results: cannot make {}: {error}; name another directory", path.display())
            }
            Self::Temporary { directory, error } => {
                let directory = directory.display();
                write!(f, "cannot make a temporary file in {directory}: {error}; set TMPDIR to another directory")
            }
            Self::NotWritten { directory, cause, jobs, packets } => {
                write!(f, "cannot write the packets of {}", counted(*jobs, "job"))?;
                directory.as_ref().map_or(Ok(()), |directory| write!(f, " to a file in {}", directory.display()))?;
                write!(f, ": {cause}, {} missing", counted(*packets, "packet"))?;
                directory.as_ref().map_or(Ok(()), |_| f.write_str("; set TMPDIR to a directory with more room"))
            }
            Self::NotKept { directory, error } => write!(
                f,
                "cannot keep the output of a job in {} until its turn comes: {error}; set TMPDIR to a directory with more room, \
                 or leave --keep-order out",
                directory.display()
            ),
            Self::Merge(error) => {
                write!(
                    f,
                    "cannot write the output of the jobs to standard output: {error}; redirect it to another place"
                )
            }
            Self::SeveralLinks { first, other } => write!(
                f,
                "the packets have several link types, {first} and {other}, and a pcap file has one: add --format pcapng, or give \
                 the inputs one by one"
            ),
            Self::Failed { failed, jobs } => write!(f, "{failed} of {jobs} {} failed", plural(*jobs, "job")),
            Self::Other(error) => error.fmt(f),
        }
    }
}

impl From<JobsError> for Error {
    fn from(error: JobsError) -> Self {
        Self::Jobs(error)
    }
}
