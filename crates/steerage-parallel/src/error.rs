//! All errors of a run. Each message is one line, which states what failed and what to do.

use std::io;
use std::path::{Path, PathBuf};

use steerage::{BuildError, DeviceError};
use steerage_device::output::OutputError;
use steerage_guard::path::PathError;
use steerage_text::{counted, plural};

/// The reason why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// With the given options, no jobs can be started. The text is the whole message.
    #[error("{0}")]
    Wrong(String),
    /// The pipes of a job cannot be created.
    #[error("cannot make the pipes of a job: {0}; use fewer jobs (-j), or allow more files by `ulimit -n`")]
    Pipe(io::Error),
    /// The program of a job cannot be started.
    #[error("cannot start {program}: {error}; name a program that is in PATH, or its path")]
    Start {
        /// The program, quoted for a shell.
        program: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The file with the packets of a job cannot be passed to the job.
    #[error("cannot make the way to a job: {0}")]
    Way(io::Error),
    /// The network interface of a job cannot be created.
    #[error(transparent)]
    Interface(OutputError),
    /// The packets of a job cannot be written as a capture.
    #[error(transparent)]
    Stream(DeviceError),
    /// A directory or a file for a job's output cannot be created.
    #[error("--results: {}", results(.path, .error))]
    Results {
        /// The directory or the file.
        path: PathBuf,
        /// The reason.
        error: PathError,
    },
    /// The directory for the jobs' output has a result of an earlier run with more jobs.
    #[error(
        "--results: there is {}, but this run has {}: remove the results of the earlier run, or name another directory",
        .path.display(), counted(*.jobs as u64, "job")
    )]
    OlderResults {
        /// The first directory of a job that this run does not have.
        path: PathBuf,
        /// The number of jobs of this run.
        jobs: usize,
    },
    /// A temporary file without a path (an unnamed file) cannot be created.
    #[error("cannot make a temporary file in {}: {error}; set TMPDIR to another directory", .directory.display())]
    Temporary {
        /// The directory of temporary files.
        directory: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// Packets for jobs could not be written to files in a directory, or to pipes.
    #[error("{}", not_written(.directory.as_deref(), .cause, *.jobs, *.packets))]
    NotWritten {
        /// The directory of the files. The value is `None` for pipes.
        directory: Option<PathBuf>,
        /// The first error.
        cause: String,
        /// The number of jobs whose packets are missing.
        jobs: u64,
        /// The number of packets that are missing.
        packets: u64,
    },
    /// The merged output cannot be written.
    #[error("cannot write the output of the jobs to standard output: {0}; redirect it to another place")]
    Merge(io::Error),
    /// A job's output had to wait for the output of other jobs, but could not be stored in a file.
    #[error(
        "cannot keep the output of a job in {} until its turn comes: {error}; set TMPDIR to a directory with more room, \
         or add --results DIR",
        .directory.display()
    )]
    NotKept {
        /// The directory of temporary files.
        directory: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The output of a job cannot be merged.
    #[error("job {job} {why}")]
    Unmergeable {
        /// The number of the job, from 1.
        job: usize,
        /// What is wrong with the job's output, and what the user can do.
        why: String,
    },
    /// The jobs' input format can have only one link type, but the packets have several link types.
    #[error(
        "the packets have several link types, {first} and {other}, and a pcap file has one: add --format pcapng, or give \
         the inputs one by one"
    )]
    SeveralLinks {
        /// The link type of the first packet.
        first: String,
        /// The link type of a later packet.
        other: String,
    },
    /// Jobs failed, or did not get all of their packets.
    #[error("{failed} of {jobs} {} failed", plural(*.jobs, "job"))]
    Failed {
        /// The number of jobs that failed.
        failed: u64,
        /// The number of jobs.
        jobs: u64,
    },
    /// [`run`](crate::run()) cannot create the instance that splits the packets.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Reading the input of [`run`](crate::run()) failed. The text is the whole message.
    #[error("{0}")]
    Input(String),
}

fn results(path: &Path, error: &PathError) -> String {
    let path = path.display();
    match error {
        PathError::System(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("cannot make {path}: there is no directory above it; make it with mkdir -p")
        }
        // These messages already say what to do.
        PathError::Changeable { .. } | PathError::Link { .. } | PathError::FileSystem { .. } => error.to_string(),
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
