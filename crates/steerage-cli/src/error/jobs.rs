//! Errors of `parallel`, and its exit codes, which are the same as those of GNU parallel.

use std::io;
use std::path::{Path, PathBuf};

use steerage_guard::path::PathError;

use super::Error;
use crate::units::{counted, plural};

/// Exit code: more than 100 jobs failed.
const MANY_FAILED: u8 = 101;
/// Exit code: an error that no job caused.
pub(crate) const NOT_BY_JOBS: u8 = 255;

#[derive(Debug, thiserror::Error)]
pub(crate) enum JobsError {
    /// The command line does not allow any jobs. The text is the whole message.
    #[error("{0}")]
    Wrong(String),
    #[error("cannot make the pipes of a job: {0}; use fewer jobs (-j), or allow more files by `ulimit -n`")]
    Pipe(io::Error),
    #[error("cannot start {program}: {error}; name a program that is in PATH, or its path")]
    Start { program: String, error: io::Error },
    /// A file for a job's output cannot be created.
    #[error("--results: {}", results(.path, .error))]
    Results { path: PathBuf, error: PathError },
    #[error("cannot make a temporary file in {}: {error}; set TMPDIR to another directory", .directory.display())]
    Temporary { directory: PathBuf, error: io::Error },
    /// Packets for jobs cannot be written to files in a directory, or to pipes.
    #[error("{}", not_written(.directory.as_deref(), .cause, *.jobs, *.packets))]
    NotWritten { directory: Option<PathBuf>, cause: String, jobs: u64, packets: u64 },
    #[error("cannot write the output of the jobs to standard output: {0}; redirect it to another place")]
    Merge(io::Error),
    #[error(
        "cannot keep the output of a job in {} until its turn comes: {error}; set TMPDIR to a directory with more room, \
         or add --results DIR",
        .directory.display()
    )]
    NotKept { directory: PathBuf, error: io::Error },
    /// The text says what the job does, and what to do.
    #[error("job {job} {why}")]
    Unmergeable { job: usize, why: String },
    /// The jobs' input format has one link type, but the packets have several.
    #[error(
        "the packets have several link types, {first} and {other}, and a pcap file has one: add --format pcapng, or give \
         the inputs one by one"
    )]
    SeveralLinks { first: String, other: String },
    #[error("{failed} of {jobs} {} failed", plural(*.jobs, "job"))]
    Failed { failed: u64, jobs: u64 },
    /// An error of another module.
    #[error(transparent)]
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

fn results(path: &Path, error: &PathError) -> String {
    let path = path.display();
    match error {
        PathError::System(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("cannot make {path}: there is no directory above it; make it with mkdir -p")
        }
        // All other errors contain advice already.
        PathError::Changeable { .. } | PathError::Link { .. } => error.to_string(),
        error => format!("cannot make {path}: {error}; name another directory"),
    }
}

fn not_written(directory: Option<&Path>, cause: &str, jobs: u64, packets: u64) -> String {
    let (jobs, packets) = (counted(jobs, "job"), counted(packets, "packet"));
    match directory.map(Path::display) {
        None => format!("cannot write the packets of {jobs}: {cause}, {packets} missing"),
        Some(directory) => format!(
            "cannot write the packets of {jobs} to a file in {directory}: {cause}, {packets} missing; set TMPDIR to a directory \
             with more room"
        ),
    }
}
